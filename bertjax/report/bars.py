"""Bar charts as inline SVG: histograms, bars with names, and the parts of one whole.

Pointing at a bar, touching it, or reaching it by the keyboard shows what it is; the style sheet does that alone, so a
page of bars needs no script.
"""

from __future__ import annotations

import html
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
    shortened,
    text_width,
    up_grid,
    value_axis,
    write,
)

_LINE_HEIGHT = 23
_MOST_NAMES = 150  # room for the names of horizontal bars
_TIP_HEIGHT = 24
_LEAST_FIELD = 10  # width of what a pointer has to reach


@dataclass(frozen=True)
class Bars:
    """A series of values, one for each category of a chart; `colour` is a class of the style sheet.

    `written` is how each value is written; without it they are shares.
    """

    label: str
    values: Sequence[float]
    colour: str
    written: Sequence[str] = ()

    def said(self, number: int) -> str:
        """A value in words."""
        return self.written[number] if self.written else f"{self.values[number]:.2%}"


@dataclass(frozen=True)
class Part:
    """A part of a whole: its share of that, and its size in words."""

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
    """A histogram: a bar for each range of whole numbers from one edge to before the next, its share upwards.

    `across` and `up` are the titles of the axes, `note` is below the title.
    """
    axis = value_axis(0.0, max(shares, default=0.0) or 1.0, "percent", count=4)
    width = (WIDTH - LEFT - RIGHT) / max(len(shares), 1)
    foot, height = HEIGHT - BOTTOM, HEIGHT - TOP - BOTTOM
    # Labels are as close as the longest of them allows.
    every = -(
        -round(max((text_width(write(edge, "count")) for edge in edges), default=0.0) + 8) // max(round(width), 1)
    )
    drawn, tips = [up_grid(axis), axis_titles(across, up)], []
    for number, share in enumerate(shares):
        low, high = edges[number], edges[number + 1] - 1
        x, top = LEFT + number * width, foot - height * axis.share(share)
        drawn.append(_bar(x + width * 0.06, top, width * 0.88, foot - top, colour))
        tips.append(_tip(x, TOP, width, height, f"{_range(low, high)}: {share:.2%}", (x + width / 2, top)))
        if number % every == 0:
            middle = f'x="{x + width / 2:.1f}" y="{foot + 18}" text-anchor="middle"'
            drawn.append(f"<text {middle}>{write(low, 'count')}</text>")
    return figure(title, HEIGHT, [*drawn, *tips], [], note=note)


def horizontal_bars(
    title: str, names: Sequence[str], series: Sequence[Bars], largest: float = 0.0, *, note: str = ""
) -> str:
    """A bar to the right for each name and series, its value after it, the series of a name below each other.

    The longest bar is the largest value, or `largest`, so that two charts can have one scale. Text is escaped here.
    """
    largest = max([largest, *(value for bars in series for value in bars.values)]) or 1.0
    names_room = min(max(map(text_width, names), default=0.0) + 12, _MOST_NAMES)
    values_room = max(text_width(bars.said(number)) for bars in series for number in range(len(names))) + 8
    room = WIDTH - names_room - values_room
    drawn, tips, y = [], [], float(TOP)
    for number, name in enumerate(names):
        middle = y + _LINE_HEIGHT * len(series) / 2 + 4.5
        drawn.append(
            f'<text x="{names_room - 9:.1f}" y="{middle:.1f}" text-anchor="end">'
            f"{html.escape(shortened(name, names_room - 12))}</text>"
        )
        for bars in series:
            length = room * bars.values[number] / largest
            drawn.append(_bar(names_room, y + 4, length, _LINE_HEIGHT - 8, bars.colour))
            value = html.escape(bars.said(number))
            drawn.append(f'<text x="{names_room + length + 6:.1f}" y="{y + _LINE_HEIGHT / 2 + 4.5:.1f}">{value}</text>')
            said = f"{name}{f', {bars.label}' if len(series) > 1 else ''}: {bars.said(number)}"
            tips.append(_tip(0, y, WIDTH, _LINE_HEIGHT, said, (names_room + length / 2, y + 4)))
            y += _LINE_HEIGHT
    legend = [(bars.label, bars.colour) for bars in series if len(series) > 1]
    return figure(title, round(y + TOP), [*drawn, *tips], legend, note=note)


def parts_bar(title: str, parts: Sequence[Part], *, note: str = "") -> str:
    """One bar of the parts of a whole, side by side; what they leave of it stays empty. Text is escaped here."""
    top, height, width = 2, 32, WIDTH - 4
    drawn, tips, x, reached = [f'<rect class="rest" x="2" y="{top}" width="{width}" height="{height}"/>'], [], 2.0, 2.0
    for number, part in enumerate(parts):
        length = width * part.share
        drawn.append(_bar(x, top, length, height, part.colour))
        said = f"{part.label}: {part.size} ({part.share:.1%})"
        # A part too small to point at has a wider field, over the next part.
        start = min(max(x, reached), 2 + width - _LEAST_FIELD * (len(parts) - number))
        reached = start + max(x + length - start, _LEAST_FIELD)
        tips.append(_tip(start, top, reached - start, height, said, (x + length / 2, top + _TIP_HEIGHT + 8)))
        x += length
    legend = [(f"{part.label} {part.size}", part.colour) for part in parts]
    return figure(title, top + height + 2, [*drawn, *tips], legend, note=note)


def _bar(x: float, y: float, width: float, height: float, colour: str) -> str:
    return f'<path class="area {colour}" d="M{x:.1f} {y:.1f}h{width:.1f}v{height:.1f}h{-width:.1f}Z"/>'


def _tip(x: float, y: float, width: float, height: float, said: str, at: tuple[float, float]) -> str:
    """A field that a pointer or the keyboard reaches, and the words that then show above the point `at`.

    All tips of a chart are drawn last: what comes later in an SVG covers what came before.
    """
    text = shortened(said, WIDTH - 24)
    wide = text_width(text) + 16
    middle, above = min(max(at[0], wide / 2 + 1), WIDTH - wide / 2 - 1), max(at[1] - _TIP_HEIGHT - 4, 1.0)
    return (
        f'<rect class="hit" x="{x:.1f}" y="{y:.1f}" width="{max(width, 0):.1f}" height="{height:.1f}" tabindex="0" '
        f'role="img" aria-label="{html.escape(said)}"/>'
        f'<g class="tip" transform="translate({middle:.1f} {above:.1f})">'
        f'<rect x="{-wide / 2:.1f}" width="{wide:.1f}" height="{_TIP_HEIGHT}" rx="5"/>'
        f'<text y="{_TIP_HEIGHT / 2 + FONT * 0.36:.1f}" text-anchor="middle">{html.escape(text)}</text></g>'
    )


def _range(low: int, high: int) -> str:
    return f"{low:,}" if low == high else f"{low:,} to {high:,}"
