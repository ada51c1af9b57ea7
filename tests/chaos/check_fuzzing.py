"""Fuzzing of every importer and reader: `python tests/chaos/check_fuzzing.py [--inputs N] [--seconds S] [READER ...]`.

Prints a table with a line for each reader, and exits with 1 if an input was neither read nor refused cleanly; those
inputs are kept. With atheris mutations are guided by the coverage of our code; without it, by what is read and by the
places where refusals come from. A process that dies ends its reader, and counts as a finding.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict
from pathlib import Path
from random import Random

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "tests" / "chaos")]
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
_GRACE = 600  # seconds that a process may take longer than it was told, for its start and its seeds
# What reads files, and so is instrumented.
_READING = [
    *(f"bertjax.{room}" for room in ("convert", "finetune.data", "input.tfrecords", "search", "storage")),
    *("bertjax.text", "bertjax.tokenization", "bertjax.config.values", "bertjax.training.checkpoint_metadata"),
]
_LONGEST = 1 << 16  # bytes of an input that libFuzzer makes
_TOLD = 2.0  # seconds between two writings of a tally


def main(words: Sequence[str] | None = None) -> int:
    """Run what the command line asks for; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("readers", nargs="*", metavar="READER", help="names of readers; default: all")
    parser.add_argument("--inputs", type=int, default=2_000, help="for each reader, at most")
    parser.add_argument("--seconds", type=float, default=60, help="for each reader, at most")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--findings", type=Path, default=REPOSITORY / "build" / "fuzzing")
    parser.add_argument("--unguided", action="store_true", help="without atheris")
    parser.add_argument("--worker", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args(words)
    if asked.worker:
        return _work(asked)
    from fuzzing_readers import READERS

    if unknown := [name for name in asked.readers if name not in READERS]:
        parser.error(f"no reader is named {', '.join(unknown)}; there are {', '.join(READERS)}")
    names = asked.readers or [name for name in READERS if not READERS[name].missing]
    for name in READERS:
        if not asked.readers and READERS[name].missing:
            print(f"{name}: left out, {READERS[name].missing} is not installed")
    begun = time.monotonic()
    memory = "/dev/shm" if Path("/dev/shm").is_dir() else None
    with tempfile.TemporaryDirectory(dir=memory) as scratch, ThreadPoolExecutor(asked.processes) as pool:
        tallies = list(pool.map(lambda name: _run(name, asked, Path(scratch)), names))
    print(table(tallies, time.monotonic() - begun, asked))
    return int(any(tally["findings"] for tally in tallies))


def _run(name: str, asked: argparse.Namespace, scratch: Path) -> dict:
    """The tally of one reader, from a process of its own."""
    told = scratch / f"{name.replace(' ', '_')}.json"
    command = [sys.executable, __file__, name, "--worker", str(told), "--findings", str(asked.findings)]
    command += ["--inputs", str(asked.inputs), "--seconds", str(asked.seconds), "--seed", str(asked.seed)]
    command += ["--unguided"] * asked.unguided
    log = told.with_suffix(".log")
    with log.open("wb") as output:
        try:
            code = subprocess.run(command, stdout=output, stderr=output, timeout=asked.seconds + _GRACE).returncode
        except subprocess.TimeoutExpired:
            code = "hung"
    tally = (
        json.loads(told.read_text())
        if told.exists()
        else {"name": name, "inputs": 0, "refused": 0, "read": 0, "slowest": 0, "memory": 0, "findings": {}}
    )
    if code:
        kept = asked.findings / f"{told.stem}-last"
        asked.findings.mkdir(parents=True, exist_ok=True)
        for file in (told.with_suffix(".folder")).glob("*"):
            if file.is_file():
                (asked.findings / f"{kept.name}-{file.name}").write_bytes(file.read_bytes())
        kept.with_suffix(".txt").write_bytes(log.read_bytes()[-20_000:])
        tally["findings"][f"the process ended with {code}"] = str(kept.with_suffix(".txt"))
    print(_line(tally), flush=True)
    for what, where in tally["findings"].items():
        print(f"    {what}: {where}", flush=True)
    return tally


def _work(asked: argparse.Namespace) -> int:
    """The process of one reader: inputs until there are enough or the time is up."""
    guided = not asked.unguided and _has_atheris()
    if guided:
        import atheris

        with atheris.instrument_imports(include=_READING, enable_loader_override=False):
            from fuzzing_readers import READERS
    else:
        from fuzzing_readers import READERS
    from fuzzing import Trial

    warnings.simplefilter("ignore")
    until = time.monotonic() + asked.seconds
    (name,) = asked.readers
    trial = Trial(READERS[name], asked.worker.with_suffix(".folder"), asked.findings)
    if guided:
        _guided(trial, asked, until)  # which ends the process
    trial.run(asked.inputs, asked.seed, until)
    asked.worker.write_text(json.dumps(asdict(trial.tally)))
    return 0


def _has_atheris() -> bool:
    import importlib.util

    return importlib.util.find_spec("atheris") is not None


def _guided(trial, asked: argparse.Namespace, until: float) -> None:
    """libFuzzer's loop: half of its mutations are ours, which know the structure."""
    import atheris

    corpus = asked.worker.with_suffix(".corpus")
    corpus.mkdir()
    for number, content in enumerate(trial.seeds):
        (corpus / str(number)).write_bytes(content)
    written = 0.0

    def tell() -> None:
        partial = asked.worker.with_suffix(".partial")
        partial.write_text(json.dumps(asdict(trial.tally)))
        partial.replace(asked.worker)

    def one(content: bytes) -> None:
        nonlocal written
        trial.one(content)
        now = time.monotonic()
        if now > until or trial.tally.inputs >= asked.inputs:
            tell()
            os._exit(0)
        if now - written > _TOLD:
            tell()
            written = now

    def mutated(content: bytes, most: int, seed: int) -> bytes:
        if seed % 2:
            return atheris.Mutate(content, most)
        return trial.mutated(content, Random(seed))[:most]

    options = [
        f"-seed={asked.seed + 1}",
        f"-max_len={_LONGEST}",
        "-timeout=0",
        "-rss_limit_mb=0",
        "-handle_segv=0",
        "-detect_leaks=0",
        "-print_final_stats=0",
        "-verbosity=0",
        f"-artifact_prefix={asked.worker.parent}/",
    ]
    atheris.Setup(["fuzzing", *options, str(corpus)], one, custom_mutator=mutated, internal_libfuzzer=True)
    atheris.Fuzz()


def table(tallies: Sequence[dict], seconds: float, asked: argparse.Namespace) -> str:
    """A line for each reader, and the sum."""
    whole = {key: sum(tally[key] for tally in tallies) for key in ("inputs", "refused", "read")}
    whole |= {key: max((tally[key] for tally in tallies), default=0) for key in ("slowest", "memory")}
    whole |= {"name": "sum", "findings": {k: v for tally in tallies for k, v in tally["findings"].items()}}
    guide = "atheris" if _has_atheris() and not asked.unguided else "no coverage"
    head = f"seed {asked.seed}, {asked.processes} processes, {seconds:,.0f} s, {guide}"
    columns = f"{'reader':26} {'inputs':>11} {'refused':>11} {'read':>10} {'slowest':>9} {'memory':>9} {'findings':>8}"
    return "\n".join([f"\n{head}", columns, *map(_line, tallies), _line(whole)])


def _line(tally: dict) -> str:
    return (
        f"{tally['name']:26} {tally['inputs']:11,} {tally['refused']:11,} {tally['read']:10,} "
        f"{tally['slowest']:7.2f} s {tally['memory'] >> 20:5,} MiB {len(tally['findings']):8}"
    )


if __name__ == "__main__":
    sys.exit(main())
