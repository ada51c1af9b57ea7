"""Floor 8: finding texts: an index of documents, retrieval by vectors and by words, reranking, and how good it is."""
