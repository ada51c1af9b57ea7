"""The frame of HTML pages, with a content security policy against foreign scripts, and their tables."""

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
    """Join HTML parts, except empty ones, to a page.

    `style` and `script` are additional CSS and JavaScript. The page's content security policy forbids the network, and
    allows only these scripts and styles, by their hashes: markup in the text of a corpus could not run even unescaped.
    With `loads`, `script` is a module that may load programs and data from these sources of the policy.
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
    """The source expression of an allowed inline script or style (CSP level 3, section 2.3.1)."""
    return f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def escaped(value: object) -> str:
    """Convert to escaped HTML text."""
    return html.escape(str(value))


# Explanations of terms; a report shows those that it uses.
_TERMS = {
    "MLM": "masked language modelling: the model fills in hidden tokens",
    "CLM": "causal language modelling: the model predicts the next token",
    "SBO": "span-boundary objective: hidden tokens from the tokens around their span",
    "NSP": "next-sentence prediction: does the second segment follow the first?",
    "SOP": "sentence-order prediction: are two successive segments in their order?",
    "RTD": "replaced-token detection: which tokens did a generator replace?",
    "nats": "the unit of the loss: 1 nat lower means 2.7 times the probability for the right answer",
    "no context": "the best that is possible without looking at the surrounding words",
    "majority": "always the more frequent answer",
    "MFU": "model FLOPs utilization: the useful share of the machine's arithmetic rate",
    "F1": "balances precision and recall; macro F1 is its mean over the labels",
    "constant answer": "the better of two answers given to every example: the most frequent one, or F1's class",
}


def terms_html(page: Iterable[str]) -> str:
    """Explain the terms that occur in parts of a page."""
    text = "\n".join(page)
    lines = [
        f"<dt>{escaped(term)}</dt><dd>{escaped(meaning)}</dd>"
        for term, meaning in _TERMS.items()
        if re.search(rf"\b{term}\b", text)
    ]
    return f'<dl class="terms">{"".join(lines)}</dl>' if lines else ""


@dataclass(frozen=True)
class Table:
    """A title, a note on the figures, column names and rows; the first column is text."""

    title: str
    note: str
    columns: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def text_lines(table: Table, left: Collection[int] = (0,)) -> list[str]:
    """Format column names and rows for a terminal; the columns `left` are aligned left, the others right."""
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
    """Render a table with its title and note, for `render_page`; all text is escaped."""
    numbers = range(1, len(table.columns))
    return f'<h2>{escaped(table.title)}</h2>\n<p class="caption">{escaped(table.note)}</p>\n' + rows_html(
        table.columns, [[escaped(cell) for cell in row] for row in table.rows], numbers
    )


def rows_html(
    columns: Sequence[str], rows: Iterable[Sequence[str]], numbers: Collection[int] = (), *, headed: bool = True
) -> str:
    """Render a table of HTML cells; the columns `numbers` are aligned right.

    In a narrow window each row is a list of its cells with their column's name. If the rows are `headed`, the first
    cell is the list's heading.
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
