"""Results of `bertjax search`: printed, evaluated against judgements, or written as training pairs."""

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
    queries: Sequence[Record], results: Sequence[Hits], documents: StoredDocuments
) -> dict[str, list[str]]:
    """Map query ids to document ids, best first."""
    ids = {number: documents[number].id for number in {int(number) for hits in results for number in hits.documents}}
    return {
        query.id: [ids[number] for number in hits.documents.tolist()]
        for query, hits in zip(queries, results, strict=True)
    }


def print_figures(rankings: dict[str, dict[str, list[str]]], judgements: Judgements, depth: int) -> None:
    """Print a table of each ranking's figures."""
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
    results: Sequence[Hits],
    judgements: Judgements,
    documents: StoredDocuments,
    negatives: int,
) -> None:
    """Write training data made from judgements, and print the commands that train on it."""
    folder = Path(arguments.training_pairs)
    model = shlex.quote(arguments.model)
    counts = write_training_pairs(folder, queries, results, judgements, documents, negatives)
    if counts.missing:
        print(f"{counts.missing:,} relevant documents are not in the index and were left out")
    if counts.without_negatives:
        print(f"{counts.without_negatives:,} relevant passages have no negative and were left out of {folder / PAIRS}")
    columns = " --text text text_b negatives" if counts.negatives else ""
    print(f"next: bertjax finetune pairs --init-from {model} --data {shlex.quote(str(folder / PAIRS))}{columns}")
    print(f"next: bertjax finetune relevance --init-from {model} --data {shlex.quote(str(folder / RELEVANCE))}")
    print(
        f"{folder}: {counts.queries:,} queries with {counts.positives:,} relevant passages and "
        f"{counts.negatives:,} hard negatives"
    )


def print_results(queries: Sequence[Record], results: Sequence[Hits], documents: StoredDocuments) -> None:
    """Print the results of each query, one document a line."""
    width = shutil.get_terminal_size((120, 24)).columns
    for query, hits in zip(queries, results, strict=True):
        print(" ".join(query.whole.split()))
        rows = []
        for rank, (number, score) in enumerate(zip(*hits, strict=True), 1):
            record = documents[number]
            rows.append((str(rank), f"{score:.4f}", record.id, " ".join(filter(None, record.lines()))))
        for line in text_lines(Table("", "", ("", "score", "id", "text"), tuple(rows)), left=(2, 3)):
            print(line[:width])
        if not rows:
            print("  no document shares a word with the query")
