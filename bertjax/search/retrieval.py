"""Retrieve documents for queries (by vectors, words or both), rerank them, and write results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from itertools import accumulate
from pathlib import Path
from typing import Literal, cast, get_args

import numpy as np

from bertjax.embed.encoder import TextEncoder
from bertjax.embed.outputs import output_path
from bertjax.finetune.kinds import get_kind
from bertjax.finetune.kinds.relevance import RELEVANCE
from bertjax.finetune.predict import TaskModel
from bertjax.input.lengths import LengthCounts
from bertjax.run.run_directory import TrainedModel
from bertjax.search.index import SearchIndex, search_terms
from bertjax.search.rankings import Hits, best, fuse, without
from bertjax.search.records import Record, StoredDocuments
from bertjax.storage.files import replacing
from bertjax.tokenization.tokenizer import Tokenizer

By = Literal["vectors", "bm25", "both"]
WAYS: tuple[By, ...] = get_args(By)

_QUERIES = 256  # per batch
# Documents scored at a time, to bound memory. NumPy, because jax.lax.top_k is not faster on CPU cores (256 queries,
# 100,000 documents of 384 dims: 0.33 s against 0.28 to 0.60 s) and compiles for each number of queries.
_DOCUMENTS = 1 << 14


def retrieve(
    index: SearchIndex,
    encoder: TextEncoder,
    tokenizer: Tokenizer,
    queries: Sequence[str],
    by: By,
    top: int,
    own: np.ndarray,
    done: Callable[[int], object] = lambda more: None,
) -> dict[By, list[Hits]]:
    """Rank documents by vectors or words; `by` "both" gives each ranking and their fusion. Keeps the `top` best.

    `own` int64 [queries], from `own_documents`, is the document to leave out of a query's results, or -1. `done`
    receives the number of queries answered since its last call.
    """
    results: dict[By, list[Hits]] = {way: [] for way in WAYS if by in (way, "both")}
    for start in range(0, len(queries), _QUERIES):
        batch = list(queries[start : start + _QUERIES])
        rankings: dict[By, list[Hits]] = {}
        if "vectors" in results:
            vectors = np.stack([embedding.vectors for embedding in encoder.encode(batch)])
            rankings["vectors"] = nearest(index.vectors, vectors, top + 1)
        if "bm25" in results:
            rankings["bm25"] = [index.words.search(terms, top + 1) for terms in search_terms(batch, tokenizer)]
        for way, ranked in rankings.items():
            numbers = own[start : start + len(batch)]
            results[way] += [without(hits, number, top) for hits, number in zip(ranked, numbers, strict=True)]
        done(len(batch))
    if by == "both":
        results["both"] = [fuse(pair, top) for pair in zip(results["vectors"], results["bm25"], strict=True)]
    return results


def nearest(vectors: np.ndarray, queries: np.ndarray, top: int) -> list[Hits]:
    """Find the `top` documents with the largest inner products for each query, by exact search.

    vectors float32 [documents, D], may be memory-mapped; queries float32 [queries, D].
    """
    results = [Hits(np.empty(0, np.int64), np.empty(0, np.float32))] * len(queries)
    for start in range(0, len(vectors), _DOCUMENTS):
        for query, scores in enumerate(queries @ vectors[start : start + _DOCUMENTS].T):
            hits = results[query]
            # Ties with the last hit are left out: they rank after it, because they are later in the index.
            better = np.flatnonzero(scores > hits.scores[-1]) if len(hits.scores) == top else np.arange(len(scores))
            documents = np.concatenate([hits.documents, start + better])
            results[query] = best(documents, np.concatenate([hits.scores, scores[better]]), top)
    return results


_PAIRS = 512  # per call of the model


class Reranker:
    """Reranks documents with a model of `bertjax finetune relevance`; `counts` covers the pairs scored so far."""

    def __init__(self, model: TrainedModel) -> None:
        """Put the weights on the devices. Raises ValueError for a model that was not trained for relevance."""
        if not model.kind or not get_kind(model.kind).ranks:
            was = f"fine-tuned for {model.kind}" if model.kind else "only pretrained"
            task = RELEVANCE.own_task
            raise ValueError(f"--rerank {model.directory}: the model was {was}; name a run of bertjax finetune {task}")
        self.max_length, self.counts = model.max_length, LengthCounts()
        self._model = TaskModel(model)

    def rerank(
        self,
        queries: Sequence[str],
        candidates: Sequence[Hits],
        documents: StoredDocuments,
        done: Callable[[int], object] = lambda more: None,
    ) -> list[Hits]:
        """Sort the candidates for each query by relevance; ties keep their order.

        Scores are probabilities. `done` receives the number of documents scored since its last call.
        """
        pairs = [(query, number) for query, hits in zip(queries, candidates, strict=True) for number in hits.documents]
        scores: list[float] = []
        for start in range(0, len(pairs), _PAIRS):
            batch = pairs[start : start + _PAIRS]
            inputs = [(query, documents[number].whole) for query, number in batch]
            scores += cast(list[float], self._model.predict(inputs))  # relevance models predict floats
            self.counts = LengthCounts(*map(sum, zip(astuple(self.counts), astuple(self._model.counts), strict=True)))
            done(len(batch))
        ends = accumulate(len(hits.documents) for hits in candidates)
        parts = [np.array(scores[end - len(hits.documents) : end]) for hits, end in zip(candidates, ends, strict=True)]
        return [best(hits.documents, part, len(part)) for hits, part in zip(candidates, parts, strict=True)]


_RUN_NAME = "bertjax"  # the last column of a TREC run


def require_output(name: str) -> Path:
    """Check the path to write results to. Raises ValueError if it cannot be written."""
    return output_path(name, _LINES, "results")


def write_results(path: Path, queries: Sequence[Record], results: Sequence[Hits], documents: StoredDocuments) -> None:
    """Write the results of each query, best first, atomically.

    .jsonl: a line per query, `{"query": its id, "text": ..., "results": [{"id", "score", "title", "text"}, ...]}`.
    .trec: lines `query Q0 document rank score bertjax`. Raises ValueError for an id with spaces, which .trec forbids.
    """
    lines = _LINES[path.suffix]
    with replacing(path) as file:
        for query, hits in zip(queries, results, strict=True):
            file.writelines(f"{line}\n".encode() for line in lines(query, hits, documents))


def _json_lines(query: Record, hits: Hits, documents: StoredDocuments) -> Iterator[str]:
    results = []
    for number, score in zip(*hits, strict=True):
        record = documents[number]
        results.append({"id": record.id, "score": float(score), "title": record.title, "text": record.text})
    yield json.dumps({"query": query.id, "text": query.whole, "results": results}, ensure_ascii=False)


def _trec_lines(query: Record, hits: Hits, documents: StoredDocuments) -> Iterator[str]:
    for rank, (number, score) in enumerate(zip(*hits, strict=True), 1):
        words = [query.id, "Q0", documents[number].id, str(rank), f"{score:.9g}", _RUN_NAME]
        for kind, word in (("query", words[0]), ("document", words[2])):
            if len(word.split()) != 1:
                raise ValueError(f"{kind} id {word!r} has spaces, which .trec does not allow; write .jsonl")
        yield " ".join(words)


_LINES: dict[str, Callable[[Record, Hits, StoredDocuments], Iterator[str]]] = {
    ".jsonl": _json_lines,
    ".trec": _trec_lines,
}
