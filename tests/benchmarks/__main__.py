"""Run the benchmarks, compare their figures with the targets in figures.toml, and keep them for two pages.

    python -m tests.benchmarks [NAME ...] [--races] [--data DATA]     run all but the races, or those named
    python -m tests.benchmarks --allow-skipped                        also where data or KerasHub are missing
    python -m tests.benchmarks --readme                               only write the pages

Ends with a table of figures, bars and verdicts, and with exit code 1 if a figure falls short of its bar or a benchmark
does not run, else with 3 if one was skipped because what it needs is missing, unless --allow-skipped. What was
measured, with its command and the seconds of that, commit, machine and date, goes to results.json, where a figure that
does not run keeps what it had; the README's table of results is made from it. Run it on a machine that does nothing
else: ratios are measured in turns, but times are of the clock.

DATA has wikipedia_en/*.xz (WikiExtractor's output), books_en/*.xz (plain text), vocab/bert-base-uncased/vocab.txt,
glue/SST-2 and glue/MRPC (the sets' own files), pos/ (CoNLL-U). Figures whose folder is missing are skipped, and without
--keras PYTHON, an interpreter that has keras-hub, jax and libtpu, those beside KerasHub. Comparisons need what `pip
install -e '.[bench]'` installs.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import platform
import re
import subprocess
import sys
import time
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent))
from kept import commit_of
from race_table import race_table

from bertjax.storage.files import replace_text

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
FIGURES, RESULTS = HERE / "figures.toml", HERE / "results.json"
README, PAGE = REPOSITORY / "README.md", HERE / "README.md"  # six figures in short, and all
CHINESE = REPOSITORY / "README.zh.md"
RACE = HERE / "race.json"  # which bench_race.py keeps
DATA = REPOSITORY.parent / "shared" / "data"
BEGIN, END = "<!-- made by python -m tests.benchmarks -->", "<!-- end -->"
_WRITTEN = tuple(str(path.relative_to(REPOSITORY)) for path in (RESULTS, README, CHINESE, PAGE))
_SKIPPED = 3  # exit code
_TRIED = "[what was tried](#what-was-tried)"
_WORDS = ("command", "after", "data")  # keys of figures.toml that are lists of words
_PACKAGES = ("jax", "torch", "transformers")


@dataclass(frozen=True)
class Figure:
    """One entry of figures.toml."""

    name: str
    command: tuple[
        str, ...
    ]  # words behind `python`, from the root of the repository; {data}, {folder} and {keras} are filled in
    reads: str  # pattern of its output, whose first match has the value as its first group
    shown: str  # the value for a reader, as a format
    beside: str  # what the value is compared with; the pattern's further groups fill its braces
    least: float | None
    most: float | None
    set_by: str  # who set the bar and why
    fell_short: str  # where the bar could not be reached: what was measured, and what stands in the way
    tried: str  # what did not help, or not enough; a paragraph of the page
    retired: str  # why an earlier target is none, with the arithmetic
    after: tuple[str, ...]  # words of a command whose results this one reads
    data: tuple[str, ...]  # folders of DATA that it needs
    race: bool  # takes long: only with --races, or by name
    readme: str  # a short name: the figure has a row in the README's table
    against: str  # with `readme`: what it is compared with, in a few words

    @property
    def bar(self) -> str:
        """The bar for a reader."""
        limits = {"at least": self.least, "at most": self.most}
        parts = [f"{word} {limit:g}" for word, limit in limits.items() if limit is not None]
        return " and ".join(parts) or "none"

    def holds(self, value: float) -> bool:
        """Whether a value is within the bar."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def verdict(self, value: float, error: float, elsewhere: str = "") -> str:
        """The target, and whether a value is within it; if not, why it could not be reached, and what was tried.

        `elsewhere`, if given, stands for both reasons. A target nearer than the standard error `error` is said too.
        """
        limits = [limit for limit in (self.least, self.most) if limit is not None]
        near = ", by less than its standard error" * any(abs(value - limit) < error for limit in limits)
        if self.holds(value):
            return f"{self.bar}: reached{near}" if limits else self.bar
        missed, reasons = f"{self.bar}: not reached{near}", [*filter(None, (self.fell_short, self.tried))]
        return "; ".join([missed, *([elsewhere] if elsewhere and reasons else reasons)])


def read_figures(path: Path = FIGURES) -> dict[str, Figure]:
    """The entries by name. Raises ValueError for an unknown key, a name that comes twice and an entry without a bar's
    reason.
    """
    found: dict[str, Figure] = {}
    optional = {"least": None, "most": None, "race": False}
    optional |= dict.fromkeys(("set_by", "fell_short", "tried", "retired", "readme", "against"), "")
    optional |= dict.fromkeys(_WORDS[1:], ())
    for entry in tomllib.loads(path.read_text())["figure"]:
        values = optional | entry
        unknown = sorted(values.keys() - Figure.__dataclass_fields__.keys())
        if unknown or values["name"] in found:
            raise ValueError(
                f"{path}: {values.get('name')}: {f'unknown key {unknown[0]}' if unknown else 'named twice'}"
            )
        one = Figure(**values | {name: tuple(values[name]) for name in _WORDS})
        if one.bar != "none" and not one.set_by:
            raise ValueError(f"{path}: {one.name} has a bar, but set_by does not say who set it and why")
        found[one.name] = one
    return found


