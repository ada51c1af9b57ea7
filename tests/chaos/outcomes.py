"""The table of a campaign: what was tried, what came of it, and each failure."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field


@dataclass
class Row:
    """One kind of fault; `ends` counts how those that survived ended."""

    name: str
    tried: int = 0
    failed: int = 0
    ends: Counter[str] = field(default_factory=Counter)


class Table:
    """Rows by name, in the order of their first trial; a failure is printed at once."""

    def __init__(self) -> None:
        self._rows: dict[str, Row] = {}

    def add(self, name: str, end: str, survived: bool, where: str) -> None:
        """Count a trial; `end` is how it survived, or what is wrong."""
        row = self._rows.setdefault(name, Row(name))
        row.tried += 1
        if survived:
            row.ends[end] += 1
            return
        row.failed += 1
        print(f"FAILED {name}, {where}: {end}", file=sys.stderr, flush=True)

    def rows(self) -> Iterator[Row]:
        """All of them."""
        yield from self._rows.values()


def as_markdown(rows: Iterable[Row]) -> str:
    """The rows as a table in Markdown, with the sum."""
    rows = list(rows)
    lines = ["| fault | tried | survived | failed | of those that survived |", "|---|---:|---:|---:|---|"]
    for row in rows:
        ends = ", ".join(f"{count} {end}" for end, count in sorted(row.ends.items()))
        lines.append(f"| {row.name} | {row.tried} | {row.tried - row.failed} | {row.failed} | {ends} |")
    tried, failed = sum(row.tried for row in rows), sum(row.failed for row in rows)
    return "\n".join([*lines, f"| sum | {tried} | {tried - failed} | {failed} | |"])
