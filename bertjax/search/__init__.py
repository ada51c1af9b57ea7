"""Search: an index of vectors and words, retrieval, reranking and evaluation."""

from __future__ import annotations

from bertjax.storage.callable_package import make_callable

make_callable(__name__)
