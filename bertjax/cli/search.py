"""`bertjax search`: an index of documents, and what it finds for queries."""

from __future__ import annotations

import argparse
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bertjax.cli.encoding import told_encoding
from bertjax.convert.sources import open_source
from bertjax.embed.encoder import Encoding, TextEncoder, require_trained
from bertjax.report.table import Table, text_lines
from bertjax.search.evaluation import evaluate
from bertjax.search.fingerprint import model_fingerprint
from bertjax.search.index import Origin, SearchIndex, build_index, has_index, open_index
from bertjax.search.rankings import Hits, fuse
from bertjax.search.records import (
    Judgements,
    Record,
    count_records,
    read_judgements,
    read_records,
    sha256_of,
)
from bertjax.search.rerank import Reranker
from bertjax.search.results import require_output, write_results
from bertjax.search.retrieval import retrieve
from bertjax.search.stored_documents import StoredDocuments
from bertjax.search.training_pairs import PAIRS, RELEVANCE, write_training_pairs
from bertjax.storage.remote import is_remote
from bertjax.storage.utf8 import ReadCounts
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.progress import Progress
from bertjax.training.run_directory import TrainedModel


def search(arguments: argparse.Namespace) -> int:
    """Make the index if it is not there, and say or write what it has for each query, or how good that is."""
    output = require_output(arguments.output) if arguments.output else None
    judgements = read_judgements(arguments.qrels) if arguments.qrels else None
    queries = _queries(arguments)
    index = _existing(arguments)
    model, untrained = open_source(arguments.model)
    encoder = TextEncoder(model, _encoding(arguments, index))
    require_trained(encoder.encoding, untrained, arguments.model)
    reranker = Reranker(open_source(arguments.rerank)[0]) if arguments.rerank else None
    fingerprint = model_fingerprint(model, encoder.encoding.pooling)
    if index is None:
        index = _built(arguments, model, encoder, fingerprint)
        encoder = TextEncoder(model, encoder.encoding)  # which counts queries, and not documents
    elif index.origin.fingerprint != fingerprint:
        raise ValueError(
            f"--index {index.folder}: {index.origin.model} made it, which is another model than {arguments.model}; "
            "use that one, or name another folder"
        )
    if not queries:
        print(f"{len(index.documents):,} documents in index {index.folder}; no query was given")
        return 0
    found = _found(arguments, queries, index, encoder, model.tokenizer, reranker)
    if judgements is not None:
        named = {way: _named(queries, hits, index.documents) for way, hits in found.items()}
        _print_figures(named, judgements, _depth(arguments))
    last = list(found)[-1]
    if arguments.training_pairs:
        _write_pairs(arguments, queries, found[last], judgements or {}, index.documents)
        return 0
    wanted = [Hits(*(part[: arguments.top] for part in hits)) for hits in found[last]]
    if output is not None:
        write_results(output, queries, wanted, index.documents)
        print(f"{len(queries):,} queries to {output}: the best {arguments.top} documents for each, by {last}")
    elif judgements is None:
        _print_found(queries, wanted, index.documents)
    return 0


def _found(
    arguments: argparse.Namespace,
    queries: Sequence[Record],
    index: SearchIndex,
    encoder: TextEncoder,
    tokenizer: Tokenizer,
    reranker: Reranker | None,
) -> dict[str, list[Hits]]:
    """The candidates for each query by every way that was asked for; the last is the one whose results are wanted."""
    texts, depth = [query.whole for query in queries], _depth(arguments)
    with Progress(len(queries), "search", unit="text") as progress:
        found: dict[str, list[Hits]] = {
            **retrieve(index, encoder, tokenizer, texts, arguments.by, depth, progress.update)
        }
    told = encoder.counts.told(encoder.max_length)
    if reranker is not None:
        candidates = found[arguments.by]
        with Progress(sum(len(hits.documents) for hits in candidates), "rerank", unit="text") as progress:
            reranked = reranker.rerank(texts, candidates, index.documents, progress.update)
        found[f"{arguments.by}, reranked"] = reranked
        if arguments.rerank_by == "both":
            both = [fuse(rankings, depth) for rankings in zip(candidates, reranked, strict=True)]
            found[f"{arguments.by}, reranked and fused"] = both
        told += reranker.counts.told(reranker.max_length)
    for line in told:
        print(f"queries: {line}")
    return found


def _depth(arguments: argparse.Namespace) -> int:
    """How many documents of a ranking are found."""
    return max(arguments.top, arguments.candidates)


def _queries(arguments: argparse.Namespace) -> list[Record]:
    """Those of the command line, or of the file. Raises ValueError where some are needed and there is none."""
    for name in ("top", "candidates", "negatives"):
        if getattr(arguments, name) < 1:
            raise ValueError(f"--{name} {getattr(arguments, name)}: give 1 or more")
    if arguments.rerank_by != "model" and not arguments.rerank:
        raise ValueError(f"--rerank-by {arguments.rerank_by}: nothing reranks; give --rerank RUN2, or leave it out")
    if arguments.query and arguments.queries:
        raise ValueError(f"--queries {arguments.queries}: there are queries on the command line too; leave one out")
    if not arguments.queries:
        queries = [Record(str(number), text) for number, text in enumerate(arguments.query, 1)]
    else:
        queries = list(read_records([arguments.queries], arguments.query_field, ReadCounts()))
        if not queries:
            raise ValueError(f"--queries {arguments.queries}: not one query there")
    if arguments.training_pairs and not arguments.qrels:
        raise ValueError(f"--training-pairs {arguments.training_pairs}: they are made of judgements; give --qrels FILE")
    if arguments.training_pairs and arguments.output:
        raise ValueError(f"--output {arguments.output}: --training-pairs writes other files; leave one of them out")
    for option in ("output", "qrels"):
        if getattr(arguments, option) and not queries:
            raise ValueError(f"--{option} {getattr(arguments, option)}: it needs queries; give some, or --queries FILE")
    if len({query.id for query in queries}) < len(queries):
        raise ValueError(f"--queries {arguments.queries}: two queries have one id; give each its own")
    return queries


