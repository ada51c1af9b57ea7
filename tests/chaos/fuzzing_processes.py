"""Fuzz every importer and reader, each in its own process: a part of `check_faults.py`.

With atheris, mutations are guided by the coverage of our code; without it, by the inputs that were read and the lines
that refuse inputs. A process that dies ends its reader and counts as a failed input. Inputs that are neither read nor
refused cleanly are saved in build/fuzzing.
"""

from __future__ import annotations

import argparse
import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections import Counter, deque
from collections.abc import Collection, Iterable, Iterator
from dataclasses import asdict
from pathlib import Path
from random import Random

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), *(str(REPOSITORY / "tests" / room) for room in ("chaos", "text"))]
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

from outcomes import Row, Share, Table, require_known  # noqa: E402 (found by the path above)

FINDINGS = REPOSITORY / "build" / "fuzzing"
_PROCESSES = min(4, os.cpu_count() or 1)
_GRACE = 600  # seconds beyond its time limit that a process may take to start and read its seeds
# The modules that read files, to be instrumented.
_READING = [
    *(f"bertjax.{room}" for room in ("convert", "finetune.data", "input.tfrecords", "search", "storage")),
    *("bertjax.text", "bertjax.tokenization", "bertjax.config.values", "bertjax.run.checkpoint_metadata"),
]
_LONGEST = 1 << 16  # bytes of an input from libFuzzer
_WRITE_EVERY = 2.0  # seconds between two writes of a tally
_NOTHING = {"inputs": 0, "refused": 0, "read": 0, "slowest": 0, "memory": 0, "findings": {}}


