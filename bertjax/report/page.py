"""The frame of every page with the policy that keeps foreign script out, and its tables."""

from __future__ import annotations

import base64
import hashlib
import html
import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from bertjax.report.page_design import SCRIPT, STYLE


def render_page(
    title: str, parts: Iterable[str], *, style: str = "", reads_charts: bool = False, script: str = "", loads: str = ""
) -> str:
    """A page of HTML parts, without the empty ones.

    `style` and `script` are CSS and JavaScript of its own. The policy of the page forbids the network and every script
    and style but these, by their hashes: markup in the text of a corpus could run nothing even if it were not escaped.
    `loads` names the sources, as the policy does, that a `script` which is a module takes programs and data from.
    """
    styles = STYLE + style
    scripts = [text for text in (SCRIPT if reads_charts else "", script) if text]
    policy = f"default-src 'none'; base-uri 'none'; form-action 'none'; style-src {_hash(styles)}"
    if scripts:
        policy += f"; script-src {' '.join(map(_hash, scripts))}"
    if loads:
        policy += f" {loads} blob: 'wasm-unsafe-eval'; connect-src {loads}"
    kind = ' type="module"' if loads else ""
    run = "".join(f"<script{kind}>{text}</script>\n" for text in scripts)
    body = "\n".join(part for part in parts if part)
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escaped(title)}</title>\n<style>{styles}</style>\n</head>\n"
        f"<body>\n<main>\n{body}\n</main>\n{run}</body>\n</html>\n"
    )


def _hash(text: str) -> str:
    """The source expression that allows an inline script or style of exactly this text (CSP level 3, section 2.3.1)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def escaped(value: object) -> str:
    """A value as escaped HTML text."""
    return html.escape(str(value))


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
    widths = [max(len(row[number]) for row in rows) for number in range(len(table.columns))]
    return [
        "  "
        + "  ".join(
            cell.ljust(width) if number in left else cell.rjust(width)
            for number, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def table_html(table: Table) -> str:
    """The table with its title and note, for `page.render_page`; all text is escaped."""
    numbers = range(1, len(table.columns))
    return f'<h2>{escaped(table.title)}</h2>\n<p class="caption">{escaped(table.note)}</p>\n' + rows_html(
        table.columns, [[escaped(cell) for cell in row] for row in table.rows], numbers
    )


def _breakable(name: str) -> str:
    """A name as HTML that may be broken where a path would be, if it is too long for a column."""
    return re.sub(r"\S{25,}", lambda word: re.sub(r"(?<=[/_.:-])(?=\w)", "<wbr>", word[0]), escaped(name))


def rows_html(
    columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[int] = (), *, headed: bool = True
) -> str:
    """A table of cells that are HTML, those of the columns `numbers` to the right.

    Where the window is narrow each row is a list, whose entries say the name of their column; the first entry is its
    heading, if the rows are `headed`.
    """
    kinds = [' class="number"' if number in numbers else "" for number in range(len(columns))]
    names = [
        f' data-name="{escaped(name)}"' if name and (number or not headed) else ""
        for number, name in enumerate(columns)
    ]
    heads = "".join(f"<th{kind}>{escaped(name)}</th>" for kind, name in zip(kinds, columns, strict=True))
    body = "".join(
        "<tr>"
        + "".join(f"<td{kind}{name}>{cell}</td>" for kind, name, cell in zip(kinds, names, row, strict=True))
        + "</tr>"
        for row in rows
    )
    return (
        '<div class="card scroll"><table class="rows">'
        f"<thead><tr>{heads}</tr></thead><tbody>{body}</tbody></table></div>"
    )
