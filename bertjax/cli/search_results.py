"""What `bertjax search` found: printed, measured against judgements, or written as training pairs."""

from __future__ import annotations

import argparse
import shlex
import shutil
from collections.abc import Sequence
from pathlib import Path

from bertjax.report.page import Table, text_lines
from bertjax.search.evaluation import evaluate
from bertjax.search.rankings import Hits
from bertjax.search.records import Judgements, Record, StoredDocuments
from bertjax.search.training_pairs import PAIRS, RELEVANCE, write_training_pairs


def named_rankings(
    queries: Sequence[Record], found: Sequence[Hits], documents: StoredDocuments
) -> dict[str, list[str]]:
    """Query id -> ids of the documents found, best first."""
    ids = {number: documents[number].id for number in {int(number) for hits in found for number in hits.documents}}
    return {
        query.id: [ids[number] for number in hits.documents.tolist()]
        for query, hits in zip(queries, found, strict=True)
    }


def print_figures(rankings: dict[str, dict[str, list[str]]], judgements: Judgements, depth: int) -> None:
    """Print the figures of each ranking against the judgements, as a table."""
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


def write_pairs(
    arguments: argparse.Namespace,
    queries: Sequence[Record],
    found: Sequence[Hits],
    judgements: Judgements,
    documents: StoredDocuments,
) -> None:
    """Write training data made from the judgements, and print the commands that train on it."""
    folder = Path(arguments.training_pairs)
    model = shlex.quote(arguments.model)
    counts = write_training_pairs(folder, queries, found, judgements, documents, arguments.negatives)
    if counts.missing:
        print(f"{counts.missing:,} judged documents are not in the index; they were left out")
    print(f"next: bertjax finetune pairs --init-from {model} --data {shlex.quote(str(folder / PAIRS))}")
    print(f"next: bertjax finetune relevance --init-from {model} --data {shlex.quote(str(folder / RELEVANCE))}")
    print(
        f"{counts.queries:,} queries with {counts.positives:,} passages that answer them and {counts.negatives:,} "
        f"that do not to {folder}"
    )


def print_found(queries: Sequence[Record], found: Sequence[Hits], documents: StoredDocuments) -> None:
    """Print the documents found for each query, a line each."""
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
            print("  no document has a word of the query")
