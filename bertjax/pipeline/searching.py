"""Search documents: open an index and check it against the request, or build it; rank documents for queries."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from bertjax.convert.sentence_transformers.reader import vector_options
from bertjax.convert.sources import open_source
from bertjax.embed.encoder import Encoding, EncodingOptions, TextEncoder, require_trained
from bertjax.input.lengths import LengthCounts
from bertjax.run.progress import Progress
from bertjax.run.run_directory import TrainedModel
from bertjax.search.index import Origin, SearchIndex, build_index, has_index, model_fingerprint, open_index
from bertjax.search.rankings import Hits, fuse
from bertjax.search.records import count_records, read_records
from bertjax.search.retrieval import WAYS, By, Reranker, retrieve
from bertjax.storage.remote import is_remote, to_path
from bertjax.storage.sums import sha256_of_file
from bertjax.storage.utf8 import ReadCounts
from bertjax.tokenization.tokenizer import Tokenizer

Say = Callable[[str], object]
Report = Callable[[LengthCounts, int], object]  # takes counts of texts, and the most tokens of a row
_CANDIDATES = 100  # of each ranking, to fuse, rerank and measure


@dataclass(frozen=True)
class IndexRequest:
    """An index to open, or to build if its folder has none."""

    model: str  # a run, hf:DIR, hf:NAME or tf1:DIR
    folder: str
    documents: tuple[str, ...]  # files to index; empty: the index exists
    field: str | None  # column or field of the documents with the text
    encoding: EncodingOptions


class Found(NamedTuple):
    """A document that was found for a query."""

    id: str
    title: str
    text: str
    score: float


def search(request: IndexRequest, queries: Sequence[str], by: str, rerank: str, top: int) -> list[list[Found]]:
    """The `top` best documents for each query, best first, by `by`: vectors, bm25 or both.

    `rerank` is a model of `bertjax finetune relevance` that orders the 100 best, or empty. Warns of truncated texts.
    Raises ValueError as `open_or_build_index` does, and for an unknown `by`.
    """
    if by not in WAYS:
        raise ValueError(f"by={by!r} is unknown; choose from {', '.join(WAYS)}")
    if top < 1:
        raise ValueError(f"top={top}: give 1 or more")
    texts: list[tuple[str, LengthCounts, int]] = []
    index, encoder, tokenizer = open_or_build_index(
        request, lambda line: None, lambda counts, length: texts.append(("documents", counts, length))
    )
    reranker = Reranker(open_source(rerank)[0]) if rerank else None
    own = np.full(len(queries), -1)
    rankings = rank(index, encoder, tokenizer, queries, by, ranking_depth(top), own, reranker)
    texts.append(("queries", encoder.counts, encoder.max_length))
    if reranker is not None:
        texts.append(("queries with documents", reranker.counts, reranker.max_length))
    for what, counts, length in texts:
        if counts.any_cut:
            warnings.warn(f"{what}: {counts.notices(length)[0]}", stacklevel=3)
    results = []
    for hits in list(rankings.values())[-1]:
        best = zip(hits.documents[:top].tolist(), hits.scores[:top].tolist(), strict=True)
        results.append([_result(index, number, score) for number, score in best])
    return results


def ranking_depth(top: int, candidates: int = _CANDIDATES) -> int:
    """The number of documents in each ranking: fused and reranked results depend on more than the `top` best."""
    return max(top, candidates)


def _result(index: SearchIndex, number: int, score: float) -> Found:
    record = index.documents[number]
    return Found(record.id, record.title, record.text, score)


def rank(
    index: SearchIndex,
    encoder: TextEncoder,
    tokenizer: Tokenizer,
    queries: Sequence[str],
    by: By,
    depth: int,
    own: np.ndarray,
    reranker: Reranker | None = None,
    fused: bool = False,
) -> dict[str, list[Hits]]:
    """The `depth` best documents for each query, by name of the ranking; the last ranking is the one to use.

    `own` int64 [queries] as in `retrieve`. `fused`: the reranker's order is fused with the first ranking.
    """
    with Progress(len(queries), "search", unit="text") as progress:
        rankings: dict[str, list[Hits]] = {
            **retrieve(index, encoder, tokenizer, queries, by, depth, own, progress.update)
        }
    if reranker is not None:
        candidates = rankings[by]
        with Progress(sum(len(hits.documents) for hits in candidates), "rerank", unit="text") as progress:
            reranked = reranker.rerank(queries, candidates, index.documents, progress.update)
        rankings[f"{by}, reranked"] = reranked
        if fused:
            both = [fuse(pair, depth) for pair in zip(candidates, reranked, strict=True)]
            rankings[f"{by}, reranked and fused"] = both
    return rankings


def open_or_build_index(request: IndexRequest, say: Say, report: Report) -> tuple[SearchIndex, TextEncoder, Tokenizer]:
    """Open the index, or build it if it does not exist; also returns the encoder for its queries and the tokenizer.

    `say` receives lines about a new index, `report` the counts of its documents. Raises ValueError for an index of
    other documents, of another model or of another encoding.
    """
    index = _existing_index(request)
    model, untrained = open_source(request.model)
    encoding = _encoding(request, index, model)
    if encoding.pooling == "none":
        raise ValueError("pooling='none': an index has one vector for each document; choose mean, cls, max or pooler")
    encoder = TextEncoder(model, encoding)
    require_trained(encoder.encoding.pooling, untrained, request.model)
    fingerprint = model_fingerprint(model, encoder.encoding.pooling)
    if index is None:
        index = _build_index(request, model, encoder, fingerprint, say, report)
        encoder = TextEncoder(model, encoder.encoding)  # a new one, so that its counts describe queries only
    elif index.origin.fingerprint != fingerprint:
        raise ValueError(
            f"--index {index.folder} was built with {index.origin.model}, which differs from {request.model}; "
            "use that model, or name another folder"
        )
    return index, encoder, model.tokenizer


def _existing_index(request: IndexRequest) -> SearchIndex | None:
    """The index, or None if it is to be built. Raises ValueError if it has other documents or cannot be built."""
    if is_remote(request.folder):
        raise ValueError(f"--index {request.folder}: an index must be a local folder; name one")
    folder = Path(request.folder)
    if not has_index(folder):
        if not request.documents:
            raise ValueError(f"--index {folder}: no index there; give the documents to build it: --documents FILE ...")
        return None
    index = open_index(folder)
    if request.documents and (index.origin.files, index.origin.field) != _files(request):
        raise ValueError(
            f"--documents {' '.join(request.documents)}: index {folder} was built from other documents "
            f"({', '.join(name for name, _ in index.origin.files)}); name another --index, or leave --documents out"
        )
    return index


def _files(request: IndexRequest) -> tuple[list[list[str]], str | None]:
    return [[Path(path).name, sha256_of_file(to_path(path))] for path in request.documents], request.field


def _encoding(request: IndexRequest, index: SearchIndex | None, model: TrainedModel) -> Encoding:
    """The encoding of the index, or of the command line for a new one. Raises ValueError if they differ.

    A new index compares cosines unless --no-normalize is given; its other defaults come from the model's folder.
    """
    options = request.encoding
    if index is None:
        return Encoding(**vector_options(model, {"normalize": True} | options))
    # The size of batches does not change vectors.
    sizes = {name: options.get(name) for name in ("batch_tokens", "batch_size")}
    encoding = replace(index.origin.encoding, **sizes)
    built = asdict(encoding)
    for name, value in options.items():
        if name not in sizes and built[name] != value:
            raise ValueError(
                f"{name}={value}: index {index.folder} was built with {name}={built[name]}; leave that option out, "
                "or name another --index"
            )
    return encoding


def _build_index(
    request: IndexRequest, model: TrainedModel, encoder: TextEncoder, fingerprint: str, say: Say, report: Report
) -> SearchIndex:
    """Build the index, say its size, report its counts, and open it."""
    total = count_records(request.documents, request.field)
    folder, read_counts = Path(request.folder), ReadCounts()
    encoding = replace(encoder.encoding, max_length=encoder.max_length)
    origin = Origin(request.model, fingerprint, encoding, *_files(request))
    records = read_records(request.documents, request.field, read_counts)
    with Progress(total, "index", unit="document") as progress:
        build_index(folder, encoder, model.tokenizer, records, origin, progress.update)
    counts = encoder.counts
    say(
        f"index {folder}: {counts.examples:,} documents with {counts.tokens:,} tokens, {encoder.width} numbers for each"
    )
    if read_counts.replaced_characters:
        say(f"{read_counts.replaced_characters:,} characters were not UTF-8 and became U+FFFD")
    report(counts, encoder.max_length)
    return open_index(folder)
