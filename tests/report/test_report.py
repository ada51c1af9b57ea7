"""The report has the run's figures, escapes all text, loads nothing, and is written atomically."""

import os
import re
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from bertjax.config import Config, to_dict
from bertjax.report.run_report import write_report
from bertjax.report.run_summary import Completion, Summary, measured
from bertjax.run.telemetry import JsonlWriter
from bertjax.runtime.compilation import environment
from bertjax.training.objectives import choose

SUMMARY = Summary(
    name="a <run>",
    about="BERT & friends",
    steps=6000,
    tokens_seen=24_113_552,
    wall_seconds=683.2,
    tokens_per_second=35_420.4,
    mfu=0.381,
    peak="0.119 TFLOP/s (measured)",
    held_out=measured(
        choose(("mlm", "nsp")),
        {"eval/mlm_loss": 5.148, "eval/mlm_accuracy": 0.2331, "eval/nsp_accuracy": 0.7012},
        {
            "baseline/no_context_loss": 6.982,
            "baseline/no_context_accuracy": 0.0521,
            "baseline/majority_accuracy": 0.5031,
        },
    ),
    completions=(Completion("the <b> [MASK] of", "mean", (("shape", 0.62), ("mean", 0.21))),),
)
VOID = {"meta", "line", "path", "circle"}


class Page(HTMLParser):
    """Checks that every tag is closed, and collects the visible text."""

    def __init__(self, text):
        super().__init__()
        self.open, self.tags, self.words, self.addresses = [], [], [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        self.tags.append(tag)
        self.addresses += [value for key, value in attributes if key in ("src", "href", "action", "data")]
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag, attributes):
        self.tags.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] not in ("script", "style"):
            self.words.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.words))


def write_metrics(run_dir, steps=200):
    writer = JsonlWriter(run_dir / "metrics.jsonl", 0)
    for step in range(1, steps + 1):
        metrics = {"train/mlm_loss": 9 - step / 100, "train/mlm_accuracy": step / 1000, "train/nsp_accuracy": 0.5}
        metrics |= {"train/learning_rate": 1e-3, "train/grad_norm": 1.0, "perf/tokens_per_second": 35_000.0}
        writer.write(step, metrics | {"time/step": 0.9, "time/input_wait": 0.1})
    writer.write(steps, {"eval/mlm_loss": 7.2, "eval/mlm_accuracy": 0.2, "eval/nsp_accuracy": 0.6})
    writer.close()


def render_page(run_dir, summary=SUMMARY):
    path = write_report(run_dir, summary, to_dict(Config(name="a <run>")), environment())
    assert path == run_dir / "report.html"
    return path.read_text(encoding="utf-8")


def test_figures_are_shown_with_their_baselines(tmp_path):
    write_metrics(tmp_path)
    text = Page(render_page(tmp_path)).text
    for row in ("5.148 no context 6.982 −1.834", "23.3% no context 5.2% +18.1 points", "70.1% majority 50.3%"):
        assert row in text
    for tile in ("Steps 6,000", "24.1 M", "11 min 23 s", "35,420", "38.1% of 0.119 TFLOP/s (measured)"):
        assert tile in text
    assert "1.83 nats below" in text
    assert "resumed" not in text
    resumed = Page(render_page(tmp_path, replace(SUMMARY, first_step=1500))).text
    assert "11 min 23 s since step 1,500, from which the run was resumed" in resumed


def test_report_has_all_charts_with_baselines(tmp_path):
    write_metrics(tmp_path)
    page = render_page(tmp_path)
    titles = re.findall(r"<figcaption>(.*?)</figcaption>", page)
    assert titles == [
        "MLM loss (nats)",
        "MLM accuracy",
        "NSP accuracy",
        "Learning rate",
        "Gradient norm (log scale)",
        "Tokens per second",
        "Time by activity",
    ]
    assert "no context 6.982" in page and "majority 50.3%" in page


def test_right_guess_is_marked_and_text_is_escaped(tmp_path):
    write_metrics(tmp_path)
    page = render_page(tmp_path)
    assert '<span class="guess right">mean<small>21%</small></span>' in page
    assert '<span class="guess">shape<small>62%</small></span>' in page
    assert "the &lt;b&gt; <mark>[MASK]</mark> of" in page
    assert "a &lt;run&gt;" in page and "<run>" not in page
    assert "<title>a &lt;run&gt;</title>" in page


def test_report_is_self_contained_and_small(tmp_path):
    write_metrics(tmp_path, steps=5000)
    page = render_page(tmp_path)
    assert Page(page).addresses == []
    assert not re.search(r"https?://|url\(|@import|fetch\(|XMLHttp", page)
    assert "default-src 'none'" in page
    assert len(page) < 250_000
    assert sorted(os.listdir(tmp_path)) == ["metrics.jsonl", "report.html"]


def test_report_has_config_and_environment(tmp_path):
    write_metrics(tmp_path)
    text = Page(render_page(tmp_path)).text
    assert "optimizer.learning_rate 0.0001" in text
    assert re.search(r"jax \d+\.\d+", text) and re.search(r"devices \d+ × cpu", text)


def test_report_of_a_run_without_nsp_or_curves(tmp_path):
    (tmp_path / "metrics.jsonl").write_text("")
    summary = Summary(
        "r", "a", 1, 10, 1.0, 10.0, None, "",
        measured(
            choose(("mlm",)),
            {"eval/mlm_loss": 7.5, "eval/mlm_accuracy": 0.01},
            {"baseline/no_context_loss": 7.0, "baseline/no_context_accuracy": 0.05},
        ),
    )  # fmt: skip
    text = Page(render_page(tmp_path, summary)).text
    assert "NSP" not in text.split("Configuration and environment")[0] and "MFU" not in text
    assert "0.50 nats above" in text


def test_missing_metrics_write_no_report(tmp_path):
    with pytest.raises(FileNotFoundError, match=r"metrics\.jsonl"):
        render_page(tmp_path)
    assert os.listdir(tmp_path) == []
