"""Line charts and stacked shares as inline SVG, each with the data of its hover read-out."""

from __future__ import annotations

import html
import itertools
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

_WIDTH, _HEIGHT = 560, 250
_LEFT, _RIGHT, _TOP, _BOTTOM = 52, 12, 10, 28
_POINTS = 400  # per line at most, so that a report of a million steps stays small
_BINS = 80  # of a stacked chart
_SMOOTH_FROM = 40  # points from which a noisy line also gets a smoothed one

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
    """A horizontal line to compare with."""

    label: str
    value: float


@dataclass(frozen=True)
class _Frame:
    """Maps steps and values to the pixels of the plot; `y` is the range of the values' logarithms if `log`."""

    x: tuple[float, float]
    y: tuple[float, float]
    form: str
    log: bool = False

    def px(self, step: float) -> float:
        low, high = self.x
        return _LEFT + (step - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT)

    def py(self, value: float) -> float:
        low, high = self.y
        at = math.log10(value) if self.log else value
        # A value far outside the plot is cut by the clip path; a huge coordinate would upset a renderer.
        share = min(max((at - low) / (high - low), -1.0), 2.0)
        return _HEIGHT - _BOTTOM - share * (_HEIGHT - _TOP - _BOTTOM)


def line_chart(
    title: str, lines: Sequence[Line], levels: Sequence[Level] = (), *, log: bool = False, form: str = "number"
) -> str:
    """A figure of lines over the steps; empty if no line has a value to draw (finite, and above 0 if `log`).

    `form` is how values read: `number`, `percent` (of shares), or `count` (12.3k). Text is escaped here.
    """
    lines = [line for line in lines if any(_is_drawn(value, log) for value in line.values)]
    if not lines:
        return ""
    frame = _Frame(_step_range(lines), _value_range(lines, levels, log), form, log)
    marks = [
        *(_level(frame, level) for level in levels if _is_drawn(level.value, log)),
        *(_draw(frame, line) for line in lines),
    ]
    legend = [_key(line.label, line.colour) for line in lines if len(lines) + len(levels) > 1]
    legend += [_key(f"{level.label} {write(level.value, form)}", "level") for level in levels]
    return _figure(title, frame, marks, legend, lines)


def stacked_chart(title: str, steps: Sequence[int], layers: Sequence[Line]) -> str:
    """A figure of shares that add up to 1 at every step, stacked; empty without steps."""
    if not steps:
        return ""
    edges = [round(i * len(steps) / min(_BINS, len(steps))) for i in range(min(_BINS, len(steps)) + 1)]
    slots = list(itertools.pairwise(edges))
    middle = [sum(steps[a:b]) / (b - a) for a, b in slots]
    frame = _Frame(_step_range(layers), (0.0, 1.0), "percent")
    below, marks, binned = [0.0] * len(slots), [], []
    for layer in layers:
        mean = [sum(layer.values[a:b]) / (b - a) for a, b in slots]
        above = [low + share for low, share in zip(below, mean, strict=True)]
        outline = list(zip(middle, above, strict=True)) + list(zip(middle, below, strict=True))[::-1]
        marks.append(f'<path class="area {layer.colour}" d="{_path(frame, outline)}Z"/>')
        binned.append(Line(layer.label, [round(x) for x in middle], mean, layer.colour))
        below = above
    legend = [_key(f"{layer.label} {write(_mean(layer.values), 'percent')}", layer.colour) for layer in layers]
    return _figure(title, frame, marks, legend, binned)


