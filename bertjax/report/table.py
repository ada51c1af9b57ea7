"""A table of figures, which the terminal and the page share."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from bertjax.report.page import escaped


@dataclass(frozen=True)
class Table:
    """A title, a note about the figures, and rows under column names; the first column is text."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def text_lines(table: Table, left: Collection[int] = (0,)) -> list[str]:
    """Column names and rows for a terminal; the columns `left` are aligned left, the others right."""
    rows = (table.columns, *table.rows)
    widths = [max(len(row[place]) for row in rows) for place in range(len(table.columns))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def table_html(table: Table) -> str:
    """The table with its title and note, for `page.render_page`; all text is escaped."""
    kinds = ["", *(' class="number"' for _ in table.columns[1:])]
    heads = "".join(f"<th{kind}>{escaped(name)}</th>" for kind, name in zip(kinds, table.columns, strict=True))
    rows = "".join(
        "<tr>" + "".join(f"<td{kind}>{escaped(cell)}</td>" for kind, cell in zip(kinds, row, strict=True)) + "</tr>"
        for row in table.rows
    )
    return (
        f'<h2>{escaped(table.title)}</h2>\n<p class="caption">{escaped(table.note)}</p>\n'
        f'<div class="card scroll"><table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table></div>'
    )
