"""A file that collects the results of many fault campaigns, and the page written from it."""

from __future__ import annotations

import json
import subprocess
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from itertools import groupby
from pathlib import Path

from outcomes import Row, Table, as_markdown

REPOSITORY = Path(__file__).resolve().parents[2]
_CODE = ("bertjax", "tests/chaos", ":(exclude)*.md", ":(exclude)*.json")  # the files that results depend on
_BEGIN, _END = "<!-- made by check_faults.py --page: -->\n", "<!-- until here -->\n"


@dataclass
class Record:
    """The results of one slice of a part, with one seed and one version of the code."""

    part: str
    commit: str
    seed: int = 0
    number: int = 1  # of the slice
    of: int = 1  # slices
    done: int = 0  # finished trials
    minutes: float = 0.0
    date: str = ""  # of the last trial
    rows: list[Row] = field(default_factory=list)

    @property
    def series(self) -> tuple[str, str, int]:
        """The key of the trials that are cut into slices."""
        return self.commit, self.part, self.seed

    @property
    def size(self) -> tuple[int, int]:
        """(failures, trials). The larger of two records of a slice is kept, so that no failure is forgotten."""
        return sum(row.failed for row in self.rows), sum(row.tried for row in self.rows)

    @property
    def title(self) -> str:
        """A description of the slice."""
        return f"{self.part}, slice {self.number} of {self.of}, seed {self.seed}, commit {self.commit}, {self.date}"

    def update(self, rows: Sequence[Row], done: int, minutes: float) -> None:
        """Copy the state of a run."""
        self.rows, self.done, self.minutes = list(rows), done, round(minutes, 1)
        self.date = datetime.now(UTC).date().isoformat()


def code_version() -> str:
    """The last commit that changed the tested code; marked if there are uncommitted changes."""
    commit = _git("log", "-1", "--format=%h", "--", *_CODE)
    return f"{commit or 'unknown'}{', changed' * bool(_git('status', '--porcelain', '--', *_CODE))}"


def _git(*words: str) -> str:
    return subprocess.run(["git", *words], cwd=REPOSITORY, capture_output=True, text=True).stdout.strip()


class Results:
    """A file of records."""

    def __init__(self, file: Path) -> None:
        """Raises ValueError for a file of another format, or if a series is cut in two ways."""
        self._file, self.records = file, []
        if file.exists():
            try:
                records = [
                    Record(**one | {"rows": [Row(**row | {"ends": Counter(row["ends"])}) for row in one["rows"]]})
                    for one in json.loads(file.read_text())
                ]
            except (ValueError, TypeError, KeyError) as error:
                raise ValueError(f"{file}: not a results file of check_faults.py ({error})") from error
            for record in records:
                self._add(record)

    def _add(self, record: Record) -> None:
        for other in self.records:
            if other.series == record.series and other.of != record.of:
                raise ValueError(
                    f"{self._file}: {record.part} with seed {record.seed} is cut into {other.of} slices here and into "
                    f"{record.of} there, which would count trials twice; keep to --part I/{other.of}"
                )
        same = [one for one in self.records if (*one.series, one.number) == (*record.series, record.number)]
        if not same:
            self.records.append(record)
        elif record.size > same[0].size:
            self.records[self.records.index(same[0])] = record

    def resume(self, new: Record) -> Record:
        """Return the existing record of the same slice, to be continued, or add the new one."""
        self._add(new)
        return next(one for one in self.records if (*one.series, one.number) == (*new.series, new.number))

    def add(self, more: Iterable[Record]) -> None:
        """Add the records of another file, keeping the larger record of each slice."""
        for record in more:
            self._add(record)

    def write(self) -> None:
        """Replace the file."""
        self._file.parent.mkdir(parents=True, exist_ok=True)
        partial = self._file.with_suffix(".partial")
        # dataclasses.asdict of Python 3.11 converts Counters wrongly.
        documents = [
            vars(record) | {"rows": [vars(row) | {"ends": dict(row.ends)} for row in record.rows]}
            for record in self.records
        ]
        partial.write_text(json.dumps(documents, indent=1, sort_keys=True) + "\n")
        partial.replace(self._file)


def sum_rows(records: Iterable[Record]) -> list[Row]:
    """The rows of several slices, added by name."""
    whole = Table()
    for row in (row for record in records for row in record.rows):
        whole.put(row)
    return whole.rows


def as_page(records: Sequence[Record], details: bool = True) -> str:
    """The table of all parts at each commit and together; `details` adds the rows of each part at its last commit."""
    lines = ["| part | tried | survived | failed | slices | minutes | commit | until |"]
    lines.append("|---|---:|---:|---:|---:|---:|---|---|")
    last: list[list[Record]] = []
    order = sorted(records, key=lambda one: (one.part, one.date, one.commit))
    for part, part_records in groupby(order, key=lambda one: one.part):
        by_commit = [list(group) for _, group in groupby(part_records, key=lambda one: one.commit)]
        last.append(by_commit[-1])
        for mine in by_commit:
            slices = ", ".join(f"{sum(one.seed == seed for one in mine)} of {of}" for seed, of in _cuts(mine))
            lines.append(_line(part, mine, slices, mine[0].commit))
        if len(by_commit) > 1:
            lines.append(_line(f"{part}, together", [one for mine in by_commit for one in mine], "", ""))
    if details:
        for mine in last:
            lines += ["", f"{mine[0].part}, commit {mine[0].commit}:", "", as_markdown(sum_rows(mine))]
    return "\n".join(lines)


def _line(name: str, records: Sequence[Record], slices: str, commit: str) -> str:
    rows = sum_rows(records)
    tried, failed = sum(row.tried for row in rows), sum(row.failed for row in rows)
    minutes, until = sum(one.minutes for one in records), max(one.date for one in records)
    return f"| {name} | {tried:,} | {tried - failed:,} | {failed:,} | {slices} | {minutes:,.0f} | {commit} | {until} |"


def _cuts(records: Sequence[Record]) -> list[tuple[int, int]]:
    return sorted({(one.seed, one.of) for one in records})


def page_with(page: str, records: Sequence[Record]) -> str:
    """Replace the text between the page's marks with the tables of the records."""
    before, begin, rest = page.partition(_BEGIN)
    _, end, after = rest.partition(_END)
    assert begin and end, f"the page lacks {_BEGIN!r} or {_END!r}"
    return f"{before}{begin}\n{as_page(records)}\n\n{end}{after}"


def write_page(page: Path, campaign: Path, more: Sequence[Path]) -> None:
    """Add results files to the campaign, and write its tables into the page. Raises ValueError for other files."""
    results = Results(campaign)
    for file in more:
        results.add(Results(file).records)
    results.write()
    page.write_text(page_with(page.read_text(encoding="utf-8"), results.records), encoding="utf-8")