def write(value: float, form: str) -> str:
    """A value as the charts and tables write it; see `line_chart` for the forms."""
    if not math.isfinite(value):
        return "not finite"
    if form == "percent":
        return f"{value:.1%}"
    if form == "count":
        for size, letter in ((1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
            if abs(value) >= size:
                return f"{value / size:.3g} {letter}"
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:.4g}"


def _is_drawn(value: float, log: bool) -> bool:
    return math.isfinite(value) and (value > 0 or not log)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _step_range(lines: Sequence[Line]) -> tuple[float, float]:
    steps = [step for line in lines for step in line.steps]
    low, high = min(0, *steps), max(steps)
    return low, max(high, low + 1)


def _value_range(lines: Sequence[Line], levels: Sequence[Level], log: bool) -> tuple[float, float]:
    """From the lowest to the highest value with a margin, without rare spikes of noisy lines."""
    shown = [level.value for level in levels if _is_drawn(level.value, log)]
    for line in lines:
        values = sorted(value for value in line.values if _is_drawn(value, log))
        cut = len(values) // 100 if line.smooth else 0
        shown += values[cut : len(values) - cut]
    shown = [math.log10(value) for value in shown] if log else shown
    low, high = min(shown, default=0.0), max(shown, default=1.0)
    margin = 0.06 * (high - low) or 0.1 * abs(high) or 0.5
    return (0.0 if not log and 0 <= low < margin else low - margin), high + margin


def _ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers, about `count` of them, between low and high."""
    raw = (high - low) / count
    size = 10 ** math.floor(math.log10(raw))
    step = next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw * 0.999)
    return [round(i * step, 12) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def _log_ticks(low: float, high: float) -> list[float]:
    """Logarithms of 1, 2 and 5 times the powers of ten between low and high, or of the powers alone if that is many."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    fine = [power + math.log10(m) for power in powers for m in (1, 2, 5)]
    fine = [tick for tick in fine if low <= tick <= high]
    return fine if len(fine) <= 7 else [tick for tick in fine if tick == round(tick)]


def _grid(frame: _Frame) -> str:
    drawn = []
    for tick in _log_ticks(*frame.y) if frame.log else _ticks(*frame.y, 5):
        value = 10**tick if frame.log else tick
        y = frame.py(value)
        drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{_LEFT - 7}" y="{y + 4:.1f}" text-anchor="end">{_tick_label(value, frame.form)}</text>')
    for tick in _ticks(*frame.x, 5):
        x, y = frame.px(tick), _HEIGHT - _BOTTOM + 18
        drawn.append(f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{write(tick, "count")}</text>')
    return "".join(drawn)


def _tick_label(value: float, form: str) -> str:
    if form == "percent":
        return f"{value * 100:.3g}%"
    return write(value, form) if form == "count" else f"{value:.4g}"


def _level(frame: _Frame, level: Level) -> str:
    y = frame.py(level.value)
    return f'<line class="level" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>'


def _draw(frame: _Frame, line: Line) -> str:
    points: Points = list(zip(line.steps, line.values, strict=True))
    noisy = line.smooth and len(points) >= _SMOOTH_FROM
    drawn = f'<path class="{"noise " if noisy else ""}{line.colour}" d="{_path(frame, _thin(points))}"/>'
    if noisy:
        drawn += f'<path class="{line.colour}" d="{_path(frame, _running_mean(points))}"/>'
    if line.dots and len(points) <= 100:
        at = ((frame.px(x), frame.py(y)) for x, y in points if _is_drawn(y, frame.log))
        drawn += "".join(f'<circle class="{line.colour}" cx="{x:.1f}" cy="{y:.1f}" r="2.6"/>' for x, y in at)
    return drawn


def _path(frame: _Frame, points: Points) -> str:
    """SVG path data; the line is interrupted where a value cannot be drawn."""
    drawn, pen = [], "M"
    for step, value in points:
        if not _is_drawn(value, frame.log):
            pen = "M"
            continue
        drawn.append(f"{pen}{frame.px(step):.1f} {frame.py(value):.1f}")
        pen = "L"
    return "".join(drawn)


def _thin(points: Points) -> Points:
    """At most about `_POINTS` of the points: of each stretch its lowest and its highest, so that no spike is lost."""
    if len(points) <= _POINTS:
        return points
    size = math.ceil(len(points) / (_POINTS // 2))
    kept: Points = []
    for start in range(0, len(points), size):
        stretch = points[start : start + size]
        finite = [p for p in stretch if math.isfinite(p[1])] or stretch[:1]
        extremes = {min(finite, key=lambda p: p[1]), max(finite, key=lambda p: p[1])}
        kept += sorted(extremes)
    return kept


def _running_mean(points: Points) -> Points:
    """The trimmed mean around each point: of about a thirtieth of the finite points, without the extreme fifths."""
    points = [point for point in points if math.isfinite(point[1])]
    reach = max(2, len(points) // 60)
    smooth: Points = []
    for i in sorted({*range(0, len(points), max(1, len(points) // _POINTS)), max(0, len(points) - 1)}):
        near = sorted(value for _, value in points[max(0, i - reach) : i + reach + 1])
        cut = len(near) // 5
        smooth.append((points[i][0], _mean(near[cut : len(near) - cut])))
    return smooth


def _key(label: str, colour: str) -> str:
    return f'<span class="key"><i class="{colour}"></i>{html.escape(label)}</span>'


def _figure(title: str, frame: _Frame, marks: Sequence[str], legend: Sequence[str], lines: Sequence[Line]) -> str:
    width, height = _WIDTH - _LEFT - _RIGHT, _HEIGHT - _TOP - _BOTTOM
    # A nested svg cuts off what lies outside the plot, and needs no id that two charts could share.
    plot = f'<svg x="{_LEFT}" y="{_TOP}" width="{width}" height="{height}" viewBox="{_LEFT} {_TOP} {width} {height}">'
    return (
        f'<figure class="chart"><figcaption>{html.escape(title)}</figcaption>'
        f'<svg viewBox="0 0 {_WIDTH} {_HEIGHT}" role="img" aria-label="{html.escape(title)}, over the steps">'
        f"{_grid(frame)}{plot}{''.join(marks)}</svg>"
        f'<line class="cursor" y1="{_TOP}" y2="{_HEIGHT - _BOTTOM}" visibility="hidden"/></svg>'
        f'<div class="legend">{"".join(legend)}</div><div class="readout" hidden></div>'
        f'<script type="application/json">{_read_out(frame, lines)}</script></figure>'
    )


def _read_out(frame: _Frame, lines: Sequence[Line]) -> str:
    """The data of the hover read-out, as JSON that is safe inside a script tag."""
    series = [
        {
            "label": line.label,
            "colour": line.colour,
            "points": [[x, _short(y)] for x, y in _thin(list(zip(line.steps, line.values, strict=True)))],
        }
        for line in lines
    ]
    plot = {"left": _LEFT, "right": _WIDTH - _RIGHT, "width": _WIDTH, "x": frame.x, "form": frame.form}
    return json.dumps(plot | {"series": series}, separators=(",", ":")).replace("<", "\\u003c")


def _short(value: float) -> float | None:
    return float(f"{value:.5g}") if math.isfinite(value) else None
