"""`report.html`: one self-contained page about a finished run, with its figures beside the baselines and its curves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from bertjax.report.charts import Level, Line, line_chart, stacked_chart, write
from bertjax.report.page import escaped, render_page
from bertjax.report.run_summary import Completion, Summary
from bertjax.storage.files import replace_text
from bertjax.storage.remote import Place
from bertjax.training.progress import duration
from bertjax.training.telemetry import METRICS_FILE, Curves, curves, read_metrics

REPORT_FILE = "report.html"  # within the run's directory

# What a page may load: nothing but what it holds.
_TIME_PARTS = (
    ("step", "step", "blue"),
    ("input_wait", "waiting for input", "orange"),
    ("eval", "evaluation", "green"),
    ("checkpoint", "checkpoint", "violet"),
    ("other", "other", "grey"),
)


def write_report(run_dir: Place, summary: Summary, config: Mapping[str, Any], versions: Mapping[str, str]) -> Place:
    """Write `report.html` into the run's directory, atomically, from its `metrics.jsonl` and what is given; its path.

    `config` is nested as `bertjax.config.to_dict` makes it; `versions` names what the run ran on. All text is escaped,
    and the page forbids itself the network.
    """
    path = run_dir / REPORT_FILE
    replace_text(path, render(summary, curves(read_metrics(run_dir / METRICS_FILE)), config, versions))
    return path


def render(summary: Summary, found: Curves, config: Mapping[str, Any], versions: Mapping[str, str]) -> str:
    """The page as HTML."""
    parts = [
        f"<h1>{escaped(summary.name)}</h1>",
        f'<p class="about">{escaped(summary.about)}</p>',
        f'<p class="verdict">{_verdict(summary)}</p>',
        "<h2>Held-out text</h2>",
        _held_out(summary),
        _tiles(summary),
        "<h2>Curves</h2>",
        f'<div class="charts">{_charts(summary, found)}</div>',
        _completions(summary.completions),
        "<h2>How it was made</h2>",
        _details("Configuration", _flatten(config)),
        _details("Environment", versions),
    ]
    parts = [part.replace('<figure class="chart">', '<figure class="chart card">') for part in parts]
    return render_page(summary.name, parts, reads_charts=True)


def _verdict(summary: Summary) -> str:
    gain = summary.unigram_loss - summary.mlm_loss
    told = f"{abs(gain):.2f} nats {'below' if gain >= 0 else 'above'}"
    said = (
        f"After {write(summary.tokens_seen, 'count')} tokens the masked-token loss on held-out text is "
        f"<b>{summary.mlm_loss:.2f}</b>, {told} what word frequencies alone give; "
        f"<b>{summary.mlm_accuracy:.1%}</b> of the masked tokens are guessed right"
    )
    if summary.nsp_accuracy is None:
        return f"{said}."
    return f"{said}, and <b>{summary.nsp_accuracy:.1%}</b> of the sentence pairs are told apart."


def _held_out(summary: Summary) -> str:
    rows = [
        _compare("MLM loss (nats)", summary.mlm_loss, "unigram", summary.unigram_loss, ".3f", -1),
        _compare("MLM accuracy", summary.mlm_accuracy, "most frequent token", summary.unigram_accuracy, ".1%", 1),
    ]
    if summary.nsp_accuracy is not None and summary.majority_accuracy is not None:
        rows.append(_compare("NSP accuracy", summary.nsp_accuracy, "majority", summary.majority_accuracy, ".1%", 1))
    names = ("This model", "Baseline", "Difference")
    heads = "<th>Measure</th>" + "".join(f'<th class="number">{name}</th>' for name in names)
    return (
        f'<div class="card scroll"><table><thead><tr>{heads}</tr></thead><tbody>{"".join(rows)}</tbody></table></div>'
    )


def _compare(measure: str, value: float, baseline: str, base: float, form: str, good: int) -> str:
    """A row: value beside baseline, and their difference, green if it has the sign of `good`."""
    difference = value - base
    shown = f"{difference * 100:+.1f} points" if form.endswith("%") else f"{difference:+{form}}"
    kind = "number better" if difference * good > 0 else "number"
    return (
        f'<tr><th>{escaped(measure)}</th><td class="number main">{value:{form}}</td><td class="number">'
        f'<small>{escaped(baseline)}</small>{base:{form}}</td><td class="{kind}">{shown.replace("-", "−")}</td></tr>'
    )


def _tiles(summary: Summary) -> str:
    tiles = [
        ("Steps", f"{summary.steps:,}", ""),
        ("Tokens seen", write(summary.tokens_seen, "count"), "padding excluded"),
        ("Wall time", duration(summary.wall_seconds), ""),
        ("Tokens per second", f"{summary.tokens_per_second:,.0f}", "padding excluded"),
    ]
    if summary.mfu is not None:
        tiles.append(("MFU", f"{summary.mfu:.1%}", f"of {summary.peak}"))
    cells = (
        f'<div class="tile card"><span>{escaped(name)}</span><b>{escaped(value)}</b><span>{escaped(note)}</span></div>'
        for name, value, note in tiles
    )
    return f'<div class="tiles">{"".join(cells)}</div>'


def _charts(summary: Summary, found: Curves) -> str:
    def pair(metric: str) -> list[Line]:
        lines = [
            Line("training", *found.get(f"train/{metric}", ([], [])), "blue", smooth=True),
            Line("held-out", *found.get(f"eval/{metric}", ([], [])), "orange", dots=True),
        ]
        return [line for line in lines if line.steps]

    def single(metric: str, colour: str, *, smooth: bool = False) -> list[Line]:
        name = metric.split("/")[1].replace("_", " ")
        return [Line(name, *found[metric], colour, smooth=smooth)] if metric in found else []

    majority = [] if summary.majority_accuracy is None else [Level("majority", summary.majority_accuracy)]
    charts = [
        line_chart("MLM loss (nats)", pair("mlm_loss"), [Level("unigram", summary.unigram_loss)]),
        line_chart(
            "MLM accuracy",
            pair("mlm_accuracy"),
            [Level("most frequent token", summary.unigram_accuracy)],
            form="percent",
        ),
        line_chart("NSP accuracy", pair("nsp_accuracy"), majority, form="percent"),
        line_chart("NSP loss (nats)", pair("nsp_loss")),
        line_chart("Learning rate", single("train/learning_rate", "green")),
        line_chart("Gradient norm (log scale)", single("train/grad_norm", "violet", smooth=True), log=True),
        line_chart("Tokens per second", single("perf/tokens_per_second", "blue", smooth=True), form="count"),
        _time_chart(found),
    ]
    return "\n".join(chart for chart in charts if chart)


def _time_chart(found: Curves) -> str:
    layers = [
        Line(label, *found[f"time/{part}"], colour) for part, label, colour in _TIME_PARTS if f"time/{part}" in found
    ]
    return stacked_chart("Where the time went", layers[0].steps, layers) if layers else ""


def _completions(completions: Sequence[Completion]) -> str:
    if not completions:
        return ""
    rows = "".join(
        f"<tr><td>{escaped(c.text).replace('[MASK]', '<mark>[MASK]</mark>')}</td><td>{escaped(c.answer)}</td>"
        f"<td>{''.join(_guess(token, share, c.answer) for token, share in c.guesses)}</td></tr>"
        for c in completions
    )
    heads = "<th>Held-out sentence</th><th>Was</th><th>The model's guesses</th>"
    table = f"<table><thead><tr>{heads}</tr></thead><tbody>{rows}</tbody></table>"
    return f'<h2>What it puts for [MASK]</h2><div class="card scroll">{table}</div>'


def _guess(token: str, share: float, answer: str) -> str:
    kind = "guess right" if token == answer else "guess"
    return f'<span class="{kind}">{escaped(token)}<small>{share:.0%}</small></span>'


def _details(title: str, values: Mapping[str, Any]) -> str:
    rows = "".join(
        f'<tr><th class="mono">{escaped(key)}</th><td class="mono">{escaped(value)}</td></tr>'
        for key, value in values.items()
    )
    return f'<details class="card"><summary>{escaped(title)}</summary><table><tbody>{rows}</tbody></table></details>'


def _flatten(tree: Mapping[str, Any], where: str = "") -> dict[str, Any]:
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat |= _flatten(value, f"{where}{key}.") if isinstance(value, Mapping) else {where + key: value}
    return flat
