"""Gain of an encoder's vectors from plain text: STS-B and Cranfield, before and after `finetune vectors`.

    python tests/benchmarks/bench_vectors.py --model RUN --data DATA --folder DIR [--task denoising] \
        [--positives RULE ...] [--text wikipedia|stsb] [--examples N] [--max-length N] [--learning-rate X] \
        [--layer-decay X] [--dropout X]

For mean-pooled vectors, prints Spearman's correlation of cosines with the scores of STS-B's development set, and
nDCG@10 and recall@100 on Cranfield: before and after training on pairs made from text, with the seconds of the
training. `--task denoising` trains with `finetune denoising`. The text is Wikipedia, or the sentences of STS-B's
training set; training does not read scores or judgements. DATA has glue/STS-B, retrieval/cranfield and wikipedia_en.

The line `whitened` is STS-B by untrained vectors, whitened by the vectors of 4,000 sentences of STS-B's training set
(Su et al. 2021). This linear map shows how much of the figure is due to the geometry of the vectors.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "search"))
from cranfield import write_beir

import bertjax
from bertjax.finetune.metrics.classification import spearman
from bertjax.finetune.tasks import TASKS
from bertjax.search.evaluation import evaluate
from bertjax.search.records import read_judgements, read_records
from bertjax.storage.utf8 import ReadCounts


def sts_and_cranfield(model: str, data: Path, beir: Path) -> tuple[float, float, float]:
    """(Spearman on STS-B, nDCG@10 and recall@100 on Cranfield) for mean-pooled vectors."""
    loaded = bertjax.load(model)

    def encode(texts: list[str]) -> np.ndarray:
        return loaded.encode(texts, pooling="mean", normalize=True)

    examples = TASKS["stsb"].read(data / "glue", "dev", print)
    first, second = (encode([one.texts[side] for one in examples]) for side in (0, 1))
    correlation = spearman((first * second).sum(1), np.array([one.label for one in examples], np.float64))
    documents, queries = (
        list(read_records([str(beir / f"{name}.jsonl")], None, ReadCounts())) for name in ("corpus", "queries")
    )
    scores = encode([query.whole for query in queries]) @ encode([document.whole for document in documents]).T
    best = np.argsort(-scores, axis=1)[:, :100]
    rankings = {query.id: [documents[n].id for n in row] for query, row in zip(queries, best, strict=True)}
    figures = evaluate(rankings, read_judgements(str(beir / "qrels.tsv")))
    return correlation, figures.ndcg, figures.recall


def whitened_sts(model: str, data: Path) -> float:
    """Spearman on STS-B for mean-pooled vectors, whitened by their covariance over other sentences."""
    loaded = bertjax.load(model)
    dev, train = (TASKS["stsb"].read(data / "glue", split, print) for split in ("dev", "train"))
    texts = sorted({text for example in train for text in example.texts})[:4000]
    vectors = loaded.encode(texts, pooling="mean").astype(np.float64)
    mean = vectors.mean(0)
    _, sizes, directions = np.linalg.svd(vectors - mean, full_matrices=False)
    whiten = directions.T / (sizes / np.sqrt(len(texts)) + 1e-6)
    sides = [(loaded.encode([one.texts[side] for one in dev], pooling="mean") - mean) @ whiten for side in (0, 1)]
    first, second = (side / np.linalg.norm(side, axis=1, keepdims=True) for side in sides)
    return spearman((first * second).sum(1), np.array([one.label for one in dev], np.float64))


def write_sts_sentences(data: Path, folder: Path) -> str:
    """Write the sentences of STS-B's training set, one per line; returns the source."""
    examples = TASKS["stsb"].read(data / "glue", "train", print)
    file = folder / "sentences.txt"
    file.write_text("\n\n".join(sorted({text for one in examples for text in one.texts})) + "\n", encoding="utf-8")
    return f"text:{file}"


def main() -> None:
    """Print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, metavar="RUN", help="a run, hf:DIR or tf1:DIR")
    parser.add_argument("--data", type=Path, required=True, metavar="DATA", help="folder of the collections")
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR", help="folder for the data and the runs")
    parser.add_argument(
        "--text", choices=("wikipedia", "stsb"), default="wikipedia", help="text of training (%(default)s)"
    )
    parser.add_argument("--files", default="AA_00", help="file of wikipedia_en (%(default)s)")
    parser.add_argument("--task", choices=("vectors", "denoising"), default="vectors")
    parser.add_argument("--positives", nargs="+", default=[], help="rules for pairs (default: by task and model)")
    parser.add_argument("--examples", type=int, default=60_000, help="training pairs (%(default)s)")
    parser.add_argument("--max-length", type=int, default=64, help="maximum tokens of a training text (%(default)s)")
    parser.add_argument("--learning-rate", type=float, default=3e-4)
    parser.add_argument("--layer-decay", type=float, default=1.0, help="see the key task.layer_decay")
    parser.add_argument("--dropout", type=float, help="dropout (default: the model's; 0.1 for the rule dropout)")
    arguments = parser.parse_args()
    rate = 0.1 if arguments.dropout is None and "dropout" in arguments.positives else arguments.dropout
    rates = {} if rate is None else dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), rate)
    beir = write_beir(arguments.data / "retrieval" / "cranfield", arguments.folder / "beir")
    source = f"wikiextractor:{arguments.data}/wikipedia_en/{arguments.files}.txt.xz"
    if arguments.text == "stsb":
        source = write_sts_sentences(arguments.data, arguments.folder)
    parts = [arguments.task, *arguments.positives, arguments.text]
    parts += [f"{number:g}" for number in (arguments.learning_rate, arguments.layer_decay)]
    options = bertjax.FinetuneOptions(
        from_text=(source,),
        positives=arguments.positives,
        learning_rates=(arguments.learning_rate,),
        max_length=arguments.max_length,
        run_dir=arguments.folder / "-".join(parts),
        keys={"task.examples": arguments.examples, "task.layer_decay": arguments.layer_decay}
        | {f"model.{name}": value for name, value in rates.items()},
    )
    before = sts_and_cranfield(arguments.model, arguments.data, beir)
    print("before: STS-B {:.4f}, Cranfield nDCG@10 {:.4f} recall@100 {:.4f}".format(*before), flush=True)
    print(f"whitened: STS-B {whitened_sts(arguments.model, arguments.data):.4f}", flush=True)
    start, cpu = time.perf_counter(), time.process_time()
    tuned = bertjax.finetune(arguments.task, arguments.model, options)
    seconds = f"{time.perf_counter() - start:.0f} s, {time.process_time() - cpu:.0f} s of CPU time"
    after = sts_and_cranfield(tuned.directory, arguments.data, beir)
    print("after:  STS-B {:.4f}, Cranfield nDCG@10 {:.4f} recall@100 {:.4f}".format(*after), seconds)


if __name__ == "__main__":
    main()