class Measured(NamedTuple):
    """What a figure's pattern reads."""

    value: float
    error: float  # its standard error, of the group `error`; 0 where the pattern has none


class Ran(NamedTuple):
    """A command that has ended."""

    end: str | int  # what it printed; its exit code if that is not 0
    seconds: float


def measure(
    figures: Sequence[Figure], data: Path, folder: Path, keras: str | None
) -> Iterator[tuple[Figure, Measured | str, float]]:
    """Each figure with its value, or with the reason why there is none, and the seconds that its command took.

    A command that several read runs once. What a value stands beside is filled in.
    """
    ran: dict[tuple[str, ...], Ran] = {}
    for figure in figures:
        if absent := [name for name in figure.data if not (data / name).exists()]:
            yield figure, f"skipped: needs {data / absent[0]}; give --data", 0.0
            continue
        if keras is None and any("{keras}" in word for word in figure.command):
            yield figure, "skipped: needs an interpreter with keras-hub; give --keras", 0.0
            continue
        commands = [words for words in (figure.after, figure.command) if words]
        filled = [tuple(word.format(data=data, folder=folder, keras=keras) for word in words) for words in commands]
        for words in filled:
            if words not in ran:
                ran[words] = run(words)
        ends, seconds = [ran[words].end for words in filled], ran[filled[-1]].seconds
        if codes := [end for end in ends if isinstance(end, int)]:
            yield figure, f"failed: exit code {codes[0]}", seconds
        elif found := re.search(figure.reads, str(ends[-1])):
            value, *others = found.groups()
            one = Measured(float(value.replace(",", "")), float(found.groupdict().get("error", 0)))
            yield replace(figure, beside=figure.beside.format(*others)), one, seconds
        else:
            yield figure, "failed: the output has no such figure", seconds


def run(words: Sequence[str]) -> Ran:
    """Run a command of Python and show what it prints."""
    print(f"\n$ python {' '.join(words)}", flush=True)
    lines, start = [], time.monotonic()
    # The package of this commit, whichever is installed.
    path = os.pathsep.join(filter(None, (str(REPOSITORY), os.environ.get("PYTHONPATH"))))
    pipe = {"stdout": subprocess.PIPE, "text": True, "env": os.environ | {"PYTHONPATH": path}}
    with subprocess.Popen([sys.executable, *words], cwd=REPOSITORY, **pipe) as process:
        assert process.stdout is not None
        for line in process.stdout:
            print(line, end="", flush=True)
            lines.append(line)
    seconds = time.monotonic() - start
    print(f"({seconds:.0f} s)", flush=True)
    return Ran(process.returncode or "".join(lines), seconds)


def circumstances() -> dict[str, str]:
    """Commit, machine, versions and date of a measurement."""
    # What the gate itself writes is no change of what it measures.
    described = commit_of(REPOSITORY, *_WRITTEN)
    versions = [f"{name} {metadata.version(name)}" for name in _PACKAGES if _is_installed(name)]
    return {
        "commit": described or "unknown",
        "machine": f"{_processor()}, {os.cpu_count()} cores",
        "versions": f"Python {platform.python_version()}, {', '.join(versions)}",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
    }


def _is_installed(name: str) -> bool:
    try:
        metadata.version(name)
    except metadata.PackageNotFoundError:
        return False
    return True


def _processor() -> str:
    """Its name, with the numbers by which processors of one name differ: a cloud's are all "AMD EPYC"."""
    cpuinfo = Path("/proc/cpuinfo")
    known = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", cpuinfo.read_text(), re.MULTILINE)) if cpuinfo.exists() else {}
    if not (name := known.get("model name", "").strip()):
        return platform.machine()
    numbers = " ".join(f"{key} {known[key]}" for key in ("cpu family", "model") if key in known)
    return f"{name} ({numbers.removeprefix('cpu ')})" if numbers else name


def readme_table(figures: Mapping[str, Figure], results: Mapping[str, Any]) -> str:
    """The README's table: a few figures, each with what it is compared with. Narrow enough for a phone."""
    lines = ["| | bertjax | compared with |", "|---|---|---|"]
    for figure in figures.values():
        if figure.readme and (found := results.get(figure.name)):
            shown = figure.shown.format(found["value"])
            lines.append(f"| {figure.readme} | {shown} | {figure.against} |")
    return "\n".join(lines)


