"""Line charts and stacked shares as inline SVG, each with the data of its hover read-out."""

from __future__ import annotations

import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from bertjax.report.axes import (
    BOTTOM,
    HEIGHT,
    LEFT,
    RIGHT,
    TOP,
    WIDTH,
    Axis,
    axis_titles,
    figure,
    step_axis,
    up_grid,
    value_axis,
    write,
)

_POINTS = 400  # per line at most, so that the report of a million steps is small
_BINS = 80  # of a stacked chart
_SMOOTH_FROM = 40  # points from which on a noisy line gets a running mean

Points = list[tuple[float, float]]


@dataclass(frozen=True)
class Line:
    """A metric over the steps; `colour` is a class of the style sheet. `smooth` draws a running mean over it."""

    label: str
    steps: Sequence[int]
    values: Sequence[float]
    colour: str
    smooth: bool = False
    dots: bool = False


@dataclass(frozen=True)
class Level:
    """A horizontal line for comparison."""

    label: str
    value: float


@dataclass(frozen=True)
class _Frame:
    """Maps steps and values to the pixels of the plot."""

    x: Axis
    y: Axis
    form: str

    def px(self, step: float) -> float:
        return LEFT + self.x.share(step) * (WIDTH - LEFT - RIGHT)

    def py(self, value: float) -> float:
        # The clip path cuts values far outside the plot; renderers fail on huge coordinates.
        share = min(max(self.y.share(value), -1.0), 2.0)
        return HEIGHT - BOTTOM - share * (HEIGHT - TOP - BOTTOM)


def line_chart(
    title: str,
    lines: Sequence[Line],
    levels: Sequence[Level] = (),
    *,
    unit: str = "",
    log: bool = False,
    form: str = "number",
) -> str:
    """A figure of lines over the steps; empty if no line has a value to draw (finite, and above 0 if `log`).

    `unit` is the title of the vertical axis. `form` of values is `number`, `percent` (of shares) or `count` (12.3 k).
    Text is escaped here.
    """
    lines = [line for line in lines if any(_is_drawn(value, log) for value in line.values)]
    if not lines:
        return ""
    low, high = _value_range(lines, levels, log)
    frame = _Frame(_step_axis(lines), value_axis(low, high, form, log=log), form)
    heights = [frame.py(level.value) for level in levels if _is_drawn(level.value, log)]
    marks = [f'<line class="level" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>' for y in heights]
    marks += [_draw(frame, line) for line in lines]
    legend = [(line.label, line.colour) for line in lines if len(lines) + len(levels) > 1]
    legend += [(f"{level.label} {write(level.value, form)}", "level") for level in levels]
    return _figure(title, unit, frame, marks, legend, lines)


def stacked_chart(title: str, steps: Sequence[int], layers: Sequence[Line]) -> str:
    """A figure of shares that add up to 1 at every step, stacked; empty without steps."""
    if not steps:
        return ""
    edges = [round(i * len(steps) / min(_BINS, len(steps))) for i in range(min(_BINS, len(steps)) + 1)]
    slots = list(itertools.pairwise(edges))
    middle = [fmean(steps[a:b]) for a, b in slots]
    frame = _Frame(_step_axis(layers), value_axis(0.0, 1.0, "percent"), "percent")
    below, marks, binned = [0.0] * len(slots), [], []
    for layer in layers:
        mean = [fmean(layer.values[a:b]) for a, b in slots]
        above = [low + share for low, share in zip(below, mean, strict=True)]
        outline = list(zip(middle, above, strict=True)) + list(zip(middle, below, strict=True))[::-1]
        marks.append(f'<path class="area {layer.colour}" d="{_path(frame, outline)}Z"/>')
        binned.append(Line(layer.label, [round(x) for x in middle], mean, layer.colour))
        below = above
    legend = [(f"{layer.label} {write(fmean(layer.values), 'percent')}", layer.colour) for layer in layers]
    return _figure(title, "share of the time", frame, marks, legend, binned)


def _is_drawn(value: float, log: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not log)


def _step_axis(lines: Sequence[Line]) -> Axis:
    steps = [step for line in lines for step in line.steps]
    low, high = min(0, *steps), max(steps)
    return step_axis(low, max(high, low + 1))


