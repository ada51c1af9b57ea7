"""`report.html`: a self-contained page about a finished run, with its figures, the baselines and its curves."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.report.axes import write
from bertjax.report.charts import Level, Line, line_chart, stacked_chart
from bertjax.report.page import escaped, render_page, rows_html, terms_html
from bertjax.report.run_summary import Completion, Measured, Summary
from bertjax.run.progress import duration
from bertjax.run.telemetry import METRICS_FILE, Curves, curves, read_metrics
from bertjax.storage.files import replace_text
from bertjax.storage.remote import AnyPath

REPORT_FILE = "report.html"  # within the run's directory

_TIME_PARTS = (
    ("step", "step", "blue"),
    ("input_wait", "waiting for input", "orange"),
    ("eval", "evaluation", "green"),
    ("checkpoint", "checkpoint", "violet"),
    ("other", "other", "grey"),
)


def write_report(run_dir: AnyPath, summary: Summary, config: Mapping[str, Any], versions: Mapping[str, str]) -> AnyPath:
    """Write `report.html` into the run's directory, atomically, and return its path; curves are from `metrics.jsonl`.

    `config` is nested as by `bertjax.config.to_dict`; `versions` describes the environment.
    """
    path = run_dir / REPORT_FILE
    replace_text(path, render(summary, curves(read_metrics(run_dir / METRICS_FILE)), config, versions))
    return path


def render(summary: Summary, curves: Curves, config: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """The page as HTML; all text is escaped."""
    parts = [
        f"<h1>{escaped(summary.name)}</h1>",
        f'<p class="about">{escaped(summary.about)}</p>',
        f'<p class="verdict">{_verdict(summary)}</p>',
        "<h2>Held-out text</h2>",
        rows_html(("Measure", "This model", "Baseline", "Difference"), map(_compare, summary.held_out), range(1, 4)),
        _tiles(summary),
        terms_html([*map(" ".join, map(_compare, summary.held_out)), _verdict(summary), _tiles(summary)]),
        "<h2>Curves</h2>",
        f'<div class="charts">{_charts(summary, curves)}</div>',
        _probes(curves),
        _completions(summary.completions),
        "<h2>Configuration and environment</h2>",
        settings_html(config, versions),
    ]
    return render_page(summary.name, parts, reads_charts=True)


def _verdict(summary: Summary) -> str:
    """The run in a sentence: a clause for each measure."""
    clauses = [
        measured.measure.clause.format(
            value=f"<b>{measured.value:{'.2f' if measured.measure.is_loss else '.1%'}}</b>",
            gain=f"{abs(measured.gain):.2f} nats {'below' if measured.gain >= 0 else 'above'}",
        )
        for measured in summary.held_out
    ]
    return f"After {write(summary.tokens_seen, 'count')} tokens {'; '.join(clauses)}."


def _compare(measured: Measured) -> tuple[str, ...]:
    """A row: value, baseline, and their difference, green if the model is better."""
    measure, difference, form = measured.measure, measured.value - measured.baseline, measured.measure.form
    difference_text = f"{difference:+{form}}" if measure.is_loss else f"{difference * 100:+.1f} points"
    kind = "better" if measured.gain > 0 else "bad"
    return (
        escaped(measure.title),
        f"<b>{measured.value:{form}}</b>",
        f"<span><small>{escaped(measure.baseline_name)}</small>{measured.baseline:{form}}</span>",
        f'<span class="{kind}">{difference_text.replace("-", "−")}</span>',
    )


def _tiles(summary: Summary) -> str:
    since = f"since step {summary.first_step:,}, from which the run was resumed" if summary.first_step else ""
    tiles = [
        ("Steps", f"{summary.steps:,}", ""),
        ("Tokens seen", write(summary.tokens_seen, "count"), "padding excluded"),
        ("Wall time", duration(summary.wall_seconds), since),
        ("Tokens per second", f"{summary.tokens_per_second:,.0f}", "padding excluded"),
    ]
    if summary.mfu is not None:
        tiles.append(("MFU", f"{summary.mfu:.1%}", f"of {summary.peak}"))
    cells = (
        f'<div class="tile card"><span>{escaped(name)}</span><b>{escaped(value)}</b><span>{escaped(note)}</span></div>'
        for name, value, note in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def _charts(summary: Summary, curves: Curves) -> str:
    def pair(metric: str) -> list[Line]:
        lines = [
            Line("training", *curves.get(f"train/{metric}", ([], [])), "blue", smooth=True),
            Line("held-out", *curves.get(f"eval/{metric}", ([], [])), "orange", dots=True),
        ]
        return [line for line in lines if line.steps]

    def single(metric: str, colour: str, *, smooth: bool = False) -> list[Line]:
        name = metric.split("/")[1].replace("_", " ")
        return [Line(name, *curves[metric], colour, smooth=smooth)] if metric in curves else []

    # Figures of objectives with a curve: measures first, then the others by name.
    levels = {measured.figure: measured for measured in summary.held_out}
    evaluated = {name.split("/")[1] for name in curves if name.startswith("eval/") and name.count("/") == 1}
    charts = [
        line_chart(
            levels[figure].measure.title if figure in levels else _title(figure, summary),
            pair(figure),
            [Level(levels[figure].measure.baseline_name, levels[figure].baseline)] if figure in levels else [],
            unit="accuracy" if figure.endswith("accuracy") else "nats" if figure.endswith("loss") else "",
            form="percent" if figure.endswith("accuracy") else "number",
        )
        for figure in (*levels, *sorted(evaluated - {*levels, "loss"}))
    ]
    charts += [
        line_chart("Learning rate", single("train/learning_rate", "green"), unit="learning rate"),
        line_chart(
            "Gradient norm (log scale)", single("train/grad_norm", "violet", smooth=True), unit="L2 norm", log=True
        ),
        line_chart(
            "Tokens per second",
            single("perf/tokens_per_second", "blue", smooth=True),
            unit="tokens / s",
            form="count",
        ),
    ]
    layers = [
        Line(label, *curves[f"time/{part}"], colour) for part, label, colour in _TIME_PARTS if f"time/{part}" in curves
    ]
    if layers:
        charts.append(stacked_chart("Time by activity", layers[0].steps, layers))
    return "\n".join(chart for chart in charts if chart)


def _title(figure: str, summary: Summary) -> str:
    """The title of a figure that is not a measure, with the abbreviation of its objective in measures."""
    abbreviations = {measured.figure.split("_")[0]: measured.measure.name.split()[0] for measured in summary.held_out}
    first, *others = figure.split("_")
    return " ".join([abbreviations.get(first, first), *others])


def _completions(completions: Sequence[Completion]) -> str:
    if not completions:
        return ""
    columns = ("Held-out sentence", "Answer", "Predictions")
    rows = []
    for completion in completions:
        guesses = ""
        for token, share in completion.guesses:
            kind = "guess right" if token == completion.answer else "guess"
            guesses += f'<span class="{kind}">{escaped(token)}<small>{share:.0%}</small></span>'
        text = escaped(completion.text).replace("[MASK]", "<mark>[MASK]</mark>")
        answer = f'<span class="answer">{escaped(completion.answer)}</span>'
        rows.append((f"<span>{text}</span>", answer, f"<span>{guesses}</span>"))
    return f"<h2>Predictions for [MASK]</h2>{rows_html(columns, rows)}"


def settings_html(config: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """Render a nested config and the versions of the environment as two tables, folded."""
    return f"{_details('Configuration', _flatten(config))}\n{_details('Environment', versions)}"


def _details(title: str, values: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th class="mono">{escaped(key)}</th><td class="mono">{escaped(value)}</td></tr>'
        for key, value in values.items()
    )
    return f'<details class="card"><summary>{escaped(title)}</summary><table><tbody>{rows}</tbody></table></details>'


def _flatten(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flatten(value, f"{prefix}{key}.") if isinstance(value, Mapping) else {prefix + key: value}
    return flat


_COLOURS = ("blue", "orange", "green", "violet", "grey")
_PAIRS, _PATTERN, _LAYER = "probe/pairs/", "probe/attention_", "probe/tags_layer_"


def _probes(curves: Curves) -> str:
    """Charts of the probes of a run: minimal pairs, attention patterns and tags."""

    def line(name: str, label: str, colour: str) -> list[Line]:
        return [Line(label, *curves[name], colour, dots=True)] if name in curves else []

    # 1. All pairs, and the first few sets of them
    sets = [name for name in curves if name.startswith(_PAIRS)][: len(_COLOURS) - 1]
    lines = line("probe/pairs_accuracy", "all pairs" if sets else "pairs", "blue")
    for name, colour in zip(sets, _COLOURS[1:], strict=False):
        lines += line(name, name.removeprefix(_PAIRS), colour)
    chance = [Level("chance", 0.5)]
    charts = [line_chart("Minimal pairs judged correctly", lines, chance, unit="accuracy", form="percent")]

    # 2. Attention patterns; six lines are too many for one chart
    names = [name for name in curves if name.startswith(_PATTERN)]
    words = [name for name in names if re.search(r"same|predict", name)]
    for title, chosen in (("positions", [name for name in names if name not in words]), ("words", words)):
        lines = []
        for name, colour in zip(chosen, _COLOURS, strict=False):
            lines += line(name, name.removeprefix(_PATTERN).replace("_", " "), colour)
        charts.append(line_chart(f"Attention to {title}, in the head that shows it most", lines, unit="strength"))

    # 3. Tags: the best layer, the last one and the embeddings, with a baseline without a model
    if layers := sorted(int(name.removeprefix(_LAYER)) for name in curves if name.startswith(_LAYER)):
        lines = line("probe/tags_accuracy", "best layer", "blue")
        lines += line(f"{_LAYER}{layers[-1]}", f"layer {layers[-1]}", "orange")
        lines += line(f"{_LAYER}0", "embeddings", "green")
        level = [Level("most frequent tag of each form", curves["probe/tags_by_form"][1][-1])]
        charts.append(line_chart("Tags by a linear probe", lines, level, unit="accuracy", form="percent"))
    charts = [chart for chart in charts if chart]
    return f'<h2>Probes, by step</h2><div class="charts">{"".join(charts)}</div>' if charts else ""
