"""Axes of charts (ranges, ticks, labels) and the figure around a plot, as inline SVG."""

from __future__ import annotations

import html
import math
import unicodedata
from collections.abc import Sequence
from dataclasses import dataclass

# In units of the drawing. In a wider figure the style sheet makes text smaller, so what fits here always fits.
WIDTH, HEIGHT = 420, 240
LEFT, RIGHT, TOP, BOTTOM = 64, 24, 12, 44
FONT = 13
_COUNTS = ((1e12, " T"), (1e9, " G"), (1e6, " M"), (1e3, " k"))
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Axis:
    """A range of values, with ticks and their labels.

    On a logarithmic axis, `low` and `high` are logarithms to base 10, and ticks are values. `scale` is the factor of
    the labels, for the title: "10⁻³", or empty.
    """

    low: float
    high: float
    ticks: tuple[float, ...]
    labels: tuple[str, ...]
    scale: str = ""
    log: bool = False

    def share(self, value: float) -> float:
        """The position of a value between the ends, 0 to 1; beyond them if it is outside."""
        at = math.log10(value) if self.log else value
        return (at - self.low) / (self.high - self.low)


def value_axis(low: float, high: float, form: str, *, log: bool = False, count: int = 5) -> Axis:
    """An axis that covers `low` to `high` with round ends; `form` as in `write`. For `log` both must be above 0."""
    return _log_axis(low, high, form) if log else _linear_axis(low, high, form, count)


def step_axis(low: float, high: float) -> Axis:
    """An axis of training steps, with labels at round steps and at the last one, where it ends."""
    # The last step replaces a round one whose label it would touch.
    rounded = [tick for tick in ticks(low, high, 5) if tick == round(tick) and high - tick > 0.13 * (high - low)]
    tick_values = (*rounded, high)
    labels = (f"{step:,.0f}" if step < 10_000 else write(step, "count") for step in tick_values)
    return Axis(low, high, tick_values, tuple(labels))


def ticks(low: float, high: float, count: int) -> list[float]:
    """Round numbers, about `count` of them, between low and high."""
    step = _round_step(low, high, count)
    return [round(i * step, 12) for i in range(math.ceil(low / step), math.floor(high / step) + 1)]


def log_ticks(low: float, high: float) -> list[float]:
    """Logarithms of 1, 2 and 5 times the powers of ten between low and high, or of the powers if those are many."""
    powers = range(math.floor(low), math.ceil(high) + 1)
    fine = [power + math.log10(m) for power in powers for m in (1, 2, 5)]
    fine = [tick for tick in fine if low - 1e-9 <= tick <= high + 1e-9]
    return fine if len(fine) <= 7 else [tick for tick in fine if tick == round(tick)]


def write(value: float, form: str) -> str:
    """Format a value for charts and tables: a `number`, a share as `percent`, or a `count` (12.3 k)."""
    if not math.isfinite(value):
        return "not finite"
    if form == "percent":
        return f"{value:.1%}"
    if form == "count":
        rounded = float(f"{value:.3g}")  # first, so that 999.9 k is 1 M
        for size, letter in _COUNTS:
            if abs(rounded) >= size:
                return f"{rounded / size:.3g}{letter}"
    if value and not 1e-3 <= abs(value) < 1e5:
        return f"{value:.2e}"
    return f"{value:.4g}"


def figure(
    title: str, height: int, drawn: Sequence[str], legend: Sequence[tuple[str, str]], *, note: str = "", more: str = ""
) -> str:
    """A chart with its title, a note below it, and a legend of (label, class of the style sheet).

    `drawn` and `more`, which follows the legend, are markup; all other text is escaped here.
    """
    small = f"<small>{html.escape(note)}</small>" if note else ""
    keys = "".join(f'<span class="key"><i class="{colour}"></i>{html.escape(label)}</span>' for label, colour in legend)
    return (
        f'<figure class="chart card"><figcaption>{html.escape(title)}{small}</figcaption>'
        f'<svg viewBox="0 0 {WIDTH} {height}" role="img" aria-label="{html.escape(title)}">{"".join(drawn)}</svg>'
        f'<div class="legend">{keys}</div>{more}</figure>'
    )


def axis_titles(across: str, up: str) -> str:
    """The titles of both axes, without empty ones: below the plot, and rotated at its left."""
    middle = TOP + (HEIGHT - TOP - BOTTOM) / 2
    below = f'<text class="axis" x="{(LEFT + WIDTH - RIGHT) / 2:.1f}" y="{HEIGHT - 7}" text-anchor="middle">'
    left = f'<text class="axis" transform="translate(13 {middle:.1f}) rotate(-90)" text-anchor="middle">'
    return "".join(f"{tag}{html.escape(title)}</text>" for tag, title in ((below, across), (left, up)) if title)


