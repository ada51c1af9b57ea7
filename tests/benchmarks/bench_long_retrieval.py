"""Pass-key retrieval: how often an encoder finds the right one of many long synthetic documents, by length.

    python tests/benchmarks/bench_long_retrieval.py --folder DIR [--model hf:DIR] [--lengths 256 8192] [--documents 50]

As in LongEmbed (arXiv 2404.12096, section 3), each document is filler with one sentence about a person's pass key at a
random place, each query asks for one person's pass key, and all documents of a set have the same length in tokens.
Prints for each length how often the right document is ranked first by vectors and by BM25, the time for the index and
the queries, and the peak memory of the command. Without --model, a small network with ModernBERT's layers is trained
first: MLM on rows of whole documents, then pairs of queries and documents of up to --train-length tokens, with names
that do not occur in the test. Models and indexes stay in --folder and are reused.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
from race_record import require_same_commit

FILLER = (
    "the grass is green .",
    "the sky is blue .",
    "the sun is yellow .",
    "here we go .",
    "there and back again .",
)
FIRST = [a + b for a in ("ba", "do", "fe", "gi", "ka", "lu") for b in ("ra", "len", "mor", "tis", "vun")]
LAST = [a + b for a in ("har", "jes", "pol", "quin", "sor", "wex") for b in ("by", "dale", "ford", "man", "ton")]
NAMES = [f"{first} {last}" for first in FIRST for last in LAST]
RECIPE = """\
from bertjax.config import Config, DataConfig, ModelConfig, OptimizerConfig, TrainingConfig

SIZES = {"hidden_size": 64, "num_hidden_layers": 4, "num_attention_heads": 4, "intermediate_size": 96}
MODERN = {
    "type_vocab_size": 0, "norm_bias": False, "norm_place": "pre", "first_norm": False, "mlp": "glu",
    "attention_bias": "none", "mlp_bias": "none", "position_embedding": "rope", "rope_theta": 160_000.0,
    "rope_theta_local": 10_000.0, "window": 16, "global_every": 3, "pooler": "gelu_norm", "initializer": "scaled",
    "layer_norm_eps": 1e-5, "hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0,
}


def config() -> Config:
    return Config(
        name="passkeys",
        model=ModelConfig(family="modernbert", vocab_size=600, max_position_embeddings=8192, **SIZES, **MODERN),
        data=DataConfig(
            tokenizer="byte_bpe", special_tokens="[CLS]", vocab_size=600, held_out=0.05, split_documents="never",
            sequence_length=512, rows="documents", packing="pairs", pairs_per_row=32, mask_probability=0.3,
            mask_count="each", max_predictions=210,
        ),
        optimizer=OptimizerConfig(name="adamw", learning_rate=3e-3, warmup_steps=20),
        training=TrainingConfig(
            steps=STEPS, global_batch_size=8, objectives=("mlm",), eval_every=1000, eval_rows=16, log_every=20,
        ),
    )
"""


def document(draw: np.random.Generator, name: str, tokens: int) -> str:
    """Filler of about `tokens` tokens (words and full stops) with a sentence about a person's pass key."""
    needle = f"the pass key of {name} is {' '.join(map(str, draw.integers(10, size=4)))} ."
    sentences, remaining = [], tokens - 2 - len(needle.split())
    while remaining > 0:
        sentence = FILLER[draw.integers(len(FILLER))].split()[-remaining:]
        sentences.append(" ".join(sentence))
        remaining -= len(sentence)
    sentences.insert(int(draw.integers(len(sentences) + 1)), needle)
    return " ".join(sentences)


