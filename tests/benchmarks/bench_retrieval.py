"""Retrieval on the Cranfield collection by an encoder, compared with BM25, before and after reranking.

    python tests/benchmarks/bench_retrieval.py --model hf:DIR --data DATA --folder DIR [--max-length 256] [--train]

Prints nDCG@10, recall@100 and MRR@10 of `bertjax search` for vectors, BM25 and both fused. Each query has one judgement
with an undocumented code; the figures are computed with that document as the best one, and without it. Also prints the
figures of BM25 over English stems without stop words, like Lucene's English analyzer. --train trains an encoder and a
reranker on the judgements of two thirds of the queries, and prints the figures of the rest: untrained, trained, and
reranked. These judgements are too few to teach an encoder of single texts to compare two texts, so the reranker first
learns from the similarities of STS-B, from questions and answers (QNLI), and from titles and their abstracts.
DATA has retrieval/cranfield, glue/ and glue_subsets/QNLI. Results stay in --folder and are reused.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
from pathlib import Path

import numpy as np
from nltk.stem import SnowballStemmer

sys.path.insert(0, str(Path(__file__).parent.parent / "search"))
from cranfield import write_beir

from bertjax.__main__ import main as bertjax
from bertjax.finetune.tasks import TASKS
from bertjax.search.bm25 import Bm25, write_bm25
from bertjax.search.evaluation import evaluate
from bertjax.search.records import read_judgements, read_records
from bertjax.storage.utf8 import ReadCounts

# Lucene's EnglishAnalyzer.ENGLISH_STOP_WORDS_SET
STOP_WORDS = re.findall(
    r"\w+",
    """a an and are as at be but by for if in into is it no not of on or such that the their then there these they this
    to was will with""",
)


def rank_by_stems(data: Path) -> dict[str, list[str]]:
    """The ids of each query's best 100 documents, by BM25 over stems."""
    stem, numbers = SnowballStemmer("english").stem, {}

    def terms(text: str) -> list[int]:
        words = [word for word in re.findall(r"\w+", text.lower()) if word not in STOP_WORDS]
        return [numbers.setdefault(stem(word), len(numbers)) for word in words]

    documents, queries = (
        list(read_records([str(data / f"{name}.jsonl")], None, ReadCounts())) for name in ("corpus", "queries")
    )
    query_terms = [terms(query.whole) for query in queries]
    document_terms = [terms(document.whole) for document in documents]
    with tempfile.TemporaryDirectory() as folder:
        write_bm25(Path(folder), document_terms, len(numbers))
        index = Bm25(Path(folder))
        results = [index.search(np.array(one, int), 100).documents for one in query_terms]
    return {query.id: [documents[n].id for n in hits] for query, hits in zip(queries, results, strict=True)}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, metavar="RUN", help="a run, hf:DIR or tf1:DIR")
    parser.add_argument("--data", type=Path, required=True, metavar="DATA", help="folder of the collections")
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="folder for the data and the index")
    parser.add_argument("--max-length", default="256", help="maximum tokens of a row (%(default)s)")
    parser.add_argument("--train", action="store_true", help="also train an encoder and a reranker")
    arguments = parser.parse_args()
    data = write_beir(arguments.data / "retrieval" / "cranfield", arguments.folder / "beir")
    index = ["--index", str(arguments.folder / "index")]
    options = ["--max-length", arguments.max_length, "--by", "both"]
    search = ["--documents", str(data / "corpus.jsonl"), *options]
    queries = [*search, "--queries", str(data / "queries.jsonl")]
    rankings = rank_by_stems(data)
    for name in ("qrels.tsv", "without_unexplained.tsv"):
        print(f"\n{name}")
        assert bertjax(["search", arguments.model, *index, *queries, "--qrels", str(data / name)]) == 0
        figures = evaluate(rankings, read_judgements(str(data / name)))
        print(f"  BM25 of English stems: {figures.ndcg:.4f} {figures.recall:.4f} {figures.reciprocal_rank:.4f}")
    if arguments.train:
        train(arguments, data, index, options)


def train(arguments: argparse.Namespace, data: Path, index: list[str], options: list[str]) -> None:
    """Train on one part of the queries, and print the figures of the other."""
    model, folder, glue = arguments.model, arguments.folder, arguments.data / "glue"
    pairs, titles, encoder, alike, answering, titled, reranker = (
        str(folder / name) for name in ("pairs", "titles", "encoder", "alike", "answering", "titled", "reranker")
    )
    train_options, test_options = (
        [*options, *_files(documents=data / "corpus.jsonl", queries=data / queries, qrels=data / judgements)]
        for queries, judgements in (("queries.jsonl", "train.tsv"), ("test_queries.jsonl", "test.tsv"))
    )
    rerank = [*test_options, "--rerank", reranker, "--rerank-by", "both", "--candidates", "20"]
    qnli = str(write_qnli(arguments.data / "glue_subsets", folder / "qnli"))
    title_files = write_titles(data / "corpus.jsonl", folder / "beir_titles")
    commands = [
        _pairs(model, [*index, *train_options], pairs),
        ["finetune", "pairs", "--init-from", model, "--data", f"{pairs}/pairs", "--max-length", arguments.max_length,
         "--run-dir", encoder],
        _pairs(model, ["--index", f"{titles}/index", *title_files, *options], titles),
        _reranker("stsb", model, str(glue), alike, epochs=2),
        _reranker("relevance", alike, qnli, answering),
        _reranker("relevance", answering, f"{titles}/relevance", titled),
        _reranker("relevance", titled, f"{pairs}/relevance", reranker, rate="2e-5"),
        ["search", model, *index, *rerank],
        ["search", encoder, "--index", str(folder / "trained"), *rerank],
    ]  # fmt: skip
    for command in commands:
        print(f"\nbertjax {' '.join(command)}", flush=True)
        assert bertjax(command) == 0


def _pairs(model: str, search: list[str], target: str) -> list[str]:
    return ["search", model, *search, "--training-pairs", target, "--negatives", "2"]


def _reranker(task: str, start: str, data: str, run: str, epochs: int = 1, rate: str = "5e-5") -> list[str]:
    recipe = ["--learning-rate", rate, "--batch-size", "16", "--max-length", "128", "--epochs", str(epochs)]
    return ["finetune", task, "--init-from", start, "--data", data, *recipe, "--run-dir", run]


def write_titles(corpus: Path, folder: Path) -> list[str]:
    """Write documents' titles as queries for their texts, which needs no judgements; returns options for a search."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [json.loads(line) for line in corpus.read_text().splitlines()]
    records = [record for record in records if record["title"] and record["text"]]
    bodies = [{"_id": record["_id"], "text": record["text"]} for record in records]
    titles = [{"_id": record["_id"], "text": record["title"]} for record in records]
    for name, rows in (("bodies", bodies), ("titles", titles)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judgements = "".join(f"{record['_id']}\t{record['_id']}\t1\n" for record in records)
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + judgements)
    return _files(documents=folder / "bodies.jsonl", queries=folder / "titles.jsonl", qrels=folder / "qrels.tsv")


def _files(**options: Path) -> list[str]:
    return [part for option, path in options.items() for part in (f"--{option}", str(path))]


def write_qnli(glue: Path, folder: Path) -> Path:
    """Write QNLI as data for the task `relevance` (question, sentence, is an answer); returns the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for name in ("train", "dev"):
        rows = [
            dict(zip(("text", "text_b"), example.texts, strict=True), label=int(example.label == "entailment"))
            for example in TASKS["qnli"].read(glue, name, print)
        ]
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return folder


if __name__ == "__main__":
    main()
