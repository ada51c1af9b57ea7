"""How well an encoder finds the documents of the Cranfield collection, beside BM25, before and after reranking.

    python tests/benchmarks/bench_retrieval.py --model hf:DIR --data DATA --folder DIR [--max-length 256] [--train]

Prints nDCG@10, recall@100 and MRR@10 of `bertjax search` for vectors, BM25 and both fused, with the document of each
query whose code the collection does not explain taken for the best, and without it; then the same of BM25 over English
stems without stop words, as Lucene's English analyzer has its terms. With --train, two queries in three have their
judgements train an encoder and a reranker, and the figures are those of the third: untrained, trained, and reranked.
They are too few to teach an encoder of single texts to compare two at all: the reranker learns that first, from how
like each other the sentences of STS-B are, from questions and the sentences that answer them (QNLI), and from which
title belongs to which abstract.
DATA has retrieval/cranfield, glue/ and glue_subsets/QNLI. What was made stays in --folder, and is not made again.
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


def stemmed(data: Path) -> dict[str, list[str]]:
    """The ids of the best 100 documents for each query, by BM25 over stems."""
    stem, numbers = SnowballStemmer("english").stem, {}

    def terms(text: str) -> list[int]:
        words = [word for word in re.findall(r"\w+", text.lower()) if word not in STOP_WORDS]
        return [numbers.setdefault(stem(word), len(numbers)) for word in words]

    documents, queries = (
        list(read_records([str(data / f"{name}.jsonl")], None, ReadCounts())) for name in ("corpus", "queries")
    )
    query_terms, known = [terms(query.whole) for query in queries], [terms(document.whole) for document in documents]
    with tempfile.TemporaryDirectory() as folder:
        write_bm25(Path(folder), known, len(numbers))
        index = Bm25(Path(folder))
        found = [index.search(np.array(one, int), 100).documents for one in query_terms]
    return {query.id: [documents[n].id for n in hits] for query, hits in zip(queries, found, strict=True)}


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, metavar="RUN", help="a run, hf:DIR or tf1:DIR")
    parser.add_argument("--data", type=Path, required=True, metavar="DATA", help="where the collections are")
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="for the data and the index")
    parser.add_argument("--max-length", default="256", help="tokens of a row (%(default)s)")
    parser.add_argument("--train", action="store_true", help="also train an encoder and a reranker")
    arguments = parser.parse_args()
    data = write_beir(arguments.data / "retrieval" / "cranfield", arguments.folder / "beir")
    index = ["--index", str(arguments.folder / "index")]
    how = ["--max-length", arguments.max_length, "--by", "both"]
    search = ["--documents", str(data / "corpus.jsonl"), *how]
    queries = [*search, "--queries", str(data / "queries.jsonl")]
    by_stems = stemmed(data)
    for name in ("qrels.tsv", "without_unexplained.tsv"):
        print(f"\n{name}")
        assert bertjax(["search", arguments.model, *index, *queries, "--qrels", str(data / name)]) == 0
        figures = evaluate(by_stems, read_judgements(str(data / name)))
        print(f"  BM25 of English stems: {figures.ndcg:.4f} {figures.recall:.4f} {figures.reciprocal_rank:.4f}")
    if arguments.train:
        train(arguments, data, index, how)


def train(arguments: argparse.Namespace, data: Path, index: list[str], how: list[str]) -> None:
    """Train on the one part of the queries, and print the figures of the other."""
    model, folder, glue = arguments.model, arguments.folder, arguments.data / "glue"
    made, titles, encoder, alike, answering, titled, reranker = (
        str(folder / name) for name in ("made", "titles", "encoder", "alike", "answering", "titled", "reranker")
    )
    of_train, of_test = (
        [*how, *_files(documents=data / "corpus.jsonl", queries=data / queries, qrels=data / judgements)]
        for queries, judgements in (("queries.jsonl", "train.tsv"), ("test_queries.jsonl", "test.tsv"))
    )
    rerank = [*of_test, "--rerank", reranker, "--rerank-by", "both", "--candidates", "20"]
    qnli = str(write_qnli(arguments.data / "glue_subsets", folder / "qnli"))
    of_titles = write_titles(data / "corpus.jsonl", folder / "beir_of_titles")
    commands = [
        _pairs(model, [*index, *of_train], made),
        ["finetune", "pairs", "--init-from", model, "--data", f"{made}/pairs", "--max-length", arguments.max_length,
         "--run-dir", encoder],
        _pairs(model, ["--index", f"{titles}/index", *of_titles, *how], titles),
        _reranker("stsb", model, str(glue), alike, epochs=2),
        _reranker("relevance", alike, qnli, answering),
        _reranker("relevance", answering, f"{titles}/relevance", titled),
        _reranker("relevance", titled, f"{made}/relevance", reranker, rate="2e-5"),
        ["search", model, *index, *rerank],
        ["search", encoder, "--index", str(folder / "trained"), *rerank],
    ]  # fmt: skip
    for command in commands:
        print(f"\nbertjax {' '.join(command)}", flush=True)
        assert bertjax(command) == 0


def _pairs(model: str, search: list[str], made: str) -> list[str]:
    return ["search", model, *search, "--training-pairs", made, "--negatives", "2"]


def _reranker(task: str, start: str, data: str, run: str, epochs: int = 1, rate: str = "5e-5") -> list[str]:
    recipe = ["--learning-rate", rate, "--batch-size", "16", "--max-length", "128", "--epochs", str(epochs)]
    return ["finetune", task, "--init-from", start, "--data", data, *recipe, "--run-dir", run]


def write_titles(corpus: Path, folder: Path) -> list[str]:
    """The titles of documents as queries for what is below them, which takes no judgement; the options of a search."""
    folder.mkdir(parents=True, exist_ok=True)
    records = [json.loads(line) for line in corpus.read_text().splitlines()]
    titled = [record for record in records if record["title"] and record["text"]]
    bodies = [{"_id": record["_id"], "text": record["text"]} for record in titled]
    titles = [{"_id": record["_id"], "text": record["title"]} for record in titled]
    for name, rows in (("bodies", bodies), ("titles", titles)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    judged = "".join(f"{record['_id']}\t{record['_id']}\t1\n" for record in titled)
    (folder / "qrels.tsv").write_text("query-id\tcorpus-id\tscore\n" + judged)
    return _files(documents=folder / "bodies.jsonl", queries=folder / "titles.jsonl", qrels=folder / "qrels.tsv")


def _files(**options: Path) -> list[str]:
    return [part for option, path in options.items() for part in (f"--{option}", str(path))]


def write_qnli(glue: Path, folder: Path) -> Path:
    """QNLI as the data of `relevance`: a question, a sentence, and whether the one answers the other; the folder."""
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
