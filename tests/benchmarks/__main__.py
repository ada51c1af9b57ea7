"""Run the benchmarks, compare their figures with the targets in figures.toml, and update the pages of results.

    python -m tests.benchmarks [NAME ...] [--races] [--data DATA]     run the named figures, or all but the races
    python -m tests.benchmarks --allow-skipped                        succeed without data or KerasHub
    python -m tests.benchmarks --readme                               only write the pages

Prints a table of figures, targets and verdicts. The exit code is 1 if a figure misses its target or a benchmark fails,
else 3 if one was skipped because something it needs is missing (unless --allow-skipped). Each value is written to
results.json with its command, duration, commit, machine and date; a figure that does not run keeps its old value. The
README's table of results is made from that file. Run this on an idle machine: ratios are measured in turns, but times
are wall time.

DATA has wikipedia_en/*.xz (WikiExtractor's output), books_en/*.xz (plain text), vocab/bert-base-uncased/vocab.txt,
glue/SST-2 and glue/MRPC (the original files), pos/ (CoNLL-U). A figure whose folder is missing is skipped, as are the
comparisons with KerasHub without --keras PYTHON, an interpreter with keras-hub, jax and libtpu. Comparisons need the
packages of `pip install -e '.[bench]'`.
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
from race_record import describe_commit
from race_table import race_table

from bertjax.storage.files import replace_text

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parents[1]
FIGURES, RESULTS = HERE / "figures.toml", HERE / "results.json"
README, PAGE = REPOSITORY / "README.md", HERE / "README.md"  # a few figures, and all figures
CHINESE = REPOSITORY / "README.zh.md"
RACE = HERE / "race.json"  # the record of bench_race.py
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
    command: tuple[str, ...]  # arguments of `python`, run in the repository; {data}, {folder} and {keras} are filled in
    reads: str  # pattern for the command's output; the first group of its first match is the value
    template: str  # formats the value
    beside: str  # what the value is compared with; the pattern's further groups fill its braces
    least: float | None
    most: float | None
    set_by: str  # who set the target and why
    fell_short: str  # where the target was missed: the measurements and the obstacle
    tried: str  # attempts that did not help enough; a paragraph of the page
    retired: str  # why an earlier target was dropped, with the arithmetic
    after: tuple[str, ...]  # a command that must run first, because this one reads its results
    data: tuple[str, ...]  # required folders of DATA
    race: bool  # takes long: runs only with --races or by name
    readme: str  # short name in the README's table; "" leaves the figure out
    against: str  # with `readme`: what it is compared with, in a few words

    @property
    def bar(self) -> str:
        """The target as text."""
        limits = {"at least": self.least, "at most": self.most}
        parts = [f"{word} {limit:g}" for word, limit in limits.items() if limit is not None]
        return " and ".join(parts) or "none"

    def holds(self, value: float) -> bool:
        """Whether a value meets the target."""
        return (self.least is None or value >= self.least) and (self.most is None or value <= self.most)

    def verdict(self, value: float, error: float, elsewhere: str = "") -> str:
        """The target and whether the value meets it; if not, followed by `elsewhere` or by the recorded reasons.

        Notes a difference below the standard error `error`.
        """
        limits = [limit for limit in (self.least, self.most) if limit is not None]
        near = ", by less than its standard error" * any(abs(value - limit) < error for limit in limits)
        if self.holds(value):
            return f"{self.bar}: reached{near}" if limits else self.bar
        missed, reasons = f"{self.bar}: not reached{near}", [*filter(None, (self.fell_short, self.tried))]
        return "; ".join([missed, *([elsewhere] if elsewhere and reasons else reasons)])


def read_figures(path: Path = FIGURES) -> dict[str, Figure]:
    """Read the entries by name.

    Raises ValueError for an unknown key, a duplicate name, and a target without a reason.
    """
    figures: dict[str, Figure] = {}
    optional = {"least": None, "most": None, "race": False}
    optional |= dict.fromkeys(("set_by", "fell_short", "tried", "retired", "readme", "against"), "")
    optional |= dict.fromkeys(_WORDS[1:], ())
    for entry in tomllib.loads(path.read_text())["figure"]:
        values = optional | entry
        unknown = sorted(values.keys() - Figure.__dataclass_fields__.keys())
        if unknown or values["name"] in figures:
            raise ValueError(
                f"{path}: {values.get('name')}: {f'unknown key {unknown[0]}' if unknown else 'duplicate name'}"
            )
        one = Figure(**values | {name: tuple(values[name]) for name in _WORDS})
        if one.bar != "none" and not one.set_by:
            raise ValueError(f"{path}: {one.name} has a target without set_by; write who set it and why")
        figures[one.name] = one
    return figures


class Measured(NamedTuple):
    """A value that a figure's pattern has read."""

    value: float
    error: float  # the standard error from the group `error`; 0 without that group


class Ran(NamedTuple):
    """A finished command."""

    end: str | int  # its output, or its exit code if that is not 0
    seconds: float


