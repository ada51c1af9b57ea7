"""Charts draw values at the right places, keep spikes, and stay small."""

import itertools
import json
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from bertjax.report import axes, charts
from bertjax.report.axes import value_axis, write
from bertjax.report.bars import Bars, horizontal_bars, vertical_bars
from bertjax.report.charts import Level, Line, line_chart, stacked_chart

LEFT, RIGHT, TOP, FOOT = axes.LEFT, axes.WIDTH - axes.RIGHT, axes.TOP, axes.HEIGHT - axes.BOTTOM  # of the plot


def parse(figure):
    """Parse a figure as XML, which it is except for HTML's bare `hidden`."""
    return ElementTree.fromstring(figure.replace(" hidden>", ' hidden="">'))


def path_points(figure, kind):
    data = parse(figure).find(f".//path[@class='{kind}']").get("d")
    return [tuple(map(float, pair)) for pair in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", data)]


def read_out(figure):
    return json.loads(parse(figure).find("script").text)


def test_line_passes_through_its_values():
    figure = line_chart("loss", [Line("training", [0, 50, 100], [4.0, 2.0, 3.0], "blue")])
    (x0, y0), (x1, y1), (x2, y2) = path_points(figure, "blue")
    assert (x1 - x0, x2 - x1) == pytest.approx(((RIGHT - LEFT) / 2,) * 2)
    assert y1 - y0 == pytest.approx(2 * (y2 - y0), abs=0.11)  # SVG's y axis points down, so 2.0 is the largest y
    assert read_out(figure)["series"][0]["points"] == [[0, 4.0], [50, 2.0], [100, 3.0]]


def test_levels_are_inside_the_plot_and_in_the_legend():
    figure = line_chart("loss", [Line("training", [1, 2], [5.0, 4.0], "blue")], [Level("unigram", 7.0)])
    level = parse(figure).find(".//line[@class='level']")
    assert TOP < float(level.get("y1")) < FOOT
    assert "unigram 7" in figure


def test_line_has_gaps_at_nonfinite_values():
    figure = line_chart("norm", [Line("norm", [1, 2, 3, 4, 5], [1.0, 1.1, math.nan, math.inf, 1.2], "blue")])
    assert parse(figure).find(".//path").get("d").count("M") == 2
    assert read_out(figure)["series"][0]["points"][2:4] == [[3, None], [4, None]]


def test_thinning_many_points_keeps_spikes():
    values = [1.0] * 50_000
    values[31_234], values[40_001] = 9.0, -5.0
    figure = line_chart("loss", [Line("training", range(50_000), values, "blue", smooth=True)])
    drawn = [y for _, y in read_out(figure)["series"][0]["points"]]
    assert len(drawn) <= 400 and max(drawn) == 9.0 and min(drawn) == -5.0
    assert len(figure) < 60_000


def test_running_mean_ignores_spikes_and_follows_slopes():
    points = [(float(i), float(i)) for i in range(600)]
    points[300] = (300.0, 1e6)
    smooth = dict(charts._running_mean(points))
    assert smooth[300.0] == pytest.approx(300, abs=2)
    assert smooth[100.0] == pytest.approx(100, abs=1e-9)


@pytest.mark.parametrize("values", [[], [math.nan, math.inf]])
def test_chart_without_values_is_empty(values):
    assert line_chart("loss", [Line("training", list(range(len(values))), values, "blue")]) == ""
    assert stacked_chart("time", [], []) == ""


ODD = ([0.0], [3.0, 3.0], [1e-9, 2e-9], [5e-21, 1e-20], [-1.0, 1e12], [0.0, 5.0, math.nan, 6.0])


@pytest.mark.parametrize("values", ODD)
@pytest.mark.parametrize("log", [False, True])
def test_odd_ranges_are_drawn_in_order_inside_the_plot(values, log):
    figure = line_chart("odd", [Line("odd", list(range(len(values))), values, "blue", dots=True)], log=log)
    drawn = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    if not drawn:
        assert figure == ""
        return
    dots = [(float(dot.get("cx")), float(dot.get("cy"))) for dot in parse(figure).findall(".//circle")]
    assert len(dots) == len(drawn)
    assert all(LEFT <= x <= RIGHT and TOP <= y <= FOOT for x, y in dots)
    heights = [FOOT - y for _, y in dots]
    assert [a < b for a, b in itertools.pairwise(heights)] == [a < b for a, b in itertools.pairwise(drawn)]


def test_stacked_shares_reach_the_top():
    steps = list(range(10, 2010, 10))
    layers = [Line("step", steps, [0.75] * 200, "blue"), Line("other", steps, [0.25] * 200, "grey")]
    figure = stacked_chart("time", steps, layers)
    assert {y for _, y in path_points(figure, "area grey")} == {TOP, TOP + (FOOT - TOP) / 4}  # 100 % and 75 %
    assert "step 75.0%" in figure and "other 25.0%" in figure


@pytest.mark.parametrize(
    ("low", "high", "ticks"), [(0, 6000, [0, 2000, 4000, 6000]), (4.9, 7.1, [5, 5.5, 6, 6.5, 7]), (-1, 1, None)]
)
def test_ticks_are_round_and_inside(low, high, ticks):
    actual = axes.ticks(low, high, 5)
    assert ticks is None or actual == ticks
    assert 3 <= len(actual) <= 8 and all(low <= tick <= high for tick in actual)


@pytest.mark.parametrize(
    ("low", "high", "form", "labels", "scale"),
    [
        (4.9, 7.1, "number", ("4.5", "5.0", "5.5", "6.0", "6.5", "7.0", "7.5"), ""),
        (0.0, 1e-20, "number", ("0", "0.2", "0.4", "0.6", "0.8", "1.0"), "10⁻²⁰"),
        (0.0, 9.3e-5, "number", ("0", "0.2", "0.4", "0.6", "0.8", "1.0"), "10⁻⁴"),
        (0.0, 0.21, "percent", ("0%", "5%", "10%", "15%", "20%", "25%"), ""),
        (0.9991, 0.9994, "percent", ("99.91%", "99.92%", "99.93%", "99.94%"), ""),
        (34_000, 36_100, "count", ("34.0 k", "34.5 k", "35.0 k", "35.5 k", "36.0 k", "36.5 k"), ""),
        (-1.0, 1.0, "number", ("−1.0", "−0.5", "0", "0.5", "1.0"), ""),
        (3.0, 3.0, "number", ("2.6", "2.8", "3.0", "3.2", "3.4"), ""),
    ],
)
def test_axis_covers_its_values_with_distinct_labels(low, high, form, labels, scale):
    axis = value_axis(low, high, form)
    assert (axis.labels, axis.scale) == (labels, scale)
    assert axis.ticks[0] == axis.low <= low <= high <= axis.high == axis.ticks[-1]


@pytest.mark.parametrize(("low", "high", "ticks"), [(1.1, 1.3, [1, 2]), (0.8, 30, [0.5, 1, 2, 5, 10, 20, 50])])
def test_log_axis_has_labels_at_both_ends(low, high, ticks):
    axis = value_axis(low, high, "number", log=True)
    assert axis.ticks == pytest.approx(ticks)
    assert (axis.share(axis.ticks[0]), axis.share(axis.ticks[-1])) == pytest.approx((0, 1))


@pytest.mark.parametrize("last", [1, 30, 1000, 4137, 999_999])
def test_last_step_has_a_label_without_close_neighbours(last):
    axis = axes.step_axis(0, last)
    assert axis.ticks[0] == 0 and axis.ticks[-1] == last
    assert all(b - a > 0.13 * last for a, b in itertools.pairwise(axis.ticks))


def test_axes_have_titles():
    figure = line_chart("rate", [Line("rate", [0, 10], [0.0, 5e-4], "blue")], unit="learning <rate>")
    titles = [text.text for text in parse(figure).findall(".//text[@class='axis']")]
    assert titles == ["training step", "learning <rate> (× 10⁻⁴)"]


def test_long_name_is_truncated_with_a_full_tooltip():
    name = "text:/data/corpora/<novels>/volume-and-more.txt"
    figure = horizontal_bars("share", [name, "b"], [Bars("share", [0.5, 0.25], "blue")])
    shown = [text.text for text in parse(figure).findall("./svg/text")]
    assert shown[0].endswith("…") and name.startswith(shown[0][:-1]) and shown[1] == "50.00%"
    (output, _) = [hit.get("aria-label") for hit in parse(figure).findall(".//rect[@class='hit']")]
    assert output == f"{name}: 50.00%"


def test_log_ticks():
    assert [round(10**tick, 6) for tick in axes.log_ticks(-0.1, 1.05)] == [1, 2, 5, 10]
    assert [round(10**tick, 6) for tick in axes.log_ticks(-3.5, 2.1)] == [0.001, 0.01, 0.1, 1, 10, 100]


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.2331, "percent", "23.3%"),
        (24_113_552, "count", "24.1 M"),
        (820, "count", "820"),
        (999_700, "count", "1 M"),
        (6.98213, "number", "6.982"),
        (2e-5, "number", "2.00e-05"),
        (math.nan, "percent", "not finite"),
    ],
)
def test_write_formats_values(value, form, text):
    assert write(value, form) == text


