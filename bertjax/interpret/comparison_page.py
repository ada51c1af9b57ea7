"""A comparison of runs as tables for the terminal, and as a page with a chart of the differences."""

from __future__ import annotations

import math
from collections.abc import Iterator

from bertjax.interpret.paired_bootstrap import Difference
from bertjax.interpret.run_comparison import Compared, Comparison
from bertjax.report.axes import BOTTOM, RIGHT, TOP, WIDTH, truncate, value_axis
from bertjax.report.axes import figure as chart_figure
from bertjax.report.page import Table, escaped, render_page, table_html

_CLEAR = 0.05  # p-value below which a difference counts as clear
_LEFT, _ROW = 24, 42  # in units of the drawing
_METHOD = (
    "Differences are from the first run, with 95% intervals and two-sided p-values by paired bootstrap over the "
    "examples. The test compares these checkpoints, not their recipes."
)


def comparison_tables(comparison: Comparison) -> Iterator[Table]:
    """A table for each figure, with each run's value, difference, interval and p-value."""
    for figure in comparison.figures:
        columns = zip(comparison.runs, comparison.steps, figure.values, (None, *figure.differences), strict=True)
        rows = tuple(
            (run, f"{step:,}", f"{value:{figure.form}}", *(("", "", "") if delta is None else _columns(delta, figure)))
            for run, step, value, delta in columns
        )
        note = f"On {comparison.examples}. {'Less' if figure.less_is_better else 'More'} is better."
        headings = ("Run", "Step", "Value", "Difference", "95% interval", "p-value")
        yield Table(figure.name, note, headings, rows)


def verdicts(comparison: Comparison) -> Iterator[str]:
    """A sentence for each difference."""
    for figure in comparison.figures:
        for run, difference in zip(comparison.runs[1:], figure.differences, strict=True):
            yield f"{figure.name}: {_verdict(run, comparison.runs[0], difference, figure)}"


def _verdict(run: str, first: str, difference: Difference, figure: Compared) -> str:
    if math.isnan(difference.p_value):
        return f"{run} and {first} cannot be compared: the figure is undefined on these examples"
    if difference.value == 0:
        return f"{run} and {first} are equal"
    better = (difference.value < 0) == figure.less_is_better
    verdict = f"{run} is {'better' if better else 'worse'} than {first} by {_amount(abs(difference.value), figure)}"
    if difference.p_value >= _CLEAR:
        return f"{verdict}, not significant (p = {difference.p_value:.2g})"
    return f"{verdict} (p {_p_value(difference)})"


def _amount(value: float, figure: Compared, sign: str = "") -> str:
    """A difference between two values: of shares in points."""
    form = f"{sign}{figure.form}"
    text = f"{100 * value:{form[:-1]}f} points" if form.endswith("%") else f"{value:{form}}"
    return text.replace("-", "−")


def _p_value(difference: Difference) -> str:
    return f"= {difference.p_value:.2g}" if difference.p_value >= 0.001 else "< 0.001"


def _columns(difference: Difference, figure: Compared) -> tuple[str, str, str]:
    if math.isnan(difference.value):  # an undefined figure, such as the correlation of a constant
        return "–", "–", "–"
    low, high = (_amount(value, figure, "+").removesuffix(" points") for value in (difference.low, difference.high))
    return _amount(difference.value, figure, "+"), f"{low} to {high}", _p_value(difference).removeprefix("= ")


def render_comparison(comparison: Comparison) -> str:
    """The page as HTML; all text is escaped."""
    parts = [
        "<h1>Comparison of runs</h1>",
        f'<p class="about">{escaped(" · ".join(comparison.runs))}</p>',
        *(f'<p class="verdict">{escaped(sentence)}.</p>' for sentence in verdicts(comparison)),
        f'<p class="caption">{_METHOD}</p>',
        *map(table_html, comparison_tables(comparison)),
        "<h2>Differences from the first run</h2>",
        f'<div class="charts">{"".join(_drawing(comparison, figure) for figure in comparison.figures)}</div>',
    ]
    return render_page("Comparison of runs", parts)


def _drawing(comparison: Comparison, figure: Compared) -> str:
    """A chart of each run's difference, as a dot on its interval, with a dashed line at no difference."""
    names, differences = comparison.runs[1:], figure.differences
    drawn = [difference for difference in differences if not math.isnan(difference.p_value)]
    if not drawn:
        return ""
    ends = min(0.0, *(difference.low for difference in drawn)), max(0.0, *(difference.high for difference in drawn))
    is_share = figure.form.endswith("%")
    scale = 100 if is_share else 1  # points
    axis = value_axis(scale * ends[0], scale * ends[1], "number", count=4)
    bottom = TOP + _ROW * len(names)

    def px(value: float) -> float:
        return _LEFT + axis.share(scale * value) * (WIDTH - _LEFT - RIGHT)

    marks = [
        f'<line class="grid" x1="{px(tick / scale):.1f}" x2="{px(tick / scale):.1f}" y1="{TOP}" y2="{bottom}"/>'
        f'<text x="{px(tick / scale):.1f}" y="{bottom + 18}" text-anchor="middle">{label}</text>'
        for tick, label in zip(axis.ticks, axis.labels, strict=True)
    ]
    marks.append(f'<line class="level" x1="{px(0):.1f}" x2="{px(0):.1f}" y1="{TOP}" y2="{bottom}"/>')
    for number, (name, difference) in enumerate(zip(names, differences, strict=True)):
        y = TOP + _ROW * number
        caption = escaped(truncate(name, WIDTH - _LEFT - RIGHT))
        marks.append(f'<text class="over" x="{_LEFT}" y="{y + 14}">{caption}</text>')
        if difference in drawn:
            clear = "blue" if difference.p_value < _CLEAR else "grey"
            line = f"M{px(difference.low):.1f} {y + 29}H{px(difference.high):.1f}"
            marks.append(f'<path class="{clear}" d="{line}"/>')
            marks.append(f'<circle class="{clear}" cx="{px(difference.value):.1f}" cy="{y + 29}" r="4"/>')
    note = f"minus {comparison.runs[0]}; {'less' if figure.less_is_better else 'more'} is better"
    across = f"difference {'in points ' if is_share else ''}{axis.scale}".rstrip()
    title = f'<text class="axis" x="{WIDTH / 2}" y="{bottom + 37}" text-anchor="middle">{across}</text>'
    legend = [("p < 0.05", "blue"), ("p of 0.05 or more", "grey"), ("no difference", "level")]
    return chart_figure(figure.name, bottom + BOTTOM, [*marks, title], legend, note=note)