def _value_range(lines: Sequence[Line], levels: Sequence[Level], log: bool) -> tuple[float, float]:
    """The lowest (0 if that is near) and the highest value, without rare spikes of noisy lines.

    A level has some room on both sides, so that it is not at an edge of the plot.
    """
    samples: list[float] = []
    for line in lines:
        values = sorted(value for value in line.values if _is_drawn(value, log))
        cut = len(values) // 100 if line.smooth else 0
        samples += values[cut : len(values) - cut]
    drawn = [level.value for level in levels if _is_drawn(level.value, log)]
    room = 0.0 if log else 0.02 * (max(samples + drawn) - min(samples + drawn))
    samples += [value + side * room for value in drawn for side in (-1, 1)]
    low, high = min(samples), max(samples)
    return (0.0 if not log and 0 <= low < 0.06 * (high - low) else low), high


def _draw(frame: _Frame, line: Line) -> str:
    points: Points = list(zip(line.steps, line.values, strict=True))
    noisy = line.smooth and len(points) >= _SMOOTH_FROM
    drawn = f'<path class="{"noise " if noisy else ""}{line.colour}" d="{_path(frame, _thin(points))}"/>'
    if noisy:
        drawn += f'<path class="{line.colour}" d="{_path(frame, _running_mean(points))}"/>'
    if line.dots and len(points) <= 100:
        at = ((frame.px(x), frame.py(y)) for x, y in points if _is_drawn(y, frame.y.log))
        drawn += "".join(f'<circle class="{line.colour}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in at)
    return drawn


def _path(frame: _Frame, points: Points) -> str:
    """SVG path data; the line is interrupted where a value cannot be drawn."""
    drawn, pen = [], "M"
    for step, value in points:
        if not _is_drawn(value, frame.y.log):
            pen = "M"
            continue
        drawn.append(f"{pen}{frame.px(step):.1f} {frame.py(value):.1f}")
        pen = "L"
    return "".join(drawn)


def _thin(points: Points) -> Points:
    """Keep about `_POINTS` points, the lowest and the highest of each stretch, so that no spike is lost."""
    if len(points) <= _POINTS:
        return points
    size = math.ceil(len(points) / (_POINTS // 2))
    extremes: Points = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        finite = [p for p in stretch if math.isfinite(p[1])] or stretch[:1]
        extremes += sorted({min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])})
    return extremes


def _running_mean(points: Points) -> Points:
    """The mean of about a thirtieth of the finite points around each, without the extreme fifths."""
    points = [point for point in points if math.isfinite(point[1])]
    reach = max(2, len(points) // 60)
    smooth: Points = []
    for i in sorted({*range(0, len(points), max(1, len(points) // _POINTS)), max(0, len(points) - 1)}):
        near = sorted(value for _, value in points[max(0, i - reach) : i + reach + 1])
        cut = len(near) // 5
        smooth.append((points[i][0], fmean(near[cut : len(near) - cut])))
    return smooth


def _figure(
    title: str,
    unit: str,
    frame: _Frame,
    marks: Sequence[str],
    legend: Sequence[tuple[str, str]],
    lines: Sequence[Line],
) -> str:
    width, height = WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM
    up = f"{unit} (× {frame.y.scale})" if frame.y.scale else unit
    # A nested svg clips without an id that two charts could share. It is a little larger than the plot, so that a line
    # along the edge keeps its width.
    edge = f'x="{LEFT}" y="{TOP - 3}" width="{width + 3}" height="{height + 6}"'
    plot = f'<svg {edge} viewBox="{LEFT} {TOP - 3} {width + 3} {height + 6}">'
    drawn = [
        up_grid(frame.y),
        *(
            f'<text x="{frame.px(tick):.1f}" y="{HEIGHT - BOTTOM + 18}" text-anchor="middle">{label}</text>'
            for tick, label in zip(frame.x.ticks, frame.x.labels, strict=True)
        ),
        axis_titles("training step", up),
        f"{plot}{''.join(marks)}</svg>",
        f'<line class="cursor" y1="{TOP}" y2="{HEIGHT - BOTTOM}" visibility="hidden"/>',
    ]
    # The data of the hover read-out, as JSON that is safe inside a script tag.
    series = []
    for line in lines:
        points = _thin(list(zip(line.steps, line.values, strict=True)))
        rounded = [[x, float(f"{y:.5g}") if math.isfinite(y) else None] for x, y in points]
        series.append({"label": line.label, "colour": line.colour, "points": rounded})
    steps = (frame.x.low, frame.x.high)
    data = {"left": LEFT, "right": WIDTH - RIGHT, "width": WIDTH, "x": steps, "form": frame.form, "series": series}
    content = json.dumps(data, separators=(",", ":")).replace("<", "\\u003c")
    read_out = f'<div class="readout" role="status" hidden></div><script type="application/json">{content}</script>'
    return figure(title, HEIGHT, drawn, legend, more=read_out)
