"""Cost of the text's size: start, memory and first batches of a host, on stores of up to 2 trillion tokens.

python tests/benchmarks/bench_scale.py

Writes stores of synthetic text whose parts of 125 M tokens are hard links to one part, so that any size takes 0.3 GB of
disk. A new process then starts a run on each store, up to the first batch of every stage of the ModernBERT recipe, as a
host that reads 64 rows of 1,024 tokens or 16 of 8,192; for the last store also as the host of one of 256 lanes. Seconds
are CPU time. Then one of 4 hosts reads two windows of the third store, and each of 256 hosts reads its share of an
epoch, through a local copy as from object storage; and the last store is opened through a copy, twice. Finally prints
the growth from the second to the third size and on to the largest. Stores in the folder --stores are reused.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from functools import partial
from pathlib import Path

import numpy as np

from bertjax.config import load_recipe
from bertjax.input.batches import RowBatches
from bertjax.input.training_data import StoredText
from bertjax.input.windows import WINDOW_TOKENS, Lane, Windows
from bertjax.storage.remote import read_range
from bertjax.text.store import blocks
from bertjax.text.store.format import SplitView, TokenStore
from bertjax.text.store.local_copy import open_near
from bertjax.text.store.manifest import SPLITS, shard_files
from bertjax.text.store.writer import ShardWriter, finish_store, publish_store
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import WordPiece
from bertjax.training.evaluate import unigram_baseline
from bertjax.training.stages import Stage, make_stages

PART_TOKENS = 125_000_000
HELD_OUT = 100  # one of this many documents is held out
DOCUMENT, SENTENCE = 1_000, 23.5  # average tokens in web text
VOCABULARY = 30_000
ROWS = {1_024: 64, 8_192: 16}  # rows per host by length
LANES = 256
ROUNDS = 3  # the fastest counts, because other work may disturb one
MANY_WINDOWS = 100  # with more windows, each stage of a run begins in another window


def make_store(path: Path, tokens: int) -> None:
    """Write a store of synthetic text: log-normal lengths of documents and sentences, uniform ids, equal parts."""
    tokenizer = WordPiece(
        ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{n}" for n in range(VOCABULARY))], TextRules(True, True)
    )
    partial = path.with_name(f"{path.name}.partial")
    partial.mkdir(parents=True)
    size, parts = min(tokens, PART_TOKENS), max(tokens // PART_TOKENS, 1)
    shards: dict[str, list[dict]] = {}
    for split in SPLITS:
        share = size // HELD_OUT if split == "held_out" else size - size // HELD_OUT
        first = _write_part(ShardWriter(partial, f"{split}-00000", tokenizer.vocab_size), share)
        shards[split] = [first, *(_link_part(partial, first, split, number) for number in range(1, parts))]
    finish_store(partial, shards, tokenizer, {})
    publish_store(partial, path)


def _write_part(writer: ShardWriter, tokens: int) -> dict:
    draw = np.random.default_rng(0)
    while tokens > 0:
        chunk = min(tokens, 4_000_000)
        lengths = np.maximum(draw.lognormal(np.log(20), 0.6, max(round(chunk / SENTENCE), 1)), 1).astype(np.int64)
        sizes = draw.lognormal(np.log(DOCUMENT / SENTENCE) - 0.5, 1.0, round(2 * chunk / DOCUMENT) + 1)
        ends = np.cumsum(np.maximum(sizes, 1).astype(np.int64))
        sizes = np.diff(np.append(np.append(0, ends[ends < len(lengths)]), len(lengths)))
        ids = draw.integers(5, VOCABULARY, int(lengths.sum()), dtype=np.uint16)
        writer.add(ids, lengths, sizes, np.zeros(len(sizes), bool))
        tokens -= len(ids)
    return writer.finish()


def _link_part(folder: Path, first: dict, split: str, number: int) -> dict:
    """Link the files of the first part as another part; returns its manifest record."""
    part = json.loads(json.dumps(first))
    part["name"] = f"{split}-{number:05}"
    for file in shard_files(part):
        linked = file["name"].replace("-00000.", f"-{number:05}.")
        os.link(folder / file["name"], folder / linked)
        file["name"] = linked
    return part


def start(path: Path, lanes: int) -> tuple[TokenStore, StoredText, list[tuple[Stage, RowBatches]]]:
    """Start a run of the ModernBERT recipe without reading a batch: (store, text, batches of each stage)."""
    config = load_recipe("modernbert")
    config = replace(config, data=replace(config.data, sources=("text:none",), lanes=lanes))
    store = TokenStore.open(path)
    content = StoredText(store, ("mlm",))
    unigram_baseline(content.held_out_text(), content.tokenizer.vocab_size)
    batches = [
        (stage, content.train(stage.data, stage.seed, stage.training.objectives, stage.training.global_batch_size))
        for stage in make_stages(config)
    ]
    assert all(one.estimated_rows for _, one in batches)
    return store, content, batches


def measure_start(path: Path, lanes: int) -> dict[str, float]:
    """Measure the CPU time and wall time of a start."""
    began, wall = time.process_time(), time.monotonic()
    start(path, lanes)
    return {"start, s": time.process_time() - began, "start, s of the clock": time.monotonic() - wall}


def measure_batches(path: Path, lanes: int) -> dict[str, float]:
    """Measure the first batch of each stage, and memory."""
    figures: dict[str, float] = {}
    before = _anonymous_bytes()
    store, content, batches = start(path, lanes)
    figures["memory after the start, MB"] = (_anonymous_bytes() - before) / 1e6
    for _, one in batches:
        one.release()
    peak, is_large = 0, store.split("train").num_tokens > MANY_WINDOWS * WINDOW_TOKENS
    for _ in range(ROUNDS):
        opened = None
        for number, (stage, _) in enumerate(batches, 1):
            if opened is None or not is_large:
                opened = TokenStore(path, store.manifest)
            seconds, memory = first_batch(opened, stage, lanes)
            label = f"first batch of stage {number} ({stage.data.sequence_length:,}), s"
            figures[label] = min(figures.get(label, seconds), seconds)
            peak = max(peak, memory - before)
    figures["memory, MB"] = peak / 1e6
    began = time.process_time()
    stage, _ = batches[0]
    evaluation = content.held_out(stage.data, 0, stage.training.objectives)
    evaluation["eval"].batch(0, ROWS[1_024])
    figures["first evaluation batch, s"] = time.process_time() - began
    figures["open files"] = len(os.listdir("/proc/self/fd"))
    figures["peak of the process, MB"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e3
    return figures


def first_batch(store: TokenStore, stage: Stage, lanes: int) -> tuple[float, int]:
    """(CPU seconds, anonymous memory) of the first batch of a stage.

    The caller reopens a small store for each stage, like a run that resumes there, because earlier stages would have
    read some of its blocks. In a store of many windows each stage begins with others, and reopening takes seconds.
    """
    content = StoredText(store, ("mlm",))
    size = stage.training.global_batch_size
    began = time.process_time()
    batches = content.train(stage.data, stage.seed, stage.training.objectives, size)
    batches.batch(0, size, slice(0, min(ROWS[stage.data.sequence_length], size // lanes)))
    return time.process_time() - began, _anonymous_bytes()


def measure_reads(path: Path) -> dict[str, float]:
    """Measure the reads of one of 4 hosts and of each of 256, each through its own local copy."""
    fetched: list[int] = []

    def counting_read(source: Path, start: int, stop: int) -> bytes:
        fetched.append(stop - start)
        return read_range(source, start, stop)

    def host_bytes(lane: Lane, most_windows: int) -> tuple[int, int, int]:
        """(fetched bytes, used bytes, tokens)."""
        fetched.clear()
        used = tokens = 0
        with tempfile.TemporaryDirectory(prefix="bertjax-scale-") as near:
            windows = Windows(open_near(path, near).split("train"), None, 0, WINDOW_TOKENS, lane)
            for number in range(min(windows.count, most_windows)):
                text = windows.get(number).text
                assert isinstance(text, SplitView)
                text.verify_tokens()
                tokens += text.num_tokens
                used += 2 * text.num_tokens + 8 * (len(text.sentence_offsets) + len(text.document_offsets))
        return sum(fetched), used, tokens

    blocks.read_range = counting_read
    read, used, _ = host_bytes(Lane(1, 4), 2)
    requests = len(fetched)
    hosts = np.array([host_bytes(Lane(number, LANES), 1 << 30) for number in range(LANES)])
    train = TokenStore.open(path).manifest["splits"]["train"]
    arrays = sum(file["bytes"] for shard in train["shards"] for file in shard["files"].values())
    return {
        "read for a byte used, host of 4": read / used,
        "requests of two windows, host of 4": requests,
        f"read for a byte used, most of {LANES} hosts": (hosts[:, 0] / hosts[:, 1]).max(),
        f"read by {LANES} hosts together for a byte of the store": hosts[:, 0].sum() / arrays,
        f"tokens that {LANES} hosts read together, for a token of the store": hosts[:, 2].sum() / train["tokens"],
    }


def measure_copy(path: Path) -> dict[str, float]:
    """CPU seconds to open a store through a local copy, for the first and the second time."""
    figures = {}
    with tempfile.TemporaryDirectory(prefix="bertjax-scale-") as near:
        for start in ("first", "second"):
            began = time.process_time()
            open_near(path, near)
            figures[f"largest store through a copy, {start} opening, s"] = time.process_time() - began
    return figures


def _anonymous_bytes() -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) << 10 for line in lines if line.startswith("RssAnon"))


def main() -> None:
    """Print the table of growth."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tokens", type=float, nargs="+", default=[0.05, 0.5, 4, 2_000], help="billions, ascending")
    parser.add_argument("--stores", type=Path, help="folder of stores to reuse (default: temporary)")
    parser.add_argument("--measure", choices=MEASURES, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.measure:
        print(json.dumps(MEASURES[arguments.measure](arguments.stores)))
        return
    began = time.monotonic()
    columns, names = {}, [f"{tokens:g} G" for tokens in arguments.tokens]
    with tempfile.TemporaryDirectory(prefix="bertjax-scale-") as scratch:
        paths = [(arguments.stores or Path(scratch)) / f"store-{tokens:g}" for tokens in arguments.tokens]
        for name, tokens, path in zip(names, arguments.tokens, paths, strict=True):
            if not path.exists():
                making_began = time.monotonic()
                make_store(path, round(tokens * 1e9))
                manifest = (path / "manifest.json").stat().st_size
                print(
                    f"made a store of {name} tokens in {time.monotonic() - making_began:.0f} s, with a manifest of "
                    f"{manifest / 1e6:.2f} MB",
                    flush=True,
                )
            columns[name] = _fastest_start("start", path) | _measure_apart("batches", path)
        lane = _fastest_start("lane start", paths[-1]) | _measure_apart("lane batches", paths[-1])
        columns[f"{names[-1]}, a lane"] = lane
        counts = _measure_apart("reads", paths[2]) | _measure_apart("copy", paths[-1])
    print(f"\n{'':36}" + "".join(f"{name:>16}" for name in columns) + "  growth")
    _, second, third, *_, last = [*columns.values()]
    for name in last:
        growth = third[name] / max(second[name], 1e-9)
        print(f"{name:36}" + "".join(f"{column[name]:>16.2f}" for column in columns.values()) + f"{growth:>8.2f}")
    timed = [name for name in last if "batch of stage" in name]
    largest = [*columns.values()][-2]  # the largest store, read by one host
    sums = [sum(column[name] for name in timed) for column in (second, third, largest)]
    print(f"\ngrowth of first batches, all stages: {sums[1] / sums[0]:.2f}, and to the largest {sums[2] / sums[1]:.2f}")
    print(f"growth of a first batch, largest of all stages: {max(third[name] / second[name] for name in timed):.2f}")
    print(f"growth of a start: {third['start, s'] / second['start, s']:.2f}")
    print(f"growth of memory: {third['memory, MB'] / second['memory, MB']:.2f}")
    for name in ("start, s", "memory, MB"):
        print(f"largest store: {name}: {max(column[name] for column in (largest, last)):.1f}")
    for name, value in counts.items():
        print(f"{name}: {value:.3f}")
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    seconds = sum(one.ru_utime + one.ru_stime for one in used)
    print(f"the benchmark took {time.monotonic() - began:.0f} s, and {seconds:.0f} s of CPU time")


MEASURES = {
    "start": partial(measure_start, lanes=1),
    "lane start": partial(measure_start, lanes=LANES),
    "batches": partial(measure_batches, lanes=1),
    "lane batches": partial(measure_batches, lanes=LANES),
    "reads": measure_reads,
    "copy": measure_copy,
}


def _fastest_start(what: str, path: Path) -> dict[str, float]:
    """The fastest of several starts, each in a new process."""
    return min((_measure_apart(what, path) for _ in range(ROUNDS)), key=lambda figures: figures["start, s"])


def _measure_apart(what: str, path: Path) -> dict[str, float]:
    """The figures of a store, measured in a new process."""
    words = [sys.executable, __file__, "--measure", what, "--stores", str(path)]
    return json.loads(subprocess.run(words, check=True, stdout=subprocess.PIPE).stdout.splitlines()[-1])


if __name__ == "__main__":
    main()
