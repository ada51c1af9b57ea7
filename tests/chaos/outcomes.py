"""The trials of a campaign: which of them are made here, and the table of what was tried and what came of it."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

_TOLD_EVERY = 60.0  # seconds
_LONGEST = 300  # characters of an exception


@dataclass
class Row:
    """One kind of fault; `ends` counts how those that survived ended."""

    name: str
    tried: int = 0
    failed: int = 0
    ends: Counter[str] = field(default_factory=Counter)


class Table:
    """Rows by name; a failure is printed at once, and every minute how many trials there were."""

    def __init__(self, rows: Iterable[Row] = (), each_minute: Callable[[], None] = lambda: None) -> None:
        """Begin with the rows of an earlier run of the same trials; `each_minute` is called between trials."""
        self._rows = {row.name: row for row in rows}
        self._each_minute, self._told = each_minute, time.monotonic()

    def add(self, name: str, end: str, survived: bool, where: str) -> None:
        """Count a trial; `end` is how it survived, or what is wrong."""
        row = self._rows.setdefault(name, Row(name))
        row.tried += 1
        if survived:
            row.ends[end] += 1
        else:
            row.failed += 1
            print(f"FAILED {name}, {where}: {end}", file=sys.stderr, flush=True)
        if time.monotonic() > self._told + _TOLD_EVERY:
            self._told = time.monotonic()
            print(f"{self.tried:,} tried", file=sys.stderr, flush=True)
            self._each_minute()

    def put(self, row: Row) -> None:
        """Add the counts of a row that was counted elsewhere."""
        mine = self._rows.setdefault(row.name, Row(row.name))
        mine.tried, mine.failed, mine.ends = mine.tried + row.tried, mine.failed + row.failed, mine.ends + row.ends

    @contextlib.contextmanager
    def failing(self, name: str, where: str) -> Iterator[None]:
        """Count a failed trial of that row, with the exception's text, if an exception is raised within."""
        try:
            yield
        except Exception as error:  # of any kind: one trial does not end the campaign
            self.add(name, f"{type(error).__name__}: {str(error)[-_LONGEST:]}", False, where)

    @property
    def rows(self) -> list[Row]:
        """All of them, by name."""
        return sorted(self._rows.values(), key=lambda row: row.name)

    @property
    def tried(self) -> int:
        """The number of trials."""
        return sum(row.tried for row in self._rows.values())

    @property
    def failed(self) -> int:
        """The number of those that failed."""
        return sum(row.failed for row in self._rows.values())


@dataclass
class Share:
    """The trials that one run makes: of all that are numbered, those of slice `part` of `parts`, until a time."""

    part: int = 1
    parts: int = 1
    seed: int = 0
    done: int = 0  # trials of this share that are finished; an earlier run's are not made again
    until: float = float("inf")  # of time.monotonic

    def of(self, numbers: Iterable[int]) -> Iterator[int]:
        """The numbers of this slice in their order, without those that are done; the slices' union is all."""
        mine = (number for number in numbers if number % self.parts == self.part - 1)
        for place, number in enumerate(mine):
            if place < self.done:
                continue
            if time.monotonic() > self.until:
                return
            yield number
            self.done += 1


def require_known(what: str, given: Collection[str], known: Iterable[str]) -> None:
    """Raise ValueError for a name that there is none of; without it a trial would be left out in silence."""
    names = list(known)
    if unknown := [name for name in given if name not in names]:
        raise ValueError(f"{what}: nothing is named {', '.join(unknown)}; there are {', '.join(names)}")


def as_markdown(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown, with the sum."""
    lines = ["| fault | tried | survived | failed | of those that survived |", "|---|---:|---:|---:|---|"]
    for row in rows:
        ends = ", ".join(f"{count:,} {end}" for end, count in sorted(row.ends.items()))
        lines.append(f"| {row.name} | {row.tried:,} | {row.tried - row.failed:,} | {row.failed:,} | {ends} |")
    tried, failed = sum(row.tried for row in rows), sum(row.failed for row in rows)
    return "\n".join([*lines, f"| sum | {tried:,} | {tried - failed:,} | {failed:,} | |"])
