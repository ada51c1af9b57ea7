"""Throughput of the input: rows/s and memory of the epoch plan, tokens/s of the batch function and of the feed.

python tests/benchmarks/bench_batches.py                    # a synthetic corpus of about 10 million rows
python tests/benchmarks/bench_batches.py --store DIRECTORY  # a prepared token store
"""

from __future__ import annotations

import argparse
import itertools
import resource
import statistics
import threading
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches
from bertjax.input.feed import open_feed
from bertjax.input.made_up_text import MadeUpSplit, MadeUpVocabulary
from bertjax.input.plan import build_plan
from bertjax.text.store.format import TokenStore

MASKINGS = {
    "tokens": {},
    "words": {"masking": "words"},
    "n-grams": {"masking": "ngrams", "ngram_shares": (6 / 11, 3 / 11, 2 / 11)},
    "spans": {"masking": "spans", "replace_by": "span", "random_ids": "corpus"},
}
PACKING = {"padded": "none", "packed": "pairs"}
Batch = dict[str, np.ndarray]


def measure_plan(split, length: int) -> None:
    """Print how many rows/s are planned, and how much memory grows meanwhile."""
    before = resident()
    peak, done = [before], threading.Event()

    def watch() -> None:
        while not done.wait(0.02):
            peak[0] = max(peak[0], resident())

    watcher = threading.Thread(target=watch)
    watcher.start()
    start = time.perf_counter()
    plan = build_plan(
        split.document_offsets,
        split.sentence_offsets,
        max_tokens=length - 3,
        short_sequence_probability=0.1,
        seed=0,
        epoch=1,
    )
    seconds = time.perf_counter() - start
    done.set()
    watcher.join()
    print(
        f"plan: {len(plan):,} rows in {seconds:.2f} s = {len(plan) / seconds / 1e6:.2f} M rows/s; "
        f"memory grew by {(peak[0] - before) / 2**20:.0f} MiB at most"
    )


def resident() -> int:
    """The resident memory of this process in bytes, including mapped files."""
    with open("/proc/self/statm") as stream:
        return int(stream.read().split()[1]) * resource.getpagesize()


def measure_batches(make: Callable[[int], Batch], batch_size: int, threads: int, repeats: int) -> str:
    """Tokens/s of `threads` threads that make batches."""
    steps = max(2 * threads, 2**13 // batch_size)
    with ThreadPoolExecutor(threads) as pool:
        return rates(lambda turn: pool.map(make, range(turn * steps, (turn + 1) * steps)), repeats)


def measure_feed(batches: RowBatches, engine: str, batch_size: int, threads: int, repeats: int) -> str:
    """Tokens/s of a feed whose only consumer is this loop."""
    steps = max(16, 2**15 // batch_size)
    with open_feed(batches, start_step=0, global_batch_size=batch_size, threads=threads, engine=engine) as feed:
        return rates(lambda _: itertools.islice(feed, steps), repeats)


def rates(make_batches: Callable[[int], Iterable[Batch]], repeats: int) -> str:
    """Positions/s and real tokens/s, as medians over all turns but the first."""
    positions, real = [], []
    for turn in range(repeats + 1):
        start = time.perf_counter()
        # Counting reads the batches, which is the least that any consumer does.
        counts = [(batch["input_ids"].size, np.count_nonzero(batch["sequence_ids"])) for batch in make_batches(turn)]
        seconds = time.perf_counter() - start
        positions.append(sum(size for size, _ in counts) / seconds / 1e6)
        real.append(sum(tokens for _, tokens in counts) / seconds / 1e6)
    return f"{statistics.median(positions[1:]):6.1f} M positions/s {statistics.median(real[1:]):6.1f} M real tokens/s"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", help="a token store (default: a synthetic corpus)")
    parser.add_argument("--sentences", type=int, default=35_000_000, help="size of the synthetic corpus")
    parser.add_argument(
        "--giant", type=int, default=0, help="size of one giant document in the synthetic corpus, in sentences"
    )
    parser.add_argument("--plan-only", action="store_true")
    parser.add_argument("--length", type=int, default=128)
    parser.add_argument("--predictions", type=int, default=20)
    parser.add_argument("--batch-sizes", type=int, nargs="+", default=[64, 256, 1024, 4096])
    parser.add_argument("--maskings", nargs="+", choices=MASKINGS, default=list(MASKINGS))
    parser.add_argument("--rows", nargs="+", choices=PACKING, default=list(PACKING))
    parser.add_argument("--repeats", type=int, default=5)
    arguments = parser.parse_args()
    store = TokenStore.open(arguments.store) if arguments.store else None
    split = store.split("train") if store else MadeUpSplit(arguments.sentences, arguments.giant)
    vocabulary = store.tokenizer() if store else MadeUpVocabulary()
    longest = np.diff(split.document_offsets).max()
    print(
        f"{len(split.document_offsets) - 1:,} documents, the longest of {longest:,} sentences; "
        f"{split.sentence_offsets[-1]:,} tokens"
    )
    measure_plan(split, arguments.length)
    if arguments.plan_only:
        return
    for name, rows in itertools.product(arguments.maskings, arguments.rows):
        slots = arguments.predictions + (DataConfig().pairs_per_row if rows == "packed" else 0)
        packing = {"packing": PACKING[rows], "max_predictions": slots}
        data = DataConfig(sequence_length=arguments.length, **packing, **MASKINGS[name])
        batches = RowBatches(split, vocabulary, data, seed=0)
        print(f"{name}, {rows}:")
        for size, threads in itertools.product(arguments.batch_sizes, (1, 2)):
            speed = measure_batches(lambda k: batches.batch(k, size), size, threads, arguments.repeats)  # noqa: B023
            print(f"  function, {rows}, batch {size:5}, {threads} threads: {speed}", flush=True)
        for size, engine, threads in itertools.product(arguments.batch_sizes, ("tf.data", "threads"), (1, 2)):
            speed = measure_feed(batches, engine, size, threads, arguments.repeats)
            print(f"  feed {engine}, {rows}, batch {size:5}, {threads} threads: {speed}", flush=True)
    step, size = 10_000_000, arguments.batch_sizes[-1]
    batches.batch(step, size)
    start = time.perf_counter()
    batches.batch(step, size)
    print(f"batch {step:,} of {size} rows, its plan built: {time.perf_counter() - start:.4f} s")


if __name__ == "__main__":
    main()
