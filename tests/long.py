"""Run the long tests and checks one after the other, and print a table of outcomes.

    python tests/long.py [NAME...]        all pieces, or the named ones; `./launch/test.sh --long` installs and calls it

A piece is one of the scripts `tests/**/check_*.py`, or the tests marked `long` of a folder or of some of its files.
Each piece prints to its own file in `build/long/`. A piece is skipped, with the reason, if its data or packages are
missing. The exit code is 1 if a piece fails, and 130 after an interruption; the table then lists the pieces that did
not run. `tests/long.json` has each piece's last outcome with its date and commit, or `not run`.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.util
import json
import os
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ElementTree
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parent.parent
DATA = Path(os.environ.get("BERTJAX_TEST_DATA", REPOSITORY.parent / "shared" / "data"))
LOGS = REPOSITORY / "build" / "long"
RECORD = REPOSITORY / "tests" / "long.json"
INTERRUPTED = 130


@dataclass(frozen=True)
class Piece:
    """A program to run at the root of the repository: the arguments of `python`, in which {logs} is the log folder.

    `missing` returns the reason why it cannot run here, or "".
    """

    name: str
    command: tuple[str, ...]
    missing: Callable[[], str] = lambda: ""


def needs_data(*folders: str) -> Callable[[], str]:
    """Return a check that these folders of the real data exist."""

    def missing() -> str:
        absent = [str(DATA / folder) for folder in folders if not (DATA / folder).exists()]
        return f"needs {', '.join(absent)}; set BERTJAX_TEST_DATA" if absent else ""

    return missing


def needs_modules(*names: str) -> Callable[[], str]:
    """Return a check that these modules are installed."""

    def missing() -> str:
        absent = [name for name in names if importlib.util.find_spec(name) is None]
        return f"cannot import {', '.join(absent)}; run ./launch/test.sh, which installs it" if absent else ""

    return missing


def needs_a_launcher() -> str:
    """Check that a program is installed whose commands the launchers print."""
    is_installed = shutil.which("gcloud") or shutil.which("xpk") or importlib.util.find_spec("sky")
    return "" if is_installed else "none of gcloud, xpk and sky is installed"


def first_of(*checks: Callable[[], str]) -> Callable[[], str]:
    """Combine checks: return the first reason that applies."""
    return lambda: next((reason for check in checks if (reason := check())), "")


_WORKERS = str(min(4, 1 + (os.cpu_count() or 1)))
_FAULTS = ("crash", "bitrot", "kills", "hangs", "fuzzing", "sabotages")
# -vv overrides the -q of setup.cfg and prints each test as it ends, so that the log of an interrupted run has the
# failures.
_PYTEST = ("-m", "pytest", "--long", "-m", "long", "-vv", "-ra", "--durations=20", "--numprocesses", _WORKERS)
# The folders with tests marked `long`, and the files directly in tests/.
ROOMS = {
    room: (f"tests/{room}",)
    for room in (
        *("chaos", "convert", "embed", "finetune", "input", "interpret", "launch", "model", "pipeline", "plan", "run"),
        *("runtime", "search", "storage", "text", "tokenization", "training"),
    )
} | {"package": tuple(sorted(f"tests/{path.name}" for path in (REPOSITORY / "tests").glob("test_*.py")))}

# Files of a folder that are separate pieces, because the whole folder takes more than half an hour.
PARTS = {
    "convert": {
        "tokenizers": ("test_tokenizer_matrix.py", "test_hostile_folders.py"),
        "families": ("test_families.py",),
        "sizes": ("test_published_sizes.py",),
        "exports": ("test_family_exports.py", "test_export_heads.py", "test_executed_exports.py"),
    },
    "finetune": {"layout": ("test_family_layout.py",), "families": ("test_family_tasks.py",)},
    "training": {"families": ("test_family_training.py",)},
}


def long_tests(name: str, words: Sequence[str]) -> Piece:
    """The piece that runs the long tests selected by these arguments of pytest."""
    name = f"tests-{name}"
    return Piece(name, (*_PYTEST, f"--junitxml={{logs}}/{name}.xml", "--dist", "worksteal", *words))


def room_pieces() -> Iterator[Piece]:
    """The piece of each folder, preceded by its `PARTS`."""
    for room, paths in ROOMS.items():
        parts = {part: [f"tests/{room}/{file}" for file in files] for part, files in PARTS.get(room, {}).items()}
        yield from (long_tests(f"{room}-{part}", files) for part, files in parts.items())
        yield long_tests(room, [*paths, *(f"--ignore={file}" for files in parts.values() for file in files)])


# Short pieces come first, so that general defects appear early.
PIECES = (
    Piece("tools", ("tests/launch/check_tools.py",), needs_a_launcher),
    Piece("memory", ("tests/embed/check_memory.py",)),
    Piece(
        "wikipedia",
        ("tests/text/check_wikipedia.py", *map(str, sorted((DATA / "wikipedia_dumps").glob("*.bz2")))),
        first_of(needs_data("wikipedia_dumps"), needs_modules("mwparserfromhell")),
    ),
    Piece("hosts", ("tests/run/check_hosts.py",)),
    # A campaign that does not finish within its minutes continues the next time.
    *(Piece(part, ("tests/chaos/check_faults.py", part, "--minutes", "30")) for part in _FAULTS),
    Piece(
        "predict",
        ("tests/chaos/check_predict.py", str(DATA), "--megabytes", "100"),
        first_of(needs_data("books_en", "vocab"), needs_modules("pyarrow")),
    ),
    Piece("preemption", ("tests/run/check_preemption.py",)),
    *room_pieces(),
    Piece(
        "wordpiece",
        ("tests/tokenization/check_wordpiece.py", "--data", str(DATA), "--workers", _WORKERS),
        first_of(needs_data("vocab"), needs_modules("transformers")),
    ),
    Piece("topologies", ("tests/plan/check_topologies.py", "{logs}/topologies.tsv"), needs_modules("libtpu")),
)


@dataclass(frozen=True)
class Outcome:
    """A row of the table."""

    name: str
    seconds: float
    verdict: str  # passed, failed, skipped, interrupted, not run
    remark: str = ""


def run(pieces: Sequence[Piece], logs: Path) -> Iterator[Outcome]:
    """Run the pieces in order and yield their outcomes; pieces after an interruption do not run."""
    logs.mkdir(parents=True, exist_ok=True)
    interrupted = False
    for number, piece in enumerate(pieces, 1):
        if interrupted:
            yield Outcome(piece.name, 0, "not run")
            continue
        print(f"==> {number} of {len(pieces)}: {piece.name}", flush=True)
        outcome = run_piece(piece, logs)
        interrupted = outcome.verdict == "interrupted"
        yield outcome


def run_piece(piece: Piece, logs: Path) -> Outcome:
    """Run a piece, with its output in NAME.log."""
    if reason := piece.missing():
        return Outcome(piece.name, 0, "skipped", reason)
    log, start = logs / f"{piece.name}.log", time.monotonic()
    for earlier in logs.glob(f"{piece.name}.*"):
        earlier.unlink()
    command = [sys.executable, *(word.replace("{logs}", str(logs)) for word in piece.command)]
    with log.open("wb") as output:
        try:
            code = subprocess.run(command, cwd=REPOSITORY, stdout=output, stderr=subprocess.STDOUT).returncode
        except KeyboardInterrupt:
            return Outcome(piece.name, time.monotonic() - start, "interrupted")
    remarks = [counts(logs / f"{piece.name}.xml"), f"exit code {code}, see {log}" if code else ""]
    verdict = "failed" if code else "passed"
    return Outcome(piece.name, time.monotonic() - start, verdict, "; ".join(filter(None, remarks)))


def counts(report: Path) -> str:
    """The number of tests by outcome in a pytest report (JUnit XML); "" without a report."""
    if not report.exists():
        return ""
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    total, failed, broken, skipped = (
        sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    )
    numbers = {"passed": total - failed - broken - skipped, "failed": failed, "errors": broken, "skipped": skipped}
    return ", ".join(f"{count} {name}" for name, count in numbers.items() if count)


def table(outcomes: Sequence[Outcome]) -> str:
    """Format outcomes as aligned columns, with the total of the seconds."""
    width = max(len(outcome.name) for outcome in outcomes)
    lines = [f"{'piece':{width}}  seconds  outcome"]
    for outcome in outcomes:
        remark = f": {outcome.remark}" if outcome.remark else ""
        lines.append(f"{outcome.name:{width}}  {outcome.seconds:7.0f}  {outcome.verdict}{remark}")
    return "\n".join([*lines, f"{'sum':{width}}  {sum(outcome.seconds for outcome in outcomes):7.0f}"])


def tested_commit() -> str:
    """The current commit, with "-dirty" if tracked files other than `RECORD` have changes."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout

    changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{RECORD.relative_to(REPOSITORY)}")
    return (git("rev-parse", "--short=10", "HEAD").strip() or "unknown") + ("-dirty" if changes else "")