def write_lines(path: Path, rows: list[dict[str, str]]) -> Path:
    """Write the rows as JSON Lines."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def make_query(name: str) -> str:
    return f"what is the pass key of {name} ?"


def bertjax(*arguments: str) -> tuple[float, float]:
    """Run a command. Returns its seconds, and the peak memory of all commands so far in GiB. Raises if it fails."""
    started = time.monotonic()
    subprocess.run([sys.executable, "-m", "bertjax", *arguments], check=True, stdout=subprocess.DEVNULL)
    return time.monotonic() - started, resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 2**20


def train(folder: Path, names: list[str], arguments: argparse.Namespace) -> str:
    """Train a small encoder on documents about these names; returns its run directory."""
    start, run = folder / "start", folder / "encoder"
    draw = np.random.default_rng(1)
    pairs = []
    for number in range(arguments.pairs):
        name = names[number % len(names)]
        pairs.append(
            {"text": make_query(name), "text_b": document(draw, name, int(draw.integers(48, arguments.train_length)))}
        )
    train, dev = write_lines(folder / "train.jsonl", pairs[100:]), write_lines(folder / "dev.jsonl", pairs[:100])
    texts = [{"text": f"{pair['text_b']} {pair['text']}"} for pair in pairs]
    corpus = write_lines(folder / "corpus.jsonl", texts)
    (folder / "recipe.py").write_text(RECIPE.replace("STEPS", str(arguments.steps)))
    commands = [
        ("pretrain", str(folder / "recipe.py"), "--data.sources", f"jsonl:{corpus}", "--data.root",
         str(folder / "data"), "--run-dir", str(start)),
        ("finetune", "pairs", "--init-from", str(start), "--train", str(train), "--dev", str(dev), "--max-length",
         str(max(arguments.lengths)), "--batch-size", "32", "--learning-rate", "1e-3", "--epochs",
         str(arguments.epochs), "--run-dir", str(run)),
    ]  # fmt: skip
    for command in commands:
        seconds, _ = bertjax(*command)
        print(f"{command[0]}: {seconds:,.0f} s", flush=True)
    return str(run)


def share_first(results: Path, queries: list[dict[str, str]]) -> float:
    """The share of queries whose own document is ranked first."""
    first = [json.loads(line)["results"][0]["id"] for line in results.read_text().splitlines()]
    return sum(one == query["_id"] for one, query in zip(first, queries, strict=True)) / len(queries)


def main() -> None:
    """Print a line for each length."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, required=True, metavar="DIR")
    parser.add_argument("--model", metavar="RUN", help="a run, hf:DIR or tf1:DIR (default: train one)")
    parser.add_argument("--lengths", type=int, nargs="+", default=[256, 512, 1024, 2048, 4096, 8192])
    parser.add_argument("--documents", type=int, default=50, help="number of documents of each length (%(default)s)")
    parser.add_argument("--train-length", type=int, default=512)
    parser.add_argument("--steps", type=int, default=200, help="steps of pretraining (%(default)s)")
    parser.add_argument("--pairs", type=int, default=6_000, help="number of training pairs (%(default)s)")
    parser.add_argument("--epochs", type=float, default=2)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    require_same_commit(arguments.folder)  # existing runs and indexes are reused
    names = list(np.random.default_rng(0).permutation(NAMES))
    model = arguments.model or train(arguments.folder, names[arguments.documents :], arguments)
    print("tokens  first by vectors  by BM25  seconds  peak GiB")
    for length in sorted(arguments.lengths):
        draw, folder = np.random.default_rng(length), arguments.folder / str(length)
        queries = [{"_id": str(n), "text": make_query(name)} for n, name in enumerate(names[: arguments.documents])]
        rows = [
            {"_id": str(n), "text": document(draw, name, length)} for n, name in enumerate(names[: arguments.documents])
        ]
        files = write_lines(folder / "documents.jsonl", rows), write_lines(folder / "queries.jsonl", queries)
        shares, spent = [], 0.0
        for by in ("vectors", "bm25"):
            results = folder / f"{by}.jsonl"
            seconds, peak = bertjax(
                *("search", model, "--index", str(folder / "index"), "--documents", str(files[0]), "--queries"),
                *(str(files[1]), "--by", by, "--top", "1", "--max-length", str(length), "--output", str(results)),
            )
            shares.append(share_first(results, queries))
            spent += seconds
        print(f"{length:6,}  {shares[0]:16.0%}  {shares[1]:7.0%}  {spent:7.1f}  {peak:8.2f}", flush=True)


if __name__ == "__main__":
    main()
