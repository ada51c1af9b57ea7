"""Run what takes too long for the suite, one piece after the other, and print a table of the outcomes.

    python tests/long.py [NAME...]        all pieces, or those named; `./launch/test.sh --long` installs and calls this

A piece is the tests marked `long` of a room or of some of its files, or one of the scripts `tests/**/check_*.py`. What
a piece prints goes to a file of its own in `build/long/`. A piece whose data or packages are missing is skipped, with
the reason. Exits with 1 if a piece fails, with 130 if it is interrupted, and then the table says which pieces did not
run.
`tests/long.json` keeps each piece's last outcome with its date and commit, and names those that never ran.
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
    """One program to run from the root of the repository: words behind `python`, where {logs} is the folder of logs.

    `missing` returns why it cannot run here, or "".
    """

    name: str
    command: tuple[str, ...]
    missing: Callable[[], str] = lambda: ""


def needs_data(*folders: str) -> Callable[[], str]:
    """The reason to skip a piece that reads these folders of the real data."""

    def missing() -> str:
        absent = [str(DATA / folder) for folder in folders if not (DATA / folder).exists()]
        return f"needs {', '.join(absent)}; set BERTJAX_TEST_DATA" if absent else ""

    return missing


def needs_modules(*names: str) -> Callable[[], str]:
    """The reason to skip a piece that imports these modules."""

    def missing() -> str:
        absent = [name for name in names if importlib.util.find_spec(name) is None]
        return f"cannot import {', '.join(absent)}; run ./launch/test.sh, which installs it" if absent else ""

    return missing


def needs_a_launcher() -> str:
    """The reason to skip the check of commands: none of the programs that would read them is installed."""
    there = shutil.which("gcloud") or shutil.which("xpk") or importlib.util.find_spec("sky")
    return "" if there else "none of gcloud, xpk and sky is installed"


def first_of(*checks: Callable[[], str]) -> Callable[[], str]:
    """The first reason that applies."""
    return lambda: next((reason for check in checks if (reason := check())), "")


_WORKERS = str(min(4, 1 + (os.cpu_count() or 1)))
_FAULTS = ("crash", "bitrot", "kills", "hangs", "fuzzing", "sabotages")
# -vv undoes the -q of setup.cfg and names each test as it ends, so that the log of a run cut off has the failures.
_PYTEST = ("-m", "pytest", "--long", "-m", "long", "-vv", "-ra", "--durations=20", "--numprocesses", _WORKERS)
# The rooms with tests marked `long`, and the tests that are in no room.
ROOMS = {
    room: (f"tests/{room}",)
    for room in (
        *("chaos", "convert", "embed", "finetune", "input", "interpret", "launch", "model", "pipeline", "plan", "run"),
        *("runtime", "search", "storage", "text", "tokenization", "training"),
    )
} | {"package": tuple(sorted(f"tests/{path.name}" for path in (REPOSITORY / "tests").glob("test_*.py")))}

# The files of a room that are a piece of their own, as the room takes over half an hour.
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
    """The piece of the tests marked `long` that these words of pytest select."""
    name = f"tests-{name}"
    return Piece(name, (*_PYTEST, f"--junitxml={{logs}}/{name}.xml", "--dist", "worksteal", *words))


def room_pieces() -> Iterator[Piece]:
    """Each room, after its `PARTS`."""
    for room, paths in ROOMS.items():
        parts = {part: [f"tests/{room}/{file}" for file in files] for part, files in PARTS.get(room, {}).items()}
        yield from (long_tests(f"{room}-{part}", files) for part, files in parts.items())
        yield long_tests(room, [*paths, *(f"--ignore={file}" for files in parts.values() for file in files)])


# The short ones come first, so that a defect of the whole is seen early.
PIECES = (
    Piece("tools", ("tests/launch/check_tools.py",), needs_a_launcher),
    Piece("memory", ("tests/embed/check_memory.py",)),
    Piece(
        "wikipedia",
        ("tests/text/check_wikipedia.py", *map(str, sorted((DATA / "wikipedia_dumps").glob("*.bz2")))),
        first_of(needs_data("wikipedia_dumps"), needs_modules("mwparserfromhell")),
    ),
    Piece("hosts", ("tests/run/check_hosts.py",)),
    # What a part does not finish within its minutes it goes on with the next time.
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
    """Run the pieces in order and yield the outcome of each; what is left after an interruption does not run."""
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
    """Run one piece; it prints to NAME.log."""
    if why := piece.missing():
        return Outcome(piece.name, 0, "skipped", why)
    log, begun = logs / f"{piece.name}.log", time.monotonic()
    for earlier in logs.glob(f"{piece.name}.*"):
        earlier.unlink()
    command = [sys.executable, *(word.replace("{logs}", str(logs)) for word in piece.command)]
    with log.open("wb") as output:
        try:
            code = subprocess.run(command, cwd=REPOSITORY, stdout=output, stderr=subprocess.STDOUT).returncode
        except KeyboardInterrupt:
            return Outcome(piece.name, time.monotonic() - begun, "interrupted")
    remarks = [counts(logs / f"{piece.name}.xml"), f"exit code {code}, see {log}" if code else ""]
    verdict = "failed" if code else "passed"
    return Outcome(piece.name, time.monotonic() - begun, verdict, "; ".join(filter(None, remarks)))


def counts(report: Path) -> str:
    """How many tests a pytest report (JUnit XML) has of each outcome; "" without a report."""
    if not report.exists():
        return ""
    suites = list(ElementTree.parse(report).getroot().iter("testsuite"))
    total, failed, broken, skipped = (
        sum(int(suite.get(key, 0)) for suite in suites) for key in ("tests", "failures", "errors", "skipped")
    )
    found = {"passed": total - failed - broken - skipped, "failed": failed, "errors": broken, "skipped": skipped}
    return ", ".join(f"{count} {name}" for name, count in found.items() if count)


def table(outcomes: Sequence[Outcome]) -> str:
    """The outcomes as aligned columns, with the sum of the seconds."""
    width = max(len(outcome.name) for outcome in outcomes)
    lines = [f"{'piece':{width}}  seconds  outcome"]
    for outcome in outcomes:
        remark = f": {outcome.remark}" if outcome.remark else ""
        lines.append(f"{outcome.name:{width}}  {outcome.seconds:7.0f}  {outcome.verdict}{remark}")
    return "\n".join([*lines, f"{'sum':{width}}  {sum(outcome.seconds for outcome in outcomes):7.0f}"])


def tested_commit() -> str:
    """The commit that is checked out, with "-dirty" if a tracked file differs from it; `RECORD` does not count."""

    def git(*words: str) -> str:
        return subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True, check=False).stdout

    changes = git("status", "--porcelain", "--untracked-files=no", "--", ".", f":!{RECORD.relative_to(REPOSITORY)}")
    return (git("rev-parse", "--short=10", "HEAD").strip() or "unknown") + ("-dirty" if changes else "")


def record(outcomes: Sequence[Outcome], pieces: Sequence[Piece], path: Path, commit: str) -> None:
    """Add outcomes to the file of last outcomes, with today's date and the tested commit; name what never ran."""
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
    parser = argparse.ArgumentParser(prog="./launch/test.sh --long", description="Run what is too long for the suite.")
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"pieces to run, of {', '.join(names)}; default: all")
    asked = parser.parse_args(arguments).names
    if unknown := [name for name in asked if name not in names]:
        parser.error(f"no piece is named {', '.join(unknown)}; there are {', '.join(names)}")
    outcomes, commit = [], tested_commit()
    for outcome in run([piece for piece in pieces if piece.name in asked or not asked], logs):
        outcomes.append(outcome)
        record([outcome], pieces, last, commit)
        print(f"    {outcome.verdict} after {outcome.seconds:.0f} s {outcome.remark}".rstrip(), flush=True)
    print(f"\n{table(outcomes)}\nlogs: {logs}; last outcomes: {last}")
    verdicts = {outcome.verdict for outcome in outcomes}
    return INTERRUPTED if "interrupted" in verdicts else int("failed" in verdicts)


if __name__ == "__main__":
    sys.exit(main())
