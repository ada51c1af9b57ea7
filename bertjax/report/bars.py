"""Bar charts as inline SVG: histograms, bars with names, the parts of a whole, and tables of counts.

A bar has a tooltip on hover, touch and keyboard focus, by the style sheet alone: a page of bars needs no script.
"""

from __future__ import annotations

import bisect
import html
import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from bertjax.report.axes import (
    BOTTOM,
    FONT,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    axis_titles,
    figure,
    text_width,
    truncate,
    up_grid,
    value_axis,
    write,
)

_LINE_HEIGHT = 23
_MOST_NAMES = 150  # room for the names of horizontal bars
_TIP_HEIGHT = 24
_LEAST_FIELD = 10  # minimum width of a field for the pointer


@dataclass(frozen=True)
class Bars:
    """A series of values, one for each category; `colour` is a class of the style sheet."""

    label: str
    values: Sequence[float]
    colour: str
    written: Sequence[str] = ()  # each value as text; by default a percentage

    def text(self, number: int) -> str:
        """A value as text."""
        return self.written[number] if self.written else f"{self.values[number]:.2%}"


@dataclass(frozen=True)
class Part:
    """A part of a whole: its share, and its size as text."""

    label: str
    share: float
    size: str
    colour: str


def vertical_bars(
    title: str,
    edges: Sequence[int],
    shares: Sequence[float],
    colour: str,
    *,
    across: str = "",
    up: str = "",
    note: str = "",
) -> str:
    """A histogram of shares: a bar for each range of whole numbers from one edge to before the next.

    `across` and `up` are the titles of the axes, `note` is below the title.
    """
    axis = value_axis(0.0, max(shares, default=0.0) or 1.0, "percent", count=4)
    width = (WIDTH - LEFT - RIGHT) / max(len(shares), 1)
    foot, height = HEIGHT - BOTTOM, HEIGHT - TOP - BOTTOM
    drawn, tips = [up_grid(axis), axis_titles(across, up)], []
    for number, share in enumerate(shares):
        low, high = edges[number], edges[number + 1] - 1
        x, top = LEFT + number * width, foot - height * axis.share(share)
        drawn.append(_bar(x + width * 0.06, top, width * 0.88, foot - top, colour))
        values = f"{low:,}" if low == high else f"{low:,} to {high:,}"
        tips.append(_tip(x, TOP, width, height, f"{values}: {share:.2%}", (x + width / 2, top)))
    for value, place in _labelled_values(edges, width):
        x = LEFT + place * width
        drawn.append(f'<text x="{x:.1f}" y="{foot + 18}" text-anchor="middle">{write(value, "count")}</text>')
    return figure(title, HEIGHT, [*drawn, *tips], [], note=note)


def _labelled_values(edges: Sequence[int], width: float) -> list[tuple[int, float]]:
    """1, 2 and 5 times the powers of ten, or these alone if those are too close, with their places in bars."""
    places: list[tuple[int, float]] = []
    for factors in ((1, 2, 5), (1,)):
        values = [factor * 10**power for power in range(len(str(edges[-1]))) for factor in factors]
        bins = [(value, bisect.bisect_right(edges, value) - 1) for value in values if edges[0] <= value < edges[-1]]
        places = [(value, n + (value - edges[n] + 0.5) / (edges[n + 1] - edges[n])) for value, n in bins]
        widths = [text_width(write(value, "count")) for value, _ in places]
        gaps = [width * (b - a) for (_, a), (_, b) in itertools.pairwise(places)]
        if all(gap >= (a + b) / 2 + 5 for gap, (a, b) in zip(gaps, itertools.pairwise(widths), strict=True)):
            break
    return places


def horizontal_bars(
    title: str, names: Sequence[str], series: Sequence[Bars], largest: float = 0.0, *, note: str = ""
) -> str:
    """A bar with its value for each name and series, the series of a name below each other.

    The longest bar is the largest value, or `largest` to give two charts the same scale. Text is escaped here.
    """
    largest = max([largest, *(value for bars in series for value in bars.values)]) or 1.0
    name_width = min(max(map(text_width, names), default=0.0), _MOST_NAMES - 12)
    names_room = name_width + 12
    values_room = max(text_width(bars.text(number)) for bars in series for number in range(len(names))) + 8
    room = WIDTH - names_room - values_room
    drawn, tips, y = [], [], float(TOP)
    for number, name in enumerate(names):
        middle = y + _LINE_HEIGHT * len(series) / 2 + 4.5
        drawn.append(
            f'<text x="{names_room - 9:.1f}" y="{middle:.1f}" text-anchor="end">'
            f"{html.escape(truncate(name, name_width))}</text>"
        )
        for bars in series:
            length = room * bars.values[number] / largest
            drawn.append(_bar(names_room, y + 4, length, _LINE_HEIGHT - 8, bars.colour))
            value = html.escape(bars.text(number))
            drawn.append(f'<text x="{names_room + length + 6:.1f}" y="{y + _LINE_HEIGHT / 2 + 4.5:.1f}">{value}</text>')
            tip = f"{name}{f', {bars.label}' if len(series) > 1 else ''}: {bars.text(number)}"
            tips.append(_tip(0, y, WIDTH, _LINE_HEIGHT, tip, (names_room + length / 2, y + 4)))
            y += _LINE_HEIGHT
    legend = [(bars.label, bars.colour) for bars in series if len(series) > 1]
    return figure(title, round(y + TOP), [*drawn, *tips], legend, note=note)