def _existing(arguments: argparse.Namespace) -> SearchIndex | None:
    """The index, None if it is yet to be made. Raises ValueError if it cannot be, or is of other documents."""
    if is_remote(arguments.index):
        raise ValueError(f"--index {arguments.index}: it is searched in files of this machine; name a folder here")
    folder = Path(arguments.index)
    if not has_index(folder):
        if not arguments.documents:
            raise ValueError(f"--index {folder}: it is not there yet; say what to make it of: --documents FILE ...")
        return None
    index = open_index(folder)
    if arguments.documents and (index.origin.files, index.origin.field) != _files(arguments):
        raise ValueError(
            f"--documents {' '.join(arguments.documents)}: index {folder} was made of others "
            f"({', '.join(name for name, _ in index.origin.files)}); name another --index, or leave --documents out"
        )
    return index


def _files(arguments: argparse.Namespace) -> tuple[list[list[str]], str | None]:
    return [[Path(path).name, sha256_of(path)] for path in arguments.documents], arguments.field


def _encoding(arguments: argparse.Namespace, index: SearchIndex | None) -> Encoding:
    """What texts become: what the index says, or else what was told. Raises ValueError if they differ."""
    told = told_encoding(arguments)
    if index is None:
        return Encoding(**{"normalize": True} | told)
    encoding = replace(index.origin.encoding, batch_tokens=told.pop("batch_tokens", None))
    for name, value in told.items():
        if getattr(encoding, name) != value:
            raise ValueError(
                f"{name}={value}: index {index.folder} was made with {name}={getattr(encoding, name)}; leave that "
                "out, or name another --index"
            )
    return encoding


def _built(arguments: argparse.Namespace, model: TrainedModel, encoder: TextEncoder, fingerprint: str) -> SearchIndex:
    """A new index, opened."""
    total = count_records(arguments.documents, arguments.field)
    folder, read = Path(arguments.index), ReadCounts()
    encoding = replace(encoder.encoding, max_length=encoder.max_length)
    origin = Origin(arguments.model, fingerprint, encoding, *_files(arguments))
    records = read_records(arguments.documents, arguments.field, read)
    with Progress(total, "index", unit="document") as progress:
        build_index(folder, encoder, model.tokenizer, records, origin, progress.update)
    counts = encoder.counts
    print(f"index {folder}: {counts.texts:,} documents with {counts.tokens:,} tokens, {encoder.width} numbers for each")
    if read.replaced_characters:
        print(f"{read.replaced_characters:,} characters were not UTF-8 and became U+FFFD")
    for line in counts.told(encoder.max_length):
        print(line)
    return open_index(folder)


def _named(queries: Sequence[Record], found: Sequence[Hits], documents: StoredDocuments) -> dict[str, list[str]]:
    """The ids of what was found, by the query's."""
    ids = {number: documents[number].id for number in {int(number) for hits in found for number in hits.documents}}
    return {
        query.id: [ids[number] for number in hits.documents.tolist()]
        for query, hits in zip(queries, found, strict=True)
    }


def _print_figures(rankings: dict[str, dict[str, list[str]]], judgements: Judgements, depth: int) -> None:
    figures = {way: evaluate(ranked, judgements, depth) for way, ranked in rankings.items()}
    queries = len(next(iter(rankings.values())))
    measured = next(iter(figures.values()))
    print(f"{measured.queries:,} of {queries:,} queries have relevant documents")
    rows = tuple(
        (way, *(f"{figure:.4f}" for figure in (of.ndcg, of.recall, of.reciprocal_rank, of.judged)))
        for way, of in figures.items()
    )
    ranked = measured.ranked
    columns = ("by", f"nDCG@{ranked}", f"recall@{measured.recalled}", f"MRR@{ranked}", f"judged@{ranked}")
    for line in text_lines(Table("", "", columns, rows)):
        print(line)


def _write_pairs(
    arguments: argparse.Namespace,
    queries: Sequence[Record],
    found: Sequence[Hits],
    judgements: Judgements,
    documents: StoredDocuments,
) -> None:
    folder = Path(arguments.training_pairs)
    counts = write_training_pairs(folder, queries, found, judgements, documents, arguments.negatives)
    if counts.missing:
        print(f"{counts.missing:,} judged documents are not in the index; they were left out")
    print(f"next: bertjax finetune pairs --init-from {arguments.model} --data {folder / PAIRS}")
    print(f"next: bertjax finetune relevance --init-from {arguments.model} --data {folder / RELEVANCE}")
    print(
        f"{counts.queries:,} queries with {counts.positives:,} passages that answer them and {counts.negatives:,} "
        f"that do not to {folder}"
    )


def _print_found(queries: Sequence[Record], found: Sequence[Hits], documents: StoredDocuments) -> None:
    width = shutil.get_terminal_size((120, 24)).columns
    for query, hits in zip(queries, found, strict=True):
        print(" ".join(query.whole.split()))
        rows = []
        for rank, (number, score) in enumerate(zip(*hits, strict=True), 1):
            record = documents[number]
            rows.append((str(rank), f"{score:.4f}", record.id, " ".join(record.whole.split())))
        for line in text_lines(Table("", "", ("", "score", "id", "text"), tuple(rows)), left=(2, 3)):
            print(line[:width])
        if not rows:
            print("  no document has a word of it")
