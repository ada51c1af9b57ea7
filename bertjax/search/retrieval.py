"""Finding documents for queries (by vectors, by words, by both), reranking them, and writing the results."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Literal, get_args

import numpy as np

from bertjax.embed.encoder import TextEncoder
from bertjax.embed.outputs import output_path
from bertjax.finetune.kinds import kind_of
from bertjax.finetune.kinds.relevance import RELEVANCE
from bertjax.finetune.predict import TaskModel
from bertjax.input.lengths import LengthCounts
from bertjax.run.run_directory import TrainedModel
from bertjax.search.index import SearchIndex, terms_of
from bertjax.search.rankings import Hits, best, fuse, without
from bertjax.search.records import Record, StoredDocuments
from bertjax.storage.files import replacing
from bertjax.tokenization.tokenizer import Tokenizer

By = Literal["vectors", "bm25", "both"]
WAYS: tuple[By, ...] = get_args(By)

_QUERIES = 256  # per batch
# Documents scored at a time, which bounds memory. On CPU cores NumPy took 0.33 s of processor time for 256 queries
# and 100,000 documents of 384 dims, and jax.lax.top_k 0.28 to 0.60 s, plus a compilation for each number of queries.
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
    """The `top` best documents for each query, in order, by vectors, by words, or by both and by each of them alone.

    `own` has the number of the document that a query is itself, which is none of its results, or -1: int64 [queries].
    `done` receives the number of queries answered since its last call.
    """
    found: dict[By, list[Hits]] = {way: [] for way in WAYS if by in (way, "both")}
    for start in range(0, len(queries), _QUERIES):
        some = list(queries[start : start + _QUERIES])
        rankings: dict[By, list[Hits]] = {}
        if "vectors" in found:
            vectors = np.stack([embedding.vectors for embedding in encoder.encode(some)])
            rankings["vectors"] = nearest(index.vectors, vectors, top + 1)
        if "bm25" in found:
            rankings["bm25"] = [index.words.search(terms, top + 1) for terms in terms_of(some, tokenizer)]
        for way, ranked in rankings.items():
            numbers = own[start : start + len(some)]
            found[way] += [without(hits, number, top) for hits, number in zip(ranked, numbers, strict=True)]
        done(len(some))
    if by == "both":
        found["both"] = [fuse(pair, top) for pair in zip(found["vectors"], found["bm25"], strict=True)]
    return found


def nearest(vectors: np.ndarray, queries: np.ndarray, top: int) -> list[Hits]:
    """Exact search: the `top` documents with the largest inner products with each query.

    vectors float32 [documents, D], which may lie in a file; queries float32 [queries, D].
    """
    held = [Hits(np.empty(0, np.int64), np.empty(0, np.float32))] * len(queries)
    for start in range(0, len(vectors), _DOCUMENTS):
        scores = queries @ vectors[start : start + _DOCUMENTS].T
        for query, row in enumerate(scores):
            held[query] = _with_block(held[query], row, start, top)
    return held


def _with_block(held: Hits, scores: np.ndarray, start: int, top: int) -> Hits:
    """The best of those held and of the documents from number `start` on, with these scores."""
    # A tie with the last one held ranks after it, being later in the index.
    kept = np.flatnonzero(scores > held.scores[-1]) if len(held.scores) == top else np.arange(len(scores))
    return best(np.concatenate([held.documents, start + kept]), np.concatenate([held.scores, scores[kept]]), top)


_PAIRS = 512  # per call of the model


class Reranker:
    """A model of `bertjax finetune relevance`; `counts` describes the pairs that it has read."""

    def __init__(self, model: TrainedModel) -> None:
        """Put the weights on the devices. Raises ValueError for a model that was not trained for relevance."""
        if not model.kind or not kind_of(model.kind).ranks:
            was = f"fine-tuned for {model.kind}" if model.kind else "pretrained alone"
            task = RELEVANCE.own_task
            raise ValueError(f"--rerank {model.directory}: it was {was}; name a run of bertjax finetune {task}")
        self.max_length, self.counts = model.max_length, LengthCounts()
        self._model = TaskModel(model)

    def rerank(
        self,
        queries: Sequence[str],
        found: Sequence[Hits],
        documents: StoredDocuments,
        done: Callable[[int], object] = lambda more: None,
    ) -> list[Hits]:
        """The documents found for each query, the most relevant first; ties keep their order.

        Scores are probabilities. `done` receives the number of documents read since its last call.
        """
        pairs = [(query, number) for query, hits in zip(queries, found, strict=True) for number in hits.documents]
        scores = np.array(list(self._probabilities(pairs, documents, done)))
        ends = np.cumsum([len(hits.documents) for hits in found])
        return [
            best(hits.documents, own, len(own)) for hits, own in zip(found, np.split(scores, ends[:-1]), strict=True)
        ]

    def _probabilities(
        self, pairs: Sequence[tuple[str, int]], documents: StoredDocuments, done: Callable[[int], object]
    ) -> Iterator[float]:
        for start in range(0, len(pairs), _PAIRS):
            some = pairs[start : start + _PAIRS]
            yield from self._model.predict([(query, documents[number].whole) for query, number in some])
            self.counts = LengthCounts(*map(sum, zip(astuple(self.counts), astuple(self._model.counts), strict=True)))
            done(len(some))


_RUN_NAME = "bertjax"  # the last column of a TREC run


def require_output(name: str) -> Path:
    """The path to write results to. Raises ValueError early if that is impossible."""
    return output_path(name, _LINES, "results")


def write_results(path: Path, queries: Sequence[Record], found: Sequence[Hits], documents: StoredDocuments) -> None:
    """Write the results of each query, best first, atomically.

    .jsonl: a line per query, `{"query": its id, "text": ..., "results": [{"id", "score", "title", "text"}, ...]}`.
    .trec: lines `query Q0 document rank score bertjax`. Raises ValueError for an id that such a line cannot hold.
    """
    lines = _LINES[path.suffix]
    with replacing(path) as file:
        for query, hits in zip(queries, found, strict=True):
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
                raise ValueError(f"{kind} id {word!r}: a line of a .trec file has spaces between; write .jsonl instead")
        yield " ".join(words)


_LINES: dict[str, Callable[[Record, Hits, StoredDocuments], Iterator[str]]] = {
    ".jsonl": _json_lines,
    ".trec": _trec_lines,
}
