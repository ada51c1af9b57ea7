"""Bar charts as inline SVG, in the style of a run's report; each bar says its value when pointed at."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from bertjax.report.charts import write

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