def up_grid(axis: Axis) -> str:
    """A line across the plot and a label at its left for each tick of the vertical axis."""
    drawn = []
    for tick, label in zip(axis.ticks, axis.labels, strict=True):
        y = HEIGHT - BOTTOM - axis.share(tick) * (HEIGHT - TOP - BOTTOM)
        drawn.append(f'<line class="grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        drawn.append(f'<text x="{LEFT - 7}" y="{y + 4.5:.1f}" text-anchor="end">{label}</text>')
    return "".join(drawn)


def truncate(text: str, room: float) -> str:
    """Truncate a text to `room` units of a drawing, with an ellipsis."""
    if text_width(text) <= room:
        return text
    while text and text_width(f"{text}…") > room:
        text = text[:-1]
    return f"{text}…"


def text_width(text: str) -> float:
    """An estimate of a text's width in units of a drawing, for the wider ones of the usual fonts."""

    def width(character: str) -> float:  # in heights of the font
        if unicodedata.east_asian_width(character) in "WF" or character in "%@MWmw":
            return 1.0
        return 0.42 if character in " .,:;!|'()[]ijlt" else 0.66

    return FONT * sum(map(width, text))


def _linear_axis(low: float, high: float, form: str, count: int) -> Axis:
    if low == high and form == "percent" and 0 <= low <= 1:
        low, high = 0.0, 1.0
    elif low == high:
        margin = 0.1 * abs(low) or 0.5
        low, high = (0.0 if low == 0 else low - margin), high + margin
    step = _round_step(low, high, count)
    digits = max(12, 6 - math.floor(math.log10(step)))  # a learning rate may be 1e-20
    tick_values = [
        round(i * step, digits) for i in range(math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9) + 1)
    ]
    labels, scale = _labels(tick_values, step, form)
    return Axis(tick_values[0], tick_values[-1], tuple(tick_values), labels, scale)


def _log_axis(low: float, high: float, form: str) -> Axis:
    """An axis with ends at 1, 2 or 5 times a power of ten, or over many powers at powers alone."""
    low, high = math.log10(low), math.log10(high)
    mantissas = (1, 2, 5) if high - low < 2 else (1,)
    powers = range(math.floor(low) - 1, math.ceil(high) + 2)
    ends = [power + math.log10(m) for power in powers for m in mantissas]
    low = max(end for end in ends if end <= low + 1e-9)
    high = min(end for end in ends if end >= max(high, low + 0.1) - 1e-9)
    values = [10**tick for tick in log_ticks(low, high)]
    tick_values = values[:: -(len(values) // 8 + 1)][::-1]
    labels = tuple(write(value, form) if form == "count" else f"{value:.4g}" for value in tick_values)
    return Axis(low, high, tuple(tick_values), labels, log=True)


def _round_step(low: float, high: float, count: int) -> float:
    raw = (high - low) / count
    size = 10 ** math.floor(math.log10(raw))
    return next(size * m for m in (1, 2, 2.5, 5, 10) if size * m >= raw * 0.999)


def _labels(tick_values: Sequence[float], step: float, form: str) -> tuple[tuple[str, ...], str]:
    """(labels with as few digits as distinguish the ticks, the power of ten that they leave out)."""
    largest = max(map(abs, tick_values))
    factor, suffix, scale = 1.0, "", ""
    if form == "percent":
        factor, suffix = 100.0, "%"
    elif form == "count":
        size, suffix = next(((size, letter) for size, letter in _COUNTS if largest >= size), (1.0, ""))
        factor = 1 / size
    elif not 0.01 <= largest < 1e5:
        power = math.floor(math.log10(largest) + 1e-9)
        factor, scale = 10.0**-power, f"10{str(power).translate(_SUPERSCRIPT)}"
    numbers: list[str] = []
    for digits in range(8):
        numbers = [f"{tick * factor:.{digits}f}" for tick in tick_values]
        if all(
            abs(float(number) - tick * factor) < 0.01 * step * factor
            for number, tick in zip(numbers, tick_values, strict=True)
        ):
            break
    texts = ("0" + ("%" if suffix == "%" else "") if float(number) == 0 else number + suffix for number in numbers)
    return tuple(number.replace("-", "−") for number in texts), scale