def record(outcomes: Sequence[Outcome], pieces: Sequence[Piece], path: Path, commit: str) -> None:
    """Add outcomes with today's date and the tested commit to the file of last outcomes, and list new pieces."""
    date = datetime.datetime.now(datetime.UTC).strftime("%Y-%m-%d")
    last = json.loads(path.read_text()) if path.exists() else {}
    for outcome in outcomes:
        if outcome.verdict in ("passed", "failed"):
            last[outcome.name] = {"verdict": outcome.verdict, "date": date, "commit": commit}
            last[outcome.name] |= {
                "seconds": round(outcome.seconds),
                "remark": outcome.remark.partition("exit code")[0].rstrip("; "),
            }
    for piece in pieces:
        last.setdefault(piece.name, {"verdict": "not run"})
    path.write_text(json.dumps(last, indent=2) + "\n")


def main(
    arguments: Sequence[str] | None = None,
    pieces: Sequence[Piece] = PIECES,
    logs: Path = LOGS,
    last: Path = RECORD,
) -> int:
    """Run the named pieces, print the table, record the outcomes, and return the exit code."""
    names = [piece.name for piece in pieces]
    description = "Run the tests that are too long for the suite."
    parser = argparse.ArgumentParser(prog="./launch/test.sh --long", description=description)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"pieces to run, of {', '.join(names)}; default: all")
    selected = parser.parse_args(arguments).names
    if unknown := [name for name in selected if name not in names]:
        parser.error(f"unknown piece {', '.join(unknown)}; choose from {', '.join(names)}")
    outcomes, commit = [], tested_commit()
    for outcome in run([piece for piece in pieces if piece.name in selected or not selected], logs):
        outcomes.append(outcome)
        record([outcome], pieces, last, commit)
        print(f"    {outcome.verdict} after {outcome.seconds:.0f} s {outcome.remark}".rstrip(), flush=True)
    print(f"\n{table(outcomes)}\nlogs: {logs}; last outcomes: {last}")
    verdicts = {outcome.verdict for outcome in outcomes}
    return INTERRUPTED if "interrupted" in verdicts else int("failed" in verdicts)


if __name__ == "__main__":
    sys.exit(main())