def try_fuzzing(table: Table, folder: Path, tries: int, share: Share, names: Collection[str] = ()) -> None:
    """Try inputs, spread evenly over all or the named readers; adds a row for each reader.

    The readers share the time limit equally. Raises ValueError for an unknown name.
    """
    from fuzzing_readers import READERS

    require_known("readers to fuzz", names, READERS)
    chosen = [name for name in READERS if name in names or not names]
    for name in [name for name in chosen if READERS[name].missing]:
        print(f"{name}: not tried, {READERS[name].missing} is not installed", file=sys.stderr)
        chosen.remove(name)
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else folder
    seconds = max(1.0, (share.until - time.monotonic()) * _PROCESSES / len(chosen))
    waiting, running = deque(chosen), []
    with tempfile.TemporaryDirectory(dir=memory, prefix="fuzzing-", ignore_cleanup_errors=True) as scratch:
        try:
            while waiting or running:
                while waiting and len(running) < _PROCESSES and time.monotonic() < share.until:
                    name = waiting.popleft()
                    done = next((row.tried for row in table.rows if row.name == name), 0)
                    mine = Share(share.part, share.parts, share.seed, done)
                    running.append(Worker(name, Path(scratch), -(-tries // len(chosen)), mine, seconds))
                if time.monotonic() >= share.until:
                    waiting.clear()
                for worker in [one for one in running if one.has_ended()]:
                    running.remove(worker)
                    table.put(worker.row())
                time.sleep(0.1)
        finally:
            for worker in running:
                worker.stop()
                table.put(worker.row())


class Worker:
    """The process that fuzzes one reader."""

    def __init__(self, name: str, scratch: Path, inputs: int, share: Share, seconds: float) -> None:
        self._name, self._tally = name, scratch / f"{name.replace(' ', '_')}.json"
        self._log = self._tally.with_suffix(".log")
        self._latest = time.monotonic() + seconds + _GRACE
        words = [str(word) for word in (share.part, share.parts, share.seed, share.done, inputs, seconds)]
        command = [sys.executable, __file__, name, str(self._tally), *words]
        with self._log.open("wb") as output:
            self._process = subprocess.Popen(command, stdout=output, stderr=output)
        self._failure = ""

    def has_ended(self) -> bool:
        """Whether the process has ended; kills it if it hangs."""
        if self._process.poll() is None and time.monotonic() > self._latest:
            self._failure = "the process hangs"
            self._process.kill()
            self._process.wait()
        elif self._process.poll():
            self._failure = f"the process ended with {self._process.returncode}"
        return self._process.poll() is not None

    def stop(self) -> None:
        """Terminate the process, which then writes its tally."""
        self._process.terminate()
        try:
            self._process.wait(30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def row(self) -> Row:
        """Count the outcomes, and print each kind of finding."""
        tally = _NOTHING | (json.loads(self._tally.read_text()) if self._tally.exists() else {})
        findings = dict(tally["findings"])
        if self._failure:
            findings[self._failure] = str(self._save_last_input())
        for what, where in findings.items():
            print(f"FAILED {self._name}, {where}: {what}", file=sys.stderr, flush=True)
        limits = f"{tally['slowest']:.2f} s and {tally['memory'] >> 20:,} MiB at most"
        print(f"{self._name:26} {tally['inputs']:9,} inputs, {limits}", flush=True)
        tried, clean = tally["inputs"] + bool(self._failure), tally["refused"] + tally["read"]
        ends = Counter({end: tally[end] for end in ("refused", "read") if tally[end]})
        return Row(self._name, tried, tried - clean, ends)

    def _save_last_input(self) -> Path:
        """Copy the last input and the log to FINDINGS; returns the log's path."""
        FINDINGS.mkdir(parents=True, exist_ok=True)
        name = f"{self._tally.stem}-last"
        for file in self._tally.with_suffix(".folder").glob("*"):
            if file.is_file():
                (FINDINGS / f"{name}-{file.name}").write_bytes(file.read_bytes())
        log = FINDINGS / f"{name}.txt"
        log.write_bytes(self._log.read_bytes()[-20_000:])
        return log


def main() -> None:
    """Fuzz one reader in this process, until the inputs or the time run out, or an interruption."""
    parser = argparse.ArgumentParser(description="Started by check_faults.py.")
    for name, kind in (("name", str), ("tally", Path), ("part", int), ("parts", int), ("seed", int), ("done", int)):
        parser.add_argument(name, type=kind)
    parser.add_argument("inputs", type=int)
    parser.add_argument("seconds", type=float)
    arguments = parser.parse_args()
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    guided = importlib.util.find_spec("atheris") is not None
    if guided:
        import atheris

        with atheris.instrument_imports(include=_READING, enable_loader_override=False):
            from fuzzing_readers import READERS
    else:
        from fuzzing_readers import READERS
    from fuzzing import Trial

    warnings.simplefilter("ignore")
    until = time.monotonic() + arguments.seconds
    share = Share(arguments.part, arguments.parts, arguments.seed, arguments.done, until)
    trial = Trial(READERS[arguments.name], arguments.tally.with_suffix(".folder"), FINDINGS)
    numbers = share.take(range(arguments.inputs))
    if guided:
        _fuzz_guided(trial, arguments, numbers)  # exits the process
    with contextlib.suppress(KeyboardInterrupt):
        trial.run(_with_progress(trial, arguments.tally, numbers), arguments.seed)
    _write_tally(trial, arguments.tally)


def _write_tally(trial, file: Path) -> None:
    partial = file.with_suffix(".partial")
    partial.write_text(json.dumps(asdict(trial.tally)))
    partial.replace(file)


def _with_progress(trial, file: Path, numbers: Iterable[int]) -> Iterator[int]:
    """Yield the numbers, and write the tally every few seconds."""
    written = time.monotonic()
    for number in numbers:
        yield number
        if time.monotonic() - written > _WRITE_EVERY:
            _write_tally(trial, file)
            written = time.monotonic()


def _fuzz_guided(trial, arguments: argparse.Namespace, numbers: Iterator[int]) -> None:
    """Run libFuzzer's loop, one input per number. Half of the mutations are our structure-aware ones."""
    import atheris

    corpus = arguments.tally.with_suffix(".corpus")
    corpus.mkdir()
    for number, content in enumerate(trial.seeds):
        (corpus / str(number)).write_bytes(content)
    counted = _with_progress(trial, arguments.tally, numbers)

    def try_input(content: bytes) -> None:
        try:
            is_last = next(counted, None) is None
            if not is_last:
                trial.try_input(content)
        except KeyboardInterrupt:
            is_last = True
        if is_last:
            _write_tally(trial, arguments.tally)
            os._exit(0)

    def mutate(content: bytes, most: int, seed: int) -> bytes:
        if seed % 2:
            return atheris.Mutate(content, most)
        return trial.mutate(content, Random(seed))[:most]

    options = [
        f"-seed={1 + arguments.seed + arguments.done * arguments.parts + arguments.part}",
        f"-max_len={_LONGEST}",
        "-timeout=0",
        "-rss_limit_mb=0",
        "-handle_segv=0",
        "-handle_int=0",
        "-handle_term=0",
        "-detect_leaks=0",
        "-print_final_stats=0",
        "-verbosity=0",
        f"-artifact_prefix={arguments.tally.parent}/",
    ]
    atheris.Setup(["fuzzing", *options, str(corpus)], try_input, custom_mutator=mutate, internal_libfuzzer=True)
    atheris.Fuzz()


if __name__ == "__main__":
    main()
