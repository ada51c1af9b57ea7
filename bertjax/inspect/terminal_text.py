"""An inspection as text for a terminal."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence

import numpy as np

from bertjax.inspect.corpus_figures import Lengths
from bertjax.inspect.inspection import Inspection
from bertjax.inspect.inspection_tables import frequent_tokens, masking_note, tables
from bertjax.inspect.row_figures import ReadablePair, join_pieces
from bertjax.report.page import text_lines

_WIDTH = 118
_BAR = 16
_QUANTILES = (("half", 0.5), ("9 in 10", 0.9), ("99 in 100", 0.99))


def render_text(inspection: Inspection) -> str:
    """Render the inspection for a terminal of 120 columns."""
    amounts, words, rows, duplicates, overlap = (
        "\n".join([_heading(table.title), *_wrap(table.note, "  "), *text_lines(table)]) for table in tables(inspection)
    )
    tokens = ", ".join(f"{token} {share:.2%}" for token, share in frequent_tokens(inspection))
    parts = [
        "\n".join(
            [
                f"token store {inspection.store} ({inspection.fingerprint[:12]})",
                *(line for note in inspection.notes for line in _wrap(f"note: {note}", "  ")),
            ]
        ),
        amounts,
        _lengths(inspection.lengths),
        words,
        "\n".join(["  most frequent tokens, with their share of all:", *_wrap(tokens, "    ")]),
        rows,
        duplicates,
        _examples(
            "the largest groups of equal documents", [(f"{n:,} x", [text]) for n, text in inspection.duplicate_texts]
        ),
        _examples(
            "a pair of each of the largest groups of near-duplicates, with its similarity",
            [(f"{n:,} x", [f"{share:.2f}  {a}", b]) for n, share, a, b in inspection.near_texts],
        ),
        overlap,
        _examples(
            "texts with most of their 13-token runs in the training text",
            [(f"{share:.0%}", [f"{name}: {text}"]) for name, share, text in inspection.overlap_texts],
        ),
        _rows(inspection.readable, masking_note(inspection)),
    ]
    return "\n\n".join(part for part in parts if part)


def _lengths(all_lengths: Sequence[Lengths]) -> str:
    """Three histograms by powers of two side by side, with means and quantiles."""
    binned = [lengths.binned(1) for lengths in all_lengths]
    longest = max((edges for edges, _ in binned), key=len)
    bins = len(longest) - 1
    heads = "".join(f"{lengths.what:<{_BAR + 12}}" for lengths in all_lengths)
    lines = [f"  {'length':>19}  {heads}".rstrip()]
    for number in range(bins):
        low, high = int(longest[number]), int(longest[number + 1]) - 1
        cells = "".join(_bar(counts, number) for _, counts in binned)
        lines.append(f"  {(f'{low:,}' if low == high else f'{low:,}-{high:,}'):>19}  {cells}".rstrip())
    figures = [("mean", [f"{lengths.mean:,.1f}" for lengths in all_lengths])]
    figures += [
        (f"{name} up to", [f"{lengths.quantile(share):,}" for lengths in all_lengths]) for name, share in _QUANTILES
    ]
    figures.append(("longest", [f"{len(lengths.counts) - 1:,}" for lengths in all_lengths]))
    lines += [f"  {name:>19}  {''.join(f'{v:<{_BAR + 12}}' for v in values)}".rstrip() for name, values in figures]
    return "\n".join([_heading("Lengths"), *lines])


def _bar(counts: np.ndarray, number: int) -> str:
    share = counts[number] / max(sum(counts), 1) if number < len(counts) else 0.0
    largest = max(counts) / max(sum(counts), 1)
    bar = "█" * round(_BAR * share / largest) if share else ""
    label = f" {share:.1%}" if share >= 0.0005 else " <0.1%" if share else ""
    return f"{bar + label:<{_BAR + 12}}"


def _examples(title: str, examples: Sequence[tuple[str, Sequence[str]]]) -> str:
    if not examples:
        return ""
    lines = [f"  {title}:"]
    for mark, texts in examples:
        for number, text in enumerate(texts):
            lines += _wrap(text, f"    {mark if number == 0 else '':>7}  ", " " * 13)
    return "\n".join(lines)


def _rows(pairs: Sequence[ReadablePair], note: str) -> str:
    lines = [_heading("Model input"), *_wrap(f"[input:original] marks tokens to predict. {note}", "  ")]
    for pair in pairs:
        lines += ["", f"  row {pair.row}, {pair.label}"]
        lines += _wrap(join_pieces(pair.a), "    A  ", " " * 7)
        lines += _wrap(join_pieces(pair.b), "    B  ", " " * 7) if pair.b else []
    return "\n".join(lines)


def _heading(title: str) -> str:
    return f"{title}\n{'-' * len(title)}"


def _wrap(text: str, first: str, following: str | None = None) -> list[str]:
    indent = first if following is None else following
    return textwrap.wrap(text, _WIDTH, initial_indent=first, subsequent_indent=indent, break_on_hyphens=False)
