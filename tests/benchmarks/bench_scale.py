"""What a host pays for the size of its text: start, memory and first batch on stores of growing size.

python tests/benchmarks/bench_scale.py --tokens 0.05 0.5 1

Makes a store of each size (billions of tokens) of made-up text, 2.4 GB on disk for a billion, and removes it
afterwards. A fresh process then starts a run on it, by the stages of the ModernBERT recipe, up to the first batch of
each kind of stage, as one of many hosts: 64 rows of 1,024 tokens, 16 of 8,192. Ends with the growth from the second to
the last size, and with what the slope makes of 2 trillion tokens. Stores that are there already are used with --stores.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import numpy as np

from bertjax.config import load_recipe
from bertjax.input.training_data import StoredText
from bertjax.text.store.format import TokenStore
from bertjax.text.store.writer import ShardWriter, finish_store
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import WordPiece
from bertjax.training.evaluate import unigram_baseline
from bertjax.training.stages import stages_of

FAR = 2e12  # tokens that are extrapolated to
SHARD_TOKENS = 60_000_000
HELD_OUT = 100  # one of so many documents
DOCUMENT, SENTENCE = 1_000, 23.5  # tokens, on average, of web text
VOCABULARY = 30_000
ROWS = {1_024: 64, 8_192: 16}  # of a host


def make_store(path: Path, tokens: int) -> None:
    """A store of made-up text: documents and sentences of log-normal lengths, ids drawn alike."""
    tokenizer = WordPiece(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(VOCABULARY))], TextRules(True, True)
    )
    partial = path.with_name(f"{path.name}.partial")
    partial.mkdir(parents=True)
    draw = np.random.default_rng(0)
    shards: dict[str, list[dict]] = {"train": [], "held_out": []}
    for number in range(-(-tokens // SHARD_TOKENS)):
        left = min(SHARD_TOKENS, tokens - number * SHARD_TOKENS)
        for split, size in (("train", left - left // HELD_OUT), ("held_out", left // HELD_OUT)):
            writer = ShardWriter(partial, f"{split}-{number:05}", tokenizer.vocab_size)
            while size > 0:
                chunk = min(size, 4_000_000)
                lengths = np.maximum(draw.lognormal(np.log(20), 0.6, max(round(chunk / SENTENCE), 1)), 1).astype(
                    np.int64
                )
                sizes = draw.lognormal(np.log(DOCUMENT / SENTENCE) - 0.5, 1.0, round(2 * chunk / DOCUMENT) + 1)
                ends = np.cumsum(np.maximum(sizes, 1).astype(np.int64))
                sizes = np.diff(np.append(np.append(0, ends[ends < len(lengths)]), len(lengths)))
                ids = draw.integers(5, VOCABULARY, int(lengths.sum()), dtype=np.uint16)
                writer.add(ids, lengths, sizes, np.zeros(len(sizes), bool))
                size -= len(ids)
            shards[split].append(writer.finish())
    finish_store(partial, path, shards, tokenizer, {})


def measure(path: Path) -> dict[str, float]:
    """Start a run on a store up to the first batch of each kind of stage."""
    config = load_recipe("modernbert")
    stages = stages_of(replace(config, data=replace(config.data, sources=("text:none",))))
    figures: dict[str, float] = {}
    began, wall = time.process_time(), time.monotonic()
    store = TokenStore.open(path)
    content = StoredText(store, ("mlm",))
    unigram_baseline(content.held_out_text(), content.tokenizer.vocab_size)
    batches = [content.train(stage.data, stage.seed, stage.training.objectives) for stage in stages]
    for one in batches:
        assert one.estimated_rows > 0
    figures["start, s"] = time.process_time() - began
    figures["start, s of the clock"] = time.monotonic() - wall
    first_of_length = {stage.data.sequence_length: one for stage, one in zip(stages, batches, strict=True)}
    for length, one in first_of_length.items():
        began = time.process_time()
        one.batch(0, ROWS[length])
        figures[f"first batch of {length:,}, s"] = time.process_time() - began
    figures["memory, MB"] = _anonymous_bytes() / 1e6
    began = time.process_time()
    evaluation = content.held_out(stages[0].data, 0, stages[0].training.objectives)
    evaluation["eval"].batch(0, ROWS[1_024])
    figures["first evaluation batch, s"] = time.process_time() - began
    return figures


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def main() -> None:
    """Print the table of growth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=float, nargs="+", default=[0.05, 0.5, 1.0], help="billions, ascending")
    parser.add_argument("--stores", type=Path, help="a folder that keeps the stores")
    parser.add_argument("--measure", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(measure(arguments.measure)))
        return
    columns = []
    with tempfile.TemporaryDirectory(prefix="bertjax-scale-") as scratch:
        for tokens in arguments.tokens:
            path = (arguments.stores or Path(scratch)) / f"store-{tokens:g}"
            if not path.exists():
                began = time.monotonic()
                make_store(path, round(tokens * 1e9))
                print(f"made a store of {tokens:g} G tokens in {time.monotonic() - began:.0f} s", flush=True)
            words = [sys.executable, __file__, "--measure", str(path)]
            columns.append(
                json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])
            )
    print(f"\n{'':32}" + "".join(f"{tokens:>9g} G" for tokens in arguments.tokens) + "   growth   at 2 T")
    for name in columns[0]:
        values = [column[name] for column in columns]
        before, last = values[-2:]
        slope = max(last - before, 0) / (arguments.tokens[-1] - arguments.tokens[-2])
        far = last + slope * (FAR / 1e9 - arguments.tokens[-1])
        print(f"{name:32}" + "".join(f"{value:>11.2f}" for value in values) + f"{last / before:>9.2f}{far:>9,.0f}")


if __name__ == "__main__":
    main()
