"""Charts put values where they belong, keep spikes, and stay small."""

import itertools
import json
import math
import re
import xml.etree.ElementTree as ElementTree

import pytest

from bertjax.report import charts
from bertjax.report.charts import Level, Line, line_chart, stacked_chart, write


def parse(figure):
    """The figure as XML, which it is up to HTML's bare `hidden`."""
    return ElementTree.fromstring(figure.replace(" hidden>", ' hidden="">'))


def path_points(figure, kind):
    data = parse(figure).find(f".//path[@class='{kind}']").get("d")
    return [tuple(map(float, pair)) for pair in re.findall(r"[ML](-?[\d.]+) (-?[\d.]+)", data)]


def read_out(figure):
    return json.loads(parse(figure).find("script").text)


def test_a_line_goes_through_its_values():
    figure = line_chart("loss", [Line("training", [0, 50, 100], [4.0, 2.0, 3.0], "blue")])
    (x0, y0), (x1, y1), (x2, y2) = path_points(figure, "blue")
    assert (x1 - x0, x2 - x1) == pytest.approx((248, 248))
    assert y1 - y0 == pytest.approx(2 * (y2 - y0), abs=0.11)  # down is larger: 2.0 lies lowest
    assert read_out(figure)["series"][0]["points"] == [[0, 4.0], [50, 2.0], [100, 3.0]]


def test_levels_are_inside_the_plot_and_in_the_legend():
    figure = line_chart("loss", [Line("training", [1, 2], [5.0, 4.0], "blue")], [Level("unigram", 7.0)])
    level = parse(figure).find(".//line[@class='level']")
    assert 10 < float(level.get("y1")) < 222
    assert "unigram 7" in figure


def test_a_gap_where_a_value_is_not_finite():
    figure = line_chart("norm", [Line("norm", [1, 2, 3, 4, 5], [1.0, 1.1, math.nan, math.inf, 1.2], "blue")])
    assert parse(figure).find(".//path").get("d").count("M") == 2
    assert read_out(figure)["series"][0]["points"][2:4] == [[3, None], [4, None]]


def test_many_points_are_thinned_but_no_spike_is_lost():
    values = [1.0] * 50_000
    values[31_234], values[40_001] = 9.0, -5.0
    figure = line_chart("loss", [Line("training", range(50_000), values, "blue", smooth=True)])
    kept = [y for _, y in read_out(figure)["series"][0]["points"]]
    assert len(kept) <= 400 and max(kept) == 9.0 and min(kept) == -5.0
    assert len(figure) < 60_000


def test_the_smooth_line_ignores_a_spike_and_follows_a_slope():
    points = [(float(i), float(i)) for i in range(600)]
    points[300] = (300.0, 1e6)
    smooth = dict(charts._running_mean(points))
    assert smooth[300.0] == pytest.approx(300, abs=2)
    assert smooth[100.0] == pytest.approx(100, abs=1e-9)


@pytest.mark.parametrize("values", [[], [math.nan, math.inf]])
def test_nothing_to_draw_is_no_chart(values):
    assert line_chart("loss", [Line("training", list(range(len(values))), values, "blue")]) == ""
    assert stacked_chart("time", [], []) == ""


@pytest.mark.parametrize("values", [[0.0], [3.0, 3.0], [1e-9, 2e-9], [-1.0, 1e12], [0.0, 5.0, math.nan, 6.0]])
@pytest.mark.parametrize("log", [False, True])
def test_odd_ranges_are_drawn_inside_the_plot_in_their_order(values, log):
    figure = line_chart("odd", [Line("odd", list(range(len(values))), values, "blue", dots=True)], log=log)
    drawn = [value for value in values if math.isfinite(value) and (value > 0 or not log)]
    if not drawn:
        assert figure == ""
        return
    dots = [(float(dot.get("cx")), float(dot.get("cy"))) for dot in parse(figure).findall(".//circle")]
    assert len(dots) == len(drawn)
    assert all(52 <= x <= 548 and 10 <= y <= 222 for x, y in dots)
    heights = [222 - y for _, y in dots]
    assert [a < b for a, b in itertools.pairwise(heights)] == [a < b for a, b in itertools.pairwise(drawn)]


def test_stacked_shares_reach_the_top():
    steps = list(range(10, 2010, 10))
    layers = [Line("step", steps, [0.75] * 200, "blue"), Line("other", steps, [0.25] * 200, "grey")]
    figure = stacked_chart("time", steps, layers)
    assert {y for _, y in path_points(figure, "area grey")} == {10.0, 63.0}  # 100 % and 75 % of a plot from 10 to 222
    assert "step 75.0%" in figure and "other 25.0%" in figure


@pytest.mark.parametrize(
    ("low", "high", "ticks"), [(0, 6000, [0, 2000, 4000, 6000]), (4.9, 7.1, [5, 5.5, 6, 6.5, 7]), (-1, 1, None)]
)
def test_ticks_are_round_and_inside(low, high, ticks):
    found = charts._ticks(low, high, 5)
    assert ticks is None or found == ticks
    assert 3 <= len(found) <= 8 and all(low <= tick <= high for tick in found)


def test_log_ticks():
    assert [round(10**tick, 6) for tick in charts._log_ticks(-0.1, 1.05)] == [1, 2, 5, 10]
    assert [round(10**tick, 6) for tick in charts._log_ticks(-3.5, 2.1)] == [0.001, 0.01, 0.1, 1, 10, 100]


@pytest.mark.parametrize(
    ("value", "form", "text"),
    [
        (0.2331, "percent", "23.3%"),
        (24_113_552, "count", "24.1 M"),
        (820, "count", "820"),
        (6.98213, "number", "6.982"),
        (2e-5, "number", "2.00e-05"),
        (math.nan, "percent", "not finite"),
    ],
)
def test_how_values_read(value, form, text):
    assert write(value, form) == text


def test_labels_are_escaped_everywhere():
    figure = line_chart("<b>", [Line("</script><i>", [1, 2], [1.0, 2.0], "blue")], [Level("<u>", 1.5)])
    assert not {"<b>", "<i>", "<u>"} & set(re.findall(r"<[biu]>", figure))
    assert figure.count("</script>") == 1
    assert read_out(figure)["series"][0]["label"] == "</script><i>"
