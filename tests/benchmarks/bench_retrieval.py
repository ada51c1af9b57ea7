"""How well an encoder finds the documents of the Cranfield collection, beside BM25, before and after reranking.

    python tests/benchmarks/bench_retrieval.py --model hf:DIR --data DATA --folder DIR [--max-length 256] [--train]

Prints nDCG@10, recall@100 and MRR@10 of `bertjax search` for vectors, BM25 and both fused, with the document of each
query whose code the collection does not explain taken for the best, and without it; then the same of BM25 over English
stems without stop words, as Lucene's English analyzer has its terms. With --train, two queries in three have their
judgements train an encoder and a reranker, and the figures are those of the third: untrained, trained, and reranked.
They are too few to teach an encoder of single texts to compare two at all: the reranker learns that first, from how
like each other the sentences of STS-B are, and from questions and the sentences that answer them (QNLI).
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
from bertjax.search.bm25 import Bm25, PostingsWriter
from bertjax.search.evaluation import evaluate
from bertjax.search.records import read_judgements, read_records
from bertjax.text.documents import ReadCounts

# Lucene's EnglishAnalyzer.ENGLISH_STOP_WORDS_SET
STOP_WORDS = re.findall(
    r"\w+",
    """a an and are as at be but by for if in into is it no not of on or such that the their then there these they this
    to was will with""",
)


def stemmed(data: Path) -> dict[str, list[str]]:
    """The ids of the best 100 documents for each query, by BM25 over stems."""
    stem, numbers = SnowballStemmer("english").stem, {}

    def terms(text: str) -> np.ndarray:
        words = [word for word in re.findall(r"\w+", text.lower()) if word not in STOP_WORDS]
        return np.array([numbers.setdefault(stem(word), len(numbers)) for word in words], np.int64)

    documents, queries = (
        list(read_records([str(data / f"{name}.jsonl")], None, ReadCounts())) for name in ("corpus", "queries")
    )
    asked, known = [terms(query.whole) for query in queries], [terms(document.whole) for document in documents]
    with tempfile.TemporaryDirectory() as folder:
        writer = PostingsWriter(Path(folder), len(numbers))
        for one in known:
            writer.add(one)
        writer.finish()
        postings = Bm25(Path(folder), len(documents))
        found = [postings.search(one, 100).documents for one in asked]
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
    search = ["--documents", str(data / "corpus.jsonl"), "--max-length", arguments.max_length, "--by", "both"]
    queries = [*search, "--queries", str(data / "queries.jsonl")]
    by_stems = stemmed(data)
    for name in ("qrels.tsv", "without_unexplained.tsv"):
        print(f"\n{name}")
        assert bertjax(["search", arguments.model, *index, *queries, "--qrels", str(data / name)]) == 0
        figures = evaluate(by_stems, read_judgements(str(data / name)))
        print(f"  BM25 of English stems: {figures.ndcg:.4f} {figures.recall:.4f} {figures.reciprocal_rank:.4f}")
    if arguments.train:
        train(arguments, data, index, search)


def train(arguments: argparse.Namespace, data: Path, index: list[str], search: list[str]) -> None:
    """Train on the one part of the queries, and print the figures of the other."""
    folder, rows = arguments.folder, ["--max-length", arguments.max_length]
    made, encoder, alike, answering, reranker = (
        str(folder / name) for name in ("made", "encoder", "alike", "answering", "reranker")
    )
    of_train, of_test = (
        [*search, "--queries", str(data / f"{queries}.jsonl"), "--qrels", str(data / f"{name}.tsv")]
        for queries, name in (("queries", "train"), ("test_queries", "test"))
    )
    subsets, glue = arguments.data / "glue_subsets", str(arguments.data / "glue")
    qnli = str(write_qnli(subsets, folder / "qnli"))
    small = ["--learning-rate", "5e-5", "--batch-size", "16", "--max-length", "128"]
    once = [*small, "--epochs", "1"]
    commands = [
        ["search", arguments.model, *index, *of_train, "--training-pairs", made, "--negatives", "2"],
        ["finetune", "pairs", "--init-from", arguments.model, "--data", f"{made}/pairs", *rows, "--run-dir", encoder],
        ["finetune", "stsb", "--init-from", arguments.model, "--data", glue, *small, "--epochs", "2",
         "--run-dir", alike],
        ["finetune", "relevance", "--init-from", alike, "--data", qnli, *once, "--run-dir", answering],
        ["finetune", "relevance", "--init-from", answering, "--data", f"{made}/relevance", *once,
         "--run-dir", reranker],
        ["search", arguments.model, *index, *of_test, "--rerank", reranker],
        ["search", encoder, "--index", str(folder / "trained"), *of_test, "--rerank", reranker],
    ]  # fmt: skip
    for command in commands:
        print(f"\nbertjax {' '.join(command)}", flush=True)
        assert bertjax(command) == 0


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
