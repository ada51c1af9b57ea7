"""An inspection as one self-contained HTML page with its charts, which loads nothing and runs no foreign script."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from bertjax.inspect.corpus_figures import Lengths
from bertjax.inspect.inspection import Inspection
from bertjax.inspect.inspection_tables import frequent_tokens, tables
from bertjax.inspect.row_figures import Piece, ReadablePair, glues
from bertjax.report.charts import write
from bertjax.report.page import escaped, render_page, table_html

_WIDTH, _HEIGHT = 560, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 10, 28
_LINE_HEIGHT = 21
_NAMES = 150  # pixels for the names of lying bars
_MOST_LABELS = 9


@dataclass(frozen=True)
class Bars:
    """A series of shares, one for each place of a chart; `colour` is a class of the style sheet."""

    label: str
    shares: Sequence[float]
    colour: str


def standing_bars(title: str, edges: Sequence[int], shares: Sequence[float], colour: str) -> str:
    """A histogram: a bar for each range of whole numbers from one edge to before the next, its share upwards."""
    largest = max(shares, default=0.0) or 1.0
    width = (_WIDTH - _LEFT - _RIGHT) / max(len(shares), 1)
    foot, height = _HEIGHT - _BOTTOM, _HEIGHT - _TOP - _BOTTOM
    every = -(-len(shares) // _MOST_LABELS)
    drawn = []
    for part in range(5):
        y, share = foot - height * part / 4, largest * part / 4
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{share * 100:.3g}%</text>')
    for number, share in enumerate(shares):
        low, high = edges[number], edges[number + 1] - 1
        x, top = _LEFT + number * width, foot - height * share / largest
        drawn.append(_bar(x + width * 0.06, top, width * 0.88, foot - top, colour, f"{low:,} to {high:,}: {share:.2%}"))
        if number % every == 0:
            drawn.append(
                f'<text x="{x + width / 2:.1f}" y="{_HEIGHT - 10}" text-anchor="middle">{write(low, "count")}</text>'
            )
    return _figure(title, _HEIGHT, drawn, [])


def lying_bars(title: str, names: Sequence[str], series: Sequence[Bars], largest: float = 0.0) -> str:
    """A bar to the right for each name and series, its share behind it, the series of a name below each other.

    The longest bar is the largest share, or `largest`, so that two charts can have one scale. Text is escaped here.
    """
    largest = max([largest, *(share for bars in series for share in bars.shares)]) or 1.0
    room = _WIDTH - _NAMES - 70
    drawn, y = [], float(_TOP)
    for number, name in enumerate(names):
        drawn.append(
            f'<text x="{_NAMES - 8}" y="{y + _LINE_HEIGHT * len(series) / 2 + 4:.1f}" text-anchor="end">'
            f"{html.escape(name)}</text>"
        )
        for bars in series:
            share = bars.shares[number]
            said = f"{name}{f', {bars.label}' if len(series) > 1 else ''}: {share:.2%}"
            drawn.append(_bar(_NAMES, y + 3, room * share / largest, _LINE_HEIGHT - 6, bars.colour, said))
            at = _NAMES + room * share / largest + 6
            drawn.append(f'<text x="{at:.1f}" y="{y + _LINE_HEIGHT / 2 + 4:.1f}">{share:.2%}</text>')
            y += _LINE_HEIGHT
    legend = [(bars.label, bars.colour) for bars in series if len(series) > 1]
    return _figure(title, round(y + _TOP), drawn, legend)


def _bar(x: float, y: float, width: float, height: float, colour: str, said: str) -> str:
    return (
        f'<path class="area {colour}" d="M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h{-width:.1f}Z">'
        f"<title>{html.escape(said)}</title></path>"
    )


def _figure(title: str, height: int, drawn: Sequence[str], legend: Sequence[tuple[str, str]]) -> str:
    keys = "".join(f'<span class="key"><i class="{c}"></i>{html.escape(label)}</span>' for label, c in legend)
    return (
        f'<figure class="chart card"><figcaption>{html.escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{html.escape(title)}">{"".join(drawn)}</svg>'
        f'<div class="legend">{keys}</div></figure>'
    )


_OWN_STYLE = """
td:first-child { overflow-wrap: anywhere; }
p.caption { max-width: 96ch; }
.charts { grid-template-columns: repeat(auto-fill, minmax(min(440px, 100%), 1fr)); }
.examples td { padding: 7px 18px; }
.row { padding: 14px 18px; margin-top: 14px; }
.row p { margin: 6px 0 0; overflow-wrap: anywhere; }
.row b { color: var(--soft); font-weight: 600; margin-right: 8px; }
.row mark { padding: 1px 4px; white-space: nowrap; }
.row mark del { opacity: .75; text-decoration: none; margin-right: 4px; font-size: 12px; }
"""
_COLOURS = ("blue", "green", "violet")


def render_inspection(found: Inspection) -> str:
    """The page as HTML; all text is escaped."""
    amounts, words, rows, duplicates, overlap = tables(found)
    title = f"Token store {found.store}"
    body = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="about">fingerprint {escaped(found.fingerprint[:12])}; inspected by bertjax</p>',
        table_html(amounts),
        "<h2>Lengths</h2>",
        _charts([_histogram(one, colour) for one, colour in zip(found.lengths, _COLOURS, strict=True)]),
        table_html(words),
        _charts(_frequent(found)),
        table_html(rows),
        _charts([_padding(found)]),
        table_html(duplicates),
        _examples(
            ("equal", "documents that begin"), [(f"{number:,}", [text]) for number, text in found.duplicate_texts]
        ),
        _examples(
            ("linked", "nearly equal documents, with their similarity"),
            [(f"{number:,}", [f"{share:.2f}: {a}", b]) for number, share, a, b in found.near_texts],
        ),
        table_html(overlap),
        _charts([_overlaps(found)]),
        _examples(
            ("runs seen", "texts with most of their 13-token runs in the training text"),
            [(f"{share:.0%}", [f"{name}: {text}"]) for name, share, text in found.overlap_texts],
        ),
        "<h2>Rows as the model sees them</h2>",
        '<p class="caption">Marked is what is to be predicted: first what is shown, then what was there.</p>',
        *(_pair(pair) for pair in found.readable),
    ]
    return render_page(title, body, style=_OWN_STYLE)


def _examples(columns: tuple[str, str], examples: Sequence[tuple[str, Sequence[str]]]) -> str:
    if not examples:
        return ""
    heads = "".join(f"<th>{escaped(name)}</th>" for name in columns)
    rows = "".join(
        f"<tr><td>{escaped(mark)}</td><td>{'<br>'.join(escaped(text) for text in texts)}</td></tr>"
        for mark, texts in examples
    )
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<div class="card scroll examples" style="margin-top:14px">{table}</div>'


def _charts(charts: Sequence[str]) -> str:
    inner = "\n".join(chart for chart in charts if chart)
    return f'<div class="charts" style="margin-top:14px">{inner}</div>' if inner else ""


def _histogram(lengths: Lengths, colour: str) -> str:
    edges, counts = lengths.binned(2)
    quantiles = f"mean {lengths.mean:,.1f}, median {lengths.quantile(0.5):,}, 99% up to {lengths.quantile(0.99):,}"
    title = f"{lengths.what[0].upper()}{lengths.what[1:]} ({quantiles}, longest {len(lengths.counts) - 1:,})"
    return standing_bars(title, edges.tolist(), (counts / max(counts.sum(), 1)).tolist(), colour)


def _frequent(found: Inspection) -> list[str]:
    """The most frequent tokens, half of them in each of two charts of one scale."""
    tokens = frequent_tokens(found)
    half = -(-len(tokens) // 2)
    return [
        lying_bars(title, [token for token, _ in part], [Bars("share", [s for _, s in part], "blue")], tokens[0][1])
        for title, part in (
            ("Most frequent tokens, share of all", tokens[:half]),
            ("The next most frequent tokens", tokens[half:]),
        )
        if part
    ]


def _padding(found: Inspection) -> str:
    names = [f"length {figures.kind.data.sequence_length}" for figures in found.rows]
    single = Bars("a pair to a row", [figures.single.padding for figures in found.rows], "orange")
    packed = Bars("packed", [(figures.packed or figures.single).padding for figures in found.rows], "green")
    return lying_bars("Padding, share of the cells", names, [single, packed])


def _overlaps(found: Inspection) -> str:
    names = [overlap.texts.name[-22:] for overlap in found.overlaps]
    series = [
        Bars(f"{one.measure.name}, {one.measure.n} tokens", [], colour)
        for one, colour in zip(found.overlaps[0].by_measure, ("orange", "violet"), strict=True)
    ]
    series = [
        Bars(bars.label, [_share(o.by_measure[n].flagged, o.by_measure[n].texts) for o in found.overlaps], bars.colour)
        for n, bars in enumerate(series)
    ]
    return lying_bars("Evaluation texts flagged, share of those that are long enough", names, series)


def _share(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _pair(pair: ReadablePair) -> str:
    segments = "".join(
        f"<p><b>{name}</b>{_pieces(pieces)}</p>" for name, pieces in (("A", pair.a), ("B", pair.b)) if pieces
    )  # fmt: skip
    return f'<div class="row card"><b>row {pair.row}</b> {escaped(pair.label)}{segments}</div>'


def _pieces(pieces: tuple[Piece, ...]) -> str:
    return "".join(glue + _piece(piece) for glue, piece in zip(glues(pieces), pieces, strict=True))


def _piece(piece: Piece) -> str:
    if piece.original is None:
        return escaped(piece.shown.removeprefix("##"))
    return f"<mark><del>{escaped(piece.shown)}</del>{escaped(piece.original)}</mark>"