def test_labels_are_escaped_everywhere():
    figure = line_chart("<b>", [Line("</script><i>", [1, 2], [1.0, 2.0], "blue")], [Level("<u>", 1.5)])
    assert not {"<b>", "<i>", "<u>"} & set(re.findall(r"<[biu]>", figure))
    assert figure.count("</script>") == 1
    assert read_out(figure)["series"][0]["label"] == "</script><i>"


def test_histogram_labels_are_round_and_well_placed():
    edges = [1, 2, 3, 4, 6, 8, 11, 16, 23, 32, 45, 64]
    drawn = re.findall(
        r'<text x="([\d.]+)" y="214" text-anchor="middle">(\d+)', vertical_bars("l", edges, [0.1] * 11, "blue")
    )
    assert [label for _, label in drawn] == ["1", "2", "5", "10", "20", "50"]
    width = (420 - 64 - 24) / 11
    assert [float(x) for x, _ in drawn[:3]] == pytest.approx([64 + (n + 0.5) * width for n in (0, 1, 3.25)], abs=0.1)


def test_longest_bar_name_is_not_truncated():
    names = ["this", "i", "and then", "W"]
    drawn = horizontal_bars("share", names, [Bars("share", [0.5] * 4, "blue")])
    assert all(f">{name}</text>" in drawn for name in names)