def page_tables(figures: Mapping[str, Figure], results: Mapping[str, Any], race: Mapping[str, Any]) -> str:
    """The page's tables, of what has been measured, with what was tried and the targets that were retired."""
    lines = ["| figure | measured | compared with | target | command, commit, machine |", "|---|---|---|---|---|"]
    for figure in figures.values():
        if found := results.get(figure.name):
            named = {"data": "DATA", "folder": "DIR", "keras": "PYTHON"}
            command = found["command"].removeprefix("tests/benchmarks/").format(**named)
            # `outdated` is written by hand, where the measured recipe has changed; the next run of the gate removes it.
            shown = "; ".join(filter(None, (figure.shown.format(found["value"]), found.get("outdated"))))
            cells = (
                figure.name,
                shown,
                found.get("beside", figure.beside),
                figure.verdict(found["value"], found.get("error", 0.0), _TRIED),
                f"`{command}`, {found['commit']}, {found['machine']}",
            )
            lines.append(f"| {' | '.join(cells)} |")
    missed = [one for name, one in figures.items() if name in results and not one.holds(results[name]["value"])]
    lines += ["", "## What was tried", ""]
    for one in missed:
        reasons = ". ".join(reason[0].upper() + reason[1:] for reason in (one.fell_short, one.tried) if reason)
        lines += [f"**{one.name}** ({one.bar}; {one.set_by}). {reasons}.", ""]
    lines += ["## Retired targets", ""]
    lines += [line for one in figures.values() if one.retired for line in (f"**{one.name}**. {one.retired}.", "")]
    return "\n".join([*lines, "## The race between recipes", *race_table(race)]).rstrip()


def with_table(page: str, table: str) -> str:
    """A page with its table replaced. Raises ValueError if the two comments round the table are not there."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no lines {BEGIN!r} and {END!r} round its table of results")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _write_readme(figures: Mapping[str, Figure]) -> None:
    results, race = read_results(), json.loads(RACE.read_text())
    for path in (README, CHINESE):
        replace_text(path, with_table(path.read_text(), readme_table(figures, results)))
    replace_text(PAGE, with_table(PAGE.read_text(), page_tables(figures, results, race)))


def read_results() -> dict[str, Any]:
    """What was measured, by name."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def main() -> int:
    """Run what is asked for. Returns the exit code."""
    figures = read_figures()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a figure, or figures whose name has this in it")
    parser.add_argument("--races", action="store_true", help="also those that take long")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BERTJAX_TEST_DATA", DATA)))
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "build" / "benchmarks")
    parser.add_argument("--keras", metavar="PYTHON", help="an interpreter with keras-hub, jax and libtpu")
    parser.add_argument("--readme", action="store_true", help="only write the pages")
    parser.add_argument("--allow-skipped", action="store_true", help="end well although something is missing")
    arguments = parser.parse_args()
    if arguments.readme:
        _write_readme(figures)
        return 0
    named = [
        one
        for one in figures.values()
        if any(name == one.name or (name in one.name and name not in figures) for name in arguments.names)
    ]
    chosen = named if arguments.names else [one for one in figures.values() if arguments.races or not one.race]
    if not chosen:
        raise SystemExit(f"no figure's name has {arguments.names} in it; there are: {'; '.join(figures)}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    about, table, start = circumstances(), [], time.monotonic()
    falls_short = skipped = False
    for figure, found, seconds in measure(chosen, arguments.data, arguments.folder, arguments.keras):
        if (now := circumstances()["commit"]) != about["commit"]:
            raise SystemExit(
                f"the code changed from {about['commit']} to {now} meanwhile; run this in a clone of its own"
            )
        if isinstance(found, str):
            table.append((figure.name, found, figure.bar))
            skipped |= found.startswith("skipped")
            falls_short |= not found.startswith("skipped")
            continue
        measured = {"value": found.value, "beside": figure.beside, "seconds": round(seconds)}
        measured |= {"error": found.error} if found.error else {}
        one = measured | {"command": " ".join(figure.command)} | about
        replace_text(RESULTS, json.dumps(read_results() | {figure.name: one}, indent=1) + "\n")
        table.append((figure.name, figure.shown.format(found.value), figure.verdict(*found)))
        falls_short |= not figure.holds(found.value)
    width = max(len(name) for name, _, _ in table)
    print(f"\n{', '.join(about.values())}; {(time.monotonic() - start) / 60:.0f} minutes")
    for name, value, verdict in table:
        print(f"{name:{width}}  {value}  ({verdict})", flush=True)
    if races := sum(one.race and one not in chosen for one in figures.values()) * (not arguments.names):
        print(f"left out: {races} figures of races, which take long (--races)")
    _write_readme(figures)
    if falls_short:
        return 1
    return _SKIPPED if skipped and not arguments.allow_skipped else 0


if __name__ == "__main__":
    sys.exit(main())