def measure(
    figures: Sequence[Figure], data: Path, folder: Path, keras: str | None
) -> Iterator[tuple[Figure, Measured | str, float]]:
    """Yield each figure with its value (or the reason for none) and the duration of its command in seconds.

    Runs a command once for all figures that read it, and fills the braces of `beside`.
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
        elif match := re.search(figure.reads, str(ends[-1])):
            value, *others = match.groups()
            one = Measured(float(value.replace(",", "")), float(match.groupdict().get("error", 0)))
            yield replace(figure, beside=figure.beside.format(*others)), one, seconds
        else:
            yield figure, "failed: the output does not contain the figure", seconds


def run(words: Sequence[str]) -> Ran:
    """Run a Python command, and pass on its output."""
    print(f"\n$ python {' '.join(words)}", flush=True)
    lines, start = [], time.monotonic()
    # Import the package from this checkout, whatever is installed.
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
    described = describe_commit(REPOSITORY, *_WRITTEN)
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
    """The processor's name with its family and model, because clouds call every processor "AMD EPYC"."""
    cpuinfo = Path("/proc/cpuinfo")
    fields = dict(re.findall(r"^([\w ]+?)\s*: (.*)$", cpuinfo.read_text(), re.MULTILINE)) if cpuinfo.exists() else {}
    if not (name := fields.get("model name", "").strip()):
        return platform.machine()
    numbers = " ".join(f"{key} {fields[key]}" for key in ("cpu family", "model") if key in fields)
    return f"{name} ({numbers.removeprefix('cpu ')})" if numbers else name


def readme_table(figures: Mapping[str, Figure], results: Mapping[str, Any]) -> str:
    """The README's table of a few figures, narrow enough for a phone."""
    lines = ["| | bertjax | compared with |", "|---|---|---|"]
    for figure in figures.values():
        if figure.readme and (result := results.get(figure.name)):
            shown = figure.template.format(result["value"])
            lines.append(f"| {figure.readme} | {shown} | {figure.against} |")
    return "\n".join(lines)


def page_tables(figures: Mapping[str, Figure], results: Mapping[str, Any], race: Mapping[str, Any]) -> str:
    """The page's table of measured figures, the attempts at missed targets, retired targets, and the race."""
    lines = ["| figure | measured | compared with | target | command, commit, machine |", "|---|---|---|---|---|"]
    for figure in figures.values():
        if result := results.get(figure.name):
            named = {"data": "DATA", "folder": "DIR", "keras": "PYTHON"}
            command = result["command"].removeprefix("tests/benchmarks/").format(**named)
            # `outdated` is added by hand after a change of the measured recipe; the next measurement removes it.
            shown = "; ".join(filter(None, (figure.template.format(result["value"]), result.get("outdated"))))
            cells = (
                figure.name,
                shown,
                result.get("beside", figure.beside),
                figure.verdict(result["value"], result.get("error", 0.0), _TRIED),
                f"`{command}`, {result['commit']}, {result['machine']}",
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
    """Replace the table of a page. Raises ValueError if the comments around the table are missing."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page lacks the lines {BEGIN!r} and {END!r} around its table of results")
    return f"{before}{BEGIN}\n{table}\n{END}{after}"


def _write_readme(figures: Mapping[str, Figure]) -> None:
    results, race = read_results(), json.loads(RACE.read_text())
    for path in (README, CHINESE):
        replace_text(path, with_table(path.read_text(), readme_table(figures, results)))
    replace_text(PAGE, with_table(PAGE.read_text(), page_tables(figures, results, race)))


def read_results() -> dict[str, Any]:
    """The recorded results by name."""
    return json.loads(RESULTS.read_text()) if RESULTS.exists() else {}


def main() -> int:
    """Run the command line. Returns the exit code."""
    figures = read_figures()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help="a figure, or a part of figures' names")
    parser.add_argument("--races", action="store_true", help="also run the figures that take long")
    parser.add_argument("--data", type=Path, default=Path(os.environ.get("BERTJAX_TEST_DATA", DATA)))
    parser.add_argument("--folder", type=Path, default=REPOSITORY / "build" / "benchmarks")
    parser.add_argument("--keras", metavar="PYTHON", help="an interpreter with keras-hub, jax and libtpu")
    parser.add_argument("--readme", action="store_true", help="only write the pages")
    parser.add_argument("--allow-skipped", action="store_true", help="exit with 0 although figures were skipped")
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
        raise SystemExit(f"no figure matches {arguments.names}; choose from: {'; '.join(figures)}")
    arguments.folder.mkdir(parents=True, exist_ok=True)
    about, table, start = circumstances(), [], time.monotonic()
    misses = skipped = False
    for figure, result, seconds in measure(chosen, arguments.data, arguments.folder, arguments.keras):
        if (now := circumstances()["commit"]) != about["commit"]:
            raise SystemExit(
                f"the code changed from {about['commit']} to {now} meanwhile; run this in a separate clone"
            )
        if isinstance(result, str):
            table.append((figure.name, result, figure.bar))
            skipped |= result.startswith("skipped")
            misses |= not result.startswith("skipped")
            continue
        measured = {"value": result.value, "beside": figure.beside, "seconds": round(seconds)}
        measured |= {"error": result.error} if result.error else {}
        one = measured | {"command": " ".join(figure.command)} | about
        replace_text(RESULTS, json.dumps(read_results() | {figure.name: one}, indent=1) + "\n")
        table.append((figure.name, figure.template.format(result.value), figure.verdict(*result)))
        misses |= not figure.holds(result.value)
    width = max(len(name) for name, _, _ in table)
    print(f"\n{', '.join(about.values())}; {(time.monotonic() - start) / 60:.0f} minutes")
    for name, value, verdict in table:
        print(f"{name:{width}}  {value}  ({verdict})", flush=True)
    if races := sum(one.race and one not in chosen for one in figures.values()) * (not arguments.names):
        print(f"left out: {races} figures of races, which take long; run them with --races")
    _write_readme(figures)
    if misses:
        return 1
    return _SKIPPED if skipped and not arguments.allow_skipped else 0


if __name__ == "__main__":
    sys.exit(main())
