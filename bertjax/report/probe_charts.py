"""What probes found over the steps of a run, as charts of its report."""

from __future__ import annotations

import re

from bertjax.report.charts import Level, Line, line_chart
from bertjax.run.telemetry import Curves

_COLOURS = ("blue", "orange", "green", "violet", "grey")
_PAIRS, _PATTERN, _LAYER = "probe/pairs/", "probe/attention_", "probe/tags_layer_"


def probe_charts(found: Curves) -> list[str]:
    """The charts of minimal pairs, attention patterns and tags, of those that were probed."""
    charts = [_of_pairs(found), *_of_patterns(found), _of_tags(found)]
    return [chart for chart in charts if chart]


def _line(found: Curves, name: str, label: str, colour: str) -> list[Line]:
    return [Line(label, *found[name], colour, dots=True)] if name in found else []


def _of_pairs(found: Curves) -> str:
    """All pairs, and the first few sets of them."""
    sets = [name for name in found if name.startswith(_PAIRS)][: len(_COLOURS) - 1]
    lines = _line(found, "probe/pairs_accuracy", "all pairs" if sets else "pairs", "blue")
    for name, colour in zip(sets, _COLOURS[1:], strict=False):
        lines += _line(found, name, name.removeprefix(_PAIRS), colour)
    return line_chart("Minimal pairs judged rightly", lines, [Level("chance", 0.5)], unit="accuracy", form="percent")


def _of_patterns(found: Curves) -> list[str]:
    """Six lines are too many for one chart: those of positions in the row, and those of words."""
    names = [name for name in found if name.startswith(_PATTERN)]
    of_words = [name for name in names if re.search(r"same|predict", name)]
    charts = []
    for title, chosen in (("positions", [name for name in names if name not in of_words]), ("words", of_words)):
        lines = [
            line
            for name, colour in zip(chosen, _COLOURS, strict=False)
            for line in _line(found, name, name.removeprefix(_PATTERN).replace("_", " "), colour)
        ]
        charts.append(line_chart(f"Attention to {title}, in the head that shows it most", lines, unit="strength"))
    return charts


def _of_tags(found: Curves) -> str:
    """The best layer, the embeddings and the last layer, above what needs no model."""
    layers = sorted(int(name.removeprefix(_LAYER)) for name in found if name.startswith(_LAYER))
    if not layers:
        return ""
    lines = _line(found, "probe/tags_accuracy", "best layer", "blue")
    lines += _line(found, f"{_LAYER}{layers[-1]}", f"layer {layers[-1]}", "orange")
    lines += _line(found, f"{_LAYER}0", "embeddings", "green")
    level = [Level("most frequent tag of each form", found["probe/tags_by_form"][1][-1])]
    return line_chart("Tags read by a linear probe", lines, level, unit="accuracy", form="percent")