def parts_bar(title: str, parts: Sequence[Part]) -> str:
    """A bar of the parts of a whole, side by side; the rest is empty. Text is escaped here."""
    top, height, width = 2, 32, WIDTH - 4
    drawn, tips, x, reached = [f'<rect class="rest" x="2" y="{top}" width="{width}" height="{height}"/>'], [], 2.0, 2.0
    for number, part in enumerate(parts):
        length = width * part.share
        drawn.append(_bar(x, top, length, height, part.colour))
        tip = f"{part.label}: {part.size} ({part.share:.1%})"
        # A part too small to point at has a wider field, over the next part.
        start = min(max(x, reached), 2 + width - _LEAST_FIELD * (len(parts) - number))
        reached = start + max(x + length - start, _LEAST_FIELD)
        tips.append(_tip(start, top, reached - start, height, tip, (x + length / 2, top + _TIP_HEIGHT + 8)))
        x += length
    legend = [(f"{part.label} {part.size}", part.colour) for part in parts]
    return figure(title, top + height + 2, [*drawn, *tips], legend)


def count_map(title: str, names: Sequence[str], counts: Sequence[Sequence[int]], *, note: str = "") -> str:
    """A square table of counts, each cell shaded by its share of the row: the diagonal blue, other cells orange.

    Text is escaped here.
    """
    left = min(max(map(text_width, names)) + 14, _MOST_NAMES)
    cell = (WIDTH - left - 2) / len(names)
    longest = max(map(text_width, names))
    upright = longest > cell - 6
    top, height = (min(longest, 90) + 12 if upright else 22), min(cell, 44)
    drawn, tips = [], []
    for row, name in enumerate(names):
        y, middle = top + row * height, left + (row + 0.5) * cell
        drawn.append(
            f'<text x="{left - 8:.1f}" y="{y + height / 2 + 4.5:.1f}" text-anchor="end">'
            f"{html.escape(truncate(name, left - 12))}</text>"
        )
        place = f'transform="translate({middle + 4.5:.1f} {top - 6:.1f}) rotate(-90)"'
        if not upright:
            place = f'x="{middle:.1f}" y="{top - 7:.1f}" text-anchor="middle"'
        drawn.append(f"<text {place}>{html.escape(truncate(name, 90 if upright else cell))}</text>")
        for column, count in enumerate(counts[row]):
            x, share = left + column * cell, count / max(sum(counts[row]), 1)
            colour = "blue" if row == column else "orange"
            drawn.append(
                f'<rect class="shade {colour}" fill-opacity="{0.5 * share:.2f}" x="{x + 1:.1f}" y="{y + 1:.1f}" '
                f'width="{cell - 2:.1f}" height="{height - 2:.1f}" rx="3"/>'
            )
            drawn.append(
                f'<text class="strong" x="{x + cell / 2:.1f}" y="{y + height / 2 + 4.5:.1f}" text-anchor="middle">'
                f"{write(count, 'count')}</text>"
            )
            tip = f"{name} predicted as {names[column]}: {count:,} ({share:.0%})"
            tips.append(_tip(x, y, cell, height, tip, (x + cell / 2, y + 4)))
    return figure(title, round(top + len(names) * height + 2), [*drawn, *tips], [], note=note)


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<path class="area {colour}" d="M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h{-width:.1f}Z"/>'


def _tip(x: float, y: float, width: float, height: float, content: str, at: tuple[float, float]) -> str:
    """A field for pointer and keyboard, and its tooltip above the point `at`; drawn last, on top of everything."""
    text = truncate(content, WIDTH - 24)
    wide = text_width(text) + 16
    middle, above = min(max(at[0], wide / 2 + 1), WIDTH - wide / 2 - 1), max(at[1] - _TIP_HEIGHT - 4, 1.0)
    return (
        f'<rect class="hit" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" tabindex="0" '
        f'role="img" aria-label="{html.escape(content)}"/>'
        f'<g class="tip" transform="translate({middle:.1f} {above:.1f})">'
        f'<rect x="{-wide / 2:.1f}" width="{wide:.1f}" height="{_TIP_HEIGHT}" rx="5"/>'
        f'<text y="{_TIP_HEIGHT / 2 + FONT * 0.36:.1f}" text-anchor="middle">{html.escape(text)}</text></g>'
    )
