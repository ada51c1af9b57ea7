"""Select the trials of a campaign's slice, and tabulate their outcomes."""

from __future__ import annotations

import contextlib
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field

_PROGRESS_EVERY = 60.0  # seconds
_LONGEST = 300  # characters of an exception that are shown


@dataclass
class Row:
    """The counts for one kind of fault; `ends` counts the outcomes of survived trials."""

    name: str
    tried: int = 0
    failed: int = 0
    ends: Counter[str] = field(default_factory=Counter)


class Table:
    """Rows by name. Prints each failure at once, and the number of trials every minute."""

    def __init__(self, rows: Iterable[Row] = (), each_minute: Callable[[], None] = lambda: None) -> None:
        """Start with the rows of an earlier run of the same trials; `each_minute` is called between trials."""
        self._rows = {row.name: row for row in rows}
        self._each_minute, self._last_progress = each_minute, time.monotonic()

    def add(self, name: str, end: str, survived: bool, where: str) -> None:
        """Count a trial; `end` describes how it survived or failed."""
        row = self._rows.setdefault(name, Row(name))
        row.tried += 1
        if survived:
            row.ends[end] += 1
        else:
            row.failed += 1
            print(f"FAILED {name}, {where}: {end}", file=sys.stderr, flush=True)
        if time.monotonic() > self._last_progress + _PROGRESS_EVERY:
            self._last_progress = time.monotonic()
            print(f"{self.tried:,} tried", file=sys.stderr, flush=True)
            self._each_minute()

    def put(self, row: Row) -> None:
        """Add the counts of another table's row."""
        mine = self._rows.setdefault(row.name, Row(row.name))
        mine.tried, mine.failed, mine.ends = mine.tried + row.tried, mine.failed + row.failed, mine.ends + row.ends

    @contextlib.contextmanager
    def failing(self, name: str, where: str) -> Iterator[None]:
        """Count an exception in the block as a failed trial of that row."""
        try:
            yield
        except Exception as error:  # one trial must not end the campaign
            self.add(name, f"{type(error).__name__}: {str(error)[-_LONGEST:]}", False, where)

    @property
    def rows(self) -> list[Row]:
        """All rows, sorted by name."""
        return sorted(self._rows.values(), key=lambda row: row.name)

    @property
    def tried(self) -> int:
        """The number of trials."""
        return sum(row.tried for row in self._rows.values())

    @property
    def failed(self) -> int:
        """The number of failed trials."""
        return sum(row.failed for row in self._rows.values())


@dataclass
class Share:
    """The trials of one run: slice `part` of `parts` of all numbered trials, until a deadline."""

    part: int = 1
    parts: int = 1
    seed: int = 0
    done: int = 0  # finished trials of this share, including those of earlier runs
    until: float = float("inf")  # deadline by time.monotonic

    def take(self, numbers: Iterable[int]) -> Iterator[int]:
        """Yield the numbers of this slice that are not done yet, in order."""
        mine = (number for number in numbers if number % self.parts == self.part - 1)
        for place, number in enumerate(mine):
            if place < self.done:
                continue
            if time.monotonic() > self.until:
                return
            yield number
            self.done += 1


def require_known(what: str, chosen: Collection[str], known: Iterable[str]) -> None:
    """Raise ValueError for an unknown name, which would otherwise be skipped silently."""
    names = list(known)
    if unknown := [name for name in chosen if name not in names]:
        raise ValueError(f"{what}: unknown name {', '.join(unknown)}; choose from {', '.join(names)}")


def as_markdown(rows: Sequence[Row]) -> str:
    """Format the rows as a Markdown table with a sum."""
    lines = ["| fault | tried | survived | failed | of those that survived |", "|---|---:|---:|---:|---|"]
    for row in rows:
        ends = ", ".join(f"{count:,} {end}" for end, count in sorted(row.ends.items()))
        lines.append(f"| {row.name} | {row.tried:,} | {row.tried - row.failed:,} | {row.failed:,} | {ends} |")
    tried, failed = sum(row.tried for row in rows), sum(row.failed for row in rows)
    return "\n".join([*lines, f"| sum | {tried:,} | {tried - failed:,} | {failed:,} | |"])
