"""`report.html` of a fine-tuning run: figures, curves, and right and wrong predictions."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np

from bertjax.finetune.encoding.answers import NO_SHARES
from bertjax.finetune.kinds.kind import Judged, Split, TaskContent, baseline_name
from bertjax.report.axes import write
from bertjax.report.bars import count_map
from bertjax.report.charts import Level, Line, line_chart
from bertjax.report.page import escaped, render_page, rows_html, terms_html
from bertjax.report.run_report import settings_html
from bertjax.run.telemetry import Curves

_CONSTANT = "constant answer"
_MAPPED = 10  # most labels in the confusion matrix
_LABELS = 30  # rows of the table of labels
_EXAMPLES = 8  # rows of each table of examples
_TEXT = 400  # characters shown of a text


def render(
    title: str,
    about: str,
    content: TaskContent,
    figures: Mapping[str, float],
    outputs: Mapping[str, np.ndarray],
    curves: Curves,
    config: Mapping[str, Any],
    versions: Mapping[str, str],
) -> str:
    """Render the page as HTML; all text is escaped. Examples come from the first development set.

    `outputs` are the network's by set; `config` is nested as by `bertjax.config.to_dict`.
    """
    name, split = next(iter(content.dev.items()))
    judged = split.judge(outputs[name]) if split.judge is not None else []
    parts = [
        f"<h1>{escaped(title)}</h1>",
        f'<p class="about">{escaped(about)}</p>',
        f'<p class="verdict">{_verdict(content, split, figures)}</p>',
        "<h2>Held-out examples</h2>",
        _figures(content, figures),
        "<h2>Curves</h2>",
        f'<div class="charts">{"".join(curve_charts(curves, content.baselines))}</div>',
        _labels(content, judged),
        *_examples(content, judged),
    ]
    parts = [*parts[:5], terms_html(parts), *parts[5:], "<h2>Configuration and environment</h2>"]
    return render_page(title, [*parts, settings_html(config, versions)], reads_charts=True)


def curve_charts(curves: Curves, baselines: Mapping[str, float] | None = None) -> list[str]:
    """Draw each share and loss of the first development set with its training curve, then the learning rate."""
    charts = []
    first = (name for name in curves if name.startswith("eval/") and name.count("/") == 1)
    for name in (name.partition("/")[2] for name in first if not name.endswith(NO_SHARES)):
        lines = [
            Line("training", *curves.get(f"train/{name}", ([], [])), "blue", smooth=True),
            Line("held-out", *curves[f"eval/{name}"], "orange", dots=True),
        ]
        baseline = (baselines or {}).get(baseline_name(name))
        levels = [] if baseline is None else [Level(_CONSTANT, baseline)]
        is_loss = name.endswith("_loss")
        lines = [line for line in lines if line.steps]
        charts.append(line_chart(_title(name), lines, levels, form="number" if is_loss else "percent"))
    if "train/learning_rate" in curves:
        charts.append(
            line_chart("Learning rate", [Line("learning rate", *curves["train/learning_rate"], "green")], unit="rate")
        )
    return charts


def _title(figure: str) -> str:
    """Make the title of a figure such as `eval/accuracy`, `test/f1` or `eval/sequence_loss`."""
    split, _, name = figure.removeprefix("eval/").rpartition("/")
    label = "loss" if name.endswith("_loss") else name.replace("_", " ").replace("f1", "F1")
    return f"{split} {label}" if split else label[0].upper() + label[1:]


def _verdict(content: TaskContent, split: Split, figures: Mapping[str, float]) -> str:
    """State the first metric and its distance from the baseline in a sentence."""
    figure = f"eval/{content.metrics[0]}"
    value, baseline = figures[figure], content.baselines.get(baseline_name(figure))
    text = f"{escaped(_title(figure))} <b>{write(value, 'percent')}</b> on {len(split.rows):,} held-out examples"
    if baseline is None or not math.isfinite(value):
        return f"{text}."
    points = 100 * (value - baseline)
    return f"{text}, {abs(points):.1f} points {'above' if points >= 0 else 'below'} the constant answer."


def _figures(content: TaskContent, figures: Mapping[str, float]) -> str:
    """Make a table of the figures of all sets with their baselines."""
    rows = []
    for figure, value in figures.items():
        if figure.endswith(NO_SHARES):
            continue
        if figure.endswith("_loss"):
            rows.append((escaped(_title(figure)), f"<b>{value:.3f}</b>", "", ""))
            continue
        baseline = content.baselines.get(baseline_name(figure))
        cells = ("", "")
        if baseline is not None:
            kind = "better" if value > baseline else "bad"
            difference = f"{100 * (value - baseline):+.1f} points".replace("-", "−")
            cells = (
                f"<span><small>{_CONSTANT}</small>{baseline:.1%}</span>",
                f'<span class="{kind}">{difference}</span>',
            )
        rows.append((escaped(_title(figure)), f"<b>{write(value, 'percent')}</b>", *cells))
    return rows_html(("Measure", "This model", "Baseline", "Difference"), rows, range(1, 4))


def _labels(content: TaskContent, judged: Sequence[Judged]) -> str:
    """Make a confusion matrix, if labels are few, and a table of figures per label."""
    if not judged or not (content.kind.names_outputs or content.kind.ranks):
        return ""
    pairs = Counter((one.answer, one.prediction) for one in judged)
    answers, predictions = Counter(one.answer for one in judged), Counter(one.prediction for one in judged)
    labels = [
        label for label in content.labels or sorted({*answers, *predictions}) if answers[label] + predictions[label]
    ]
    chart = ""
    if len(labels) <= _MAPPED:
        counts = [[pairs[answer, prediction] for prediction in labels] for answer in labels]
        note = "Rows are the right labels, columns the predicted ones."
        chart = f'<div class="charts">{count_map("Predictions by label", labels, counts, note=note)}</div>'
    rows = []
    for label in sorted(labels, key=lambda label: -answers[label])[:_LABELS]:
        right = pairs[label, label]
        wrong = Counter({other: pairs[label, other] for other in labels if other != label and pairs[label, other]})
        often = ", ".join(f"{other} ({count:,})" for other, count in wrong.most_common(2))
        recall = f"{right / answers[label]:.1%}" if answers[label] else ""
        precision = f"{right / predictions[label]:.1%}" if predictions[label] else ""
        rows.append((escaped(label), f"{answers[label]:,}", recall, precision, escaped(often)))
    columns = ("Label", "Examples", "Recall", "Precision", "Wrongly predicted as")
    return f"<h2>Labels</h2>{chart}{rows_html(columns, rows, range(1, 4))}"


def _examples(content: TaskContent, judged: Sequence[Judged]) -> Iterable[str]:
    """Yield a table of the wrong examples, then of the right ones, the most certain first."""
    has_shares = not content.kind.judges_by_distance
    for title, right in zip(content.kind.judged, (False, True), strict=True):
        some = sorted((one for one in judged if one.right == right), key=lambda one: -one.certainty)
        if not some:
            continue
        rows = [
            (
                "<br>".join(escaped(text[:_TEXT] + "…" * (len(text) > _TEXT)) for text in one.texts),
                escaped(one.answer),
                f'<span class="guess{" right" if right else ""}">{escaped(one.prediction)}'
                + (f"<small>{one.certainty:.0%}</small>" if has_shares and 0 <= one.certainty <= 1 else "")
                + "</span>",
            )
            for one in some[:_EXAMPLES]
        ]
        counts = f"{len(some):,} of {len(judged):,}"
        table = rows_html(("Text", "Answer", "Predicted"), rows)
        yield f'<h2>{escaped(title)}</h2><p class="caption">{counts}</p>{table}'
