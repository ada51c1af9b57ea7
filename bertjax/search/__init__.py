"""Search: an index of vectors and words, retrieval, reranking and evaluation."""
