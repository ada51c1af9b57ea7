"""Speed and peak memory of `bertjax prepare`, from text to token store.

    python tests/benchmarks/bench_prepare.py --vocab vocab.txt --sources 'text:books/*.txt' 'wikiextractor:wiki/*.xz'

Prints MB of text per second (UTF-8 bytes of the documents, over all of `prepare` in a new folder, including the start
of its processes), the CPU time of all processes, which determines the speed on an idle machine, and the peak of the
proportional set size summed over the process tree, without page cache. Without --vocab, a vocabulary is trained first
and timed separately.
"""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
import resource
import sys
import tempfile
import threading
import time
from pathlib import Path

from bertjax.config import DataConfig
from bertjax.storage.progress import ProgressLine
from bertjax.text.pool import cores
from bertjax.text.prepare import prepare
from bertjax.text.store.format import TokenStore
from bertjax.text.store.manifest import SPLITS, describe_split
from bertjax.text.trained_vocabulary import prepare_vocabulary

SAMPLE_EVERY = 0.2  # seconds


class PeakMemory(threading.Thread):
    """Samples the proportional set size of this process and its descendants; `peak` is in bytes."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.peak = 0
        self._end = threading.Event()

    def run(self) -> None:
        while not self._end.wait(SAMPLE_EVERY):
            self.peak = max(self.peak, sum(map(_private_and_shared, _tree(os.getpid()))))

    def stop(self) -> int:
        """Stop sampling and return the peak."""
        self._end.set()
        self.join()
        return self.peak


def _tree(root: int) -> list[int]:
    """The process and its descendants."""
    children: dict[int, list[int]] = {}
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            parent = int(stat.read_text().rpartition(")")[2].split()[1])
        except OSError:
            continue
        children.setdefault(parent, []).append(int(stat.parent.name))
    processes = [root]
    for process in processes:
        processes += children.get(process, [])
    return processes


def _private_and_shared(process: int) -> int:
    """The proportional set size in bytes, without file pages (page cache)."""
    try:
        rollup = Path(f"/proc/{process}/smaps_rollup").read_text()
    except OSError:
        return 0
    return sum(1024 * int(size) for size in re.findall(r"^Pss_(?:Anon|Shmem): +(\d+) kB", rollup, re.MULTILINE))


def _processor_seconds() -> float:
    """The CPU time of this process and its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def main() -> None:
    parser = argparse.ArgumentParser(description="Measure the speed and memory of prepare.")
    parser.add_argument("--sources", nargs="+", required=True, help="KIND:GLOB, like data.sources")
    parser.add_argument("--vocab", default="", help="vocab.txt (default: train one)")
    parser.add_argument("--vocab-size", type=int, default=30_522)
    parser.add_argument("--workers", type=int, default=0, help="number of processes; 0: one per core")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        data = DataConfig(
            sources=tuple(arguments.sources),
            root=root,
            vocab=arguments.vocab,
            vocab_size=arguments.vocab_size,
            workers=arguments.workers,
        )
        progress = ProgressLine(sys.stderr)
        if not data.vocab:
            watch, start = PeakMemory(), time.perf_counter()
            watch.start()
            data = dataclasses.replace(data, vocab=str(prepare_vocabulary(data, progress)))
            print(f"vocabulary: {time.perf_counter() - start:.1f} s, peak {watch.stop() / 1e9:.2f} GB")
        watch, start, cpu = PeakMemory(), time.perf_counter(), _processor_seconds()
        watch.start()
        store = TokenStore.open(prepare(data, progress))
        seconds, peak = time.perf_counter() - start, watch.stop()
        text_bytes = store.manifest["provenance"]["text_bytes"]
        print("; ".join(f"{split}: {describe_split(store.manifest, split)}" for split in SPLITS))
        print(
            f"prepare: {text_bytes / 1e6:.1f} MB of text in {seconds:.1f} s = {text_bytes / 1e6 / seconds:.2f} MB/s, "
            f"{data.workers or cores()} processes; {_processor_seconds() - cpu:.1f} s of CPU time; "
            f"peak memory {peak / 1e9:.2f} GB"
        )


if __name__ == "__main__":
    main()
