"""The table of a campaign: what was tried, what came of it, and each failure."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

_TOLD_EVERY = 60.0  # seconds


@dataclass
class Row:
    """One kind of fault; `ends` counts how those that survived ended."""

    name: str
    tried: int = 0
    failed: int = 0
    ends: Counter[str] = field(default_factory=Counter)


class Table:
    """Rows by name; a failure is printed at once, and every minute how many trials there were."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}
        self._tried, self._told = 0, time.monotonic()

    def add(self, name: str, end: str, survived: bool, where: str) -> None:
        """Count a trial; `end` is how it survived, or what is wrong."""
        row = self._rows.setdefault(name, Row(name))
        row.tried += 1
        self._tried += 1
        if time.monotonic() > self._told + _TOLD_EVERY:
            self._told = time.monotonic()
            print(f"{self._tried:,} tried", file=sys.stderr, flush=True)
        if survived:
            row.ends[end] += 1
            return
        row.failed += 1
        print(f"FAILED {name}, {where}: {end}", file=sys.stderr, flush=True)

    @property
    def rows(self) -> list[Row]:
        """All of them, by name."""
        return sorted(self._rows.values(), key=lambda row: row.name)


def as_markdown(rows: Sequence[Row]) -> str:
    """The rows as a table in Markdown, with the sum."""
    lines = ["| fault | tried | survived | failed | of those that survived |", "|---|---:|---:|---:|---|"]
    for row in rows:
        ends = ", ".join(f"{count} {end}" for end, count in sorted(row.ends.items()))
        lines.append(f"| {row.name} | {row.tried} | {row.tried - row.failed} | {row.failed} | {ends} |")
    tried, failed = sum(row.tried for row in rows), sum(row.failed for row in rows)
    return "\n".join([*lines, f"| sum | {tried} | {tried - failed} | {failed} | |"])
