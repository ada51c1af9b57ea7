"""An inspection as one self-contained HTML page with charts, which loads nothing and runs no foreign script."""

from __future__ import annotations

from collections.abc import Sequence

from bertjax.inspect.corpus_figures import Lengths
from bertjax.inspect.inspection import Inspection
from bertjax.inspect.inspection_tables import frequent_tokens, masking_note, tables
from bertjax.inspect.row_figures import ReadablePair, piece_separators
from bertjax.report.bars import Bars, horizontal_bars, vertical_bars
from bertjax.report.page import escaped, render_page, rows_html, table_html

_OWN_STYLE = """
.examples { margin-top: 14px; }
.row { padding: 14px 18px; margin-top: 14px; }
.row p { margin: 6px 0 0; overflow-wrap: anywhere; }
.row b { color: var(--soft); font-weight: 600; margin-right: 8px; }
.row mark { padding: 1px 4px; }
.row mark del { text-decoration: none; margin-right: 4px; font-size: 12px; }
"""
_COLOURS = ("blue", "green", "violet")


def render_inspection(inspection: Inspection) -> str:
    """Render the page as HTML; all text is escaped."""
    amounts, words, rows, duplicates, overlap = tables(inspection)
    title = f"Token store {inspection.store}"
    names = [f"length {figures.kind.data.sequence_length}" for figures in inspection.rows]
    single = Bars("one pair per row", [figures.single.padding for figures in inspection.rows], "orange")
    packed = Bars("packed", [(figures.packed or figures.single).padding for figures in inspection.rows], "green")
    body = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="about">fingerprint {escaped(inspection.fingerprint[:12])}; inspected by bertjax</p>',
        *(f'<p class="about">note: {escaped(note)}</p>' for note in inspection.notes),
        table_html(amounts),
        "<h2>Lengths</h2>",
        _charts([_histogram(lengths, colour) for lengths, colour in zip(inspection.lengths, _COLOURS, strict=True)]),
        table_html(words),
        _charts(_frequent(inspection)),
        table_html(rows),
        _charts([horizontal_bars("Padding, share of the cells", names, [single, packed])]),
        table_html(duplicates),
        _examples(
            ("equal", "documents that begin"), [(f"{number:,}", [text]) for number, text in inspection.duplicate_texts]
        ),
        _examples(
            ("linked", "nearly equal documents, with their similarity"),
            [(f"{number:,}", [f"{share:.2f}: {a}", b]) for number, share, a, b in inspection.near_texts],
        ),
        table_html(overlap),
        _charts([_overlaps(inspection)]),
        _examples(
            ("runs seen", "texts with most of their 13-token runs in the training text"),
            [(f"{share:.0%}", [f"{name}: {text}"]) for name, share, text in inspection.overlap_texts],
        ),
        "<h2>Model input</h2>",
        '<p class="caption">Marked tokens are to be predicted: first the input, then the original. '
        f"{escaped(masking_note(inspection))}</p>",
        *(_pair(pair) for pair in inspection.readable),
    ]
    return render_page(title, body, style=_OWN_STYLE)


def _examples(columns: tuple[str, str], examples: Sequence[tuple[str, Sequence[str]]]) -> str:
    if not examples:
        return ""
    rows = [(escaped(mark), f"<span>{'<br>'.join(map(escaped, texts))}</span>") for mark, texts in examples]
    return f'<div class="examples">{rows_html(columns, rows, headed=False)}</div>'


def _charts(charts: Sequence[str]) -> str:
    inner = "\n".join(chart for chart in charts if chart)
    return f'<div class="charts">{inner}</div>' if inner else ""


def _histogram(lengths: Lengths, colour: str) -> str:
    edges, counts = lengths.binned(2)
    note = f"mean {lengths.mean:,.1f}, median {lengths.quantile(0.5):,}, 99% up to {lengths.quantile(0.99):,}"
    return vertical_bars(
        f"{lengths.what[0].upper()}{lengths.what[1:]}",
        edges.tolist(),
        (counts / max(counts.sum(), 1)).tolist(),
        colour,
        across=lengths.what,
        up="share",
        note=f"{note}, longest {len(lengths.counts) - 1:,}",
    )


def _frequent(inspection: Inspection) -> list[str]:
    """The most frequent tokens, half in each of two charts with the same scale."""
    tokens = frequent_tokens(inspection)
    half = -(-len(tokens) // 2)
    return [
        horizontal_bars(
            title, [token for token, _ in part], [Bars("share", [s for _, s in part], "blue")], tokens[0][1]
        )
        for title, part in (
            ("Most frequent tokens, share of all", tokens[:half]),
            ("The next most frequent tokens", tokens[half:]),
        )
        if part
    ]


def _overlaps(inspection: Inspection) -> str:
    names = [overlap.texts.name for overlap in inspection.overlaps]
    series = []
    for number, colour in enumerate(("orange", "violet")):
        results = [overlap.by_measure[number] for overlap in inspection.overlaps]
        label = f"{results[0].measure.name}, {results[0].measure.n} tokens"
        series.append(Bars(label, [result.flagged / max(result.texts, 1) for result in results], colour))
    return horizontal_bars("Flagged evaluation texts, share of those long enough", names, series)


def _pair(pair: ReadablePair) -> str:
    segments = ""
    for name, pieces in (("A", pair.a), ("B", pair.b)):
        words = ""
        for glue, piece in zip(piece_separators(pieces), pieces, strict=True):
            words += glue
            if piece.original is None:
                words += escaped(piece.token.removeprefix("##"))
            else:
                words += f"<mark><del>{escaped(piece.token)}</del>{escaped(piece.original)}</mark>"
        segments += f"<p><b>{name}</b>{words}</p>" if pieces else ""
    return f'<div class="row card"><b>row {pair.row}</b> {escaped(pair.label)}{segments}</div>'
