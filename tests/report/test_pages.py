"""Every page in a real browser: readable at three widths in light and dark, interactive, and safe from hostile text.

The script `COMPLAINTS` examines the layout in the browser for text that is cut off, overlaps, or is too small or pale.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import cast

import jax
import numpy as np
import pytest
from page_browser import NAMES, Browser, find_browser
from small_models import make_sample, random_sentences, small_model
from stored_documents import write_store

from bertjax.__main__ import main
from bertjax.config import Config, DataConfig, ModelConfig, OptimizerConfig, TrainingConfig, to_dict
from bertjax.finetune.encoding.rows import TaskRows
from bertjax.finetune.kinds.kind import Judged, Split, TaskContent
from bertjax.finetune.kinds.sequence import SEQUENCE
from bertjax.finetune.task_report import render
from bertjax.interpret.attention_page import render_attention, view_attention
from bertjax.interpret.attention_patterns import PATTERNS
from bertjax.interpret.comparison_page import render_comparison
from bertjax.interpret.paired_bootstrap import Difference
from bertjax.interpret.run_comparison import Compared, Comparison
from bertjax.plan.answer import Answer, render_plan
from bertjax.plan.estimates import make_plan
from bertjax.plan.roofline import Bound
from bertjax.plan.topologies import open_topology
from bertjax.report.run_report import write_report
from bertjax.report.run_summary import Completion, Summary, measured
from bertjax.run.telemetry import JsonlWriter
from bertjax.runtime.compilation import environment
from bertjax.search.rankings import Hits
from bertjax.search.records import Record, StoredDocuments
from bertjax.search.results_page import render_results
from bertjax.storage.progress import no_progress
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece
from bertjax.training.objectives import choose

WIDTHS = (400, 900, 1400)
PAGES = ("report", "finetune", "inspect", "plan", "attention", "compare", "search")
# Text that a corpus, a file name or a config could contain.
HOSTILE = "<script>window.ran=1</script><img/src=x/onerror=window.ran=1>"
PATH = "text:/data/corpora/a_collection_of_long_names/of_novels-and-letters/volume*.txt.xz"

COMPLAINTS = """(() => {
  const found = [], all = (what, from = document) => [...from.querySelectorAll(what)];
  const said = element => JSON.stringify(element.textContent.trim().slice(0, 40));
  const shown = element => element.checkVisibility({visibilityProperty: true, opacityProperty: true});
  const root = document.documentElement;
  if (root.scrollWidth > innerWidth) found.push(`the page is ${root.scrollWidth} wide in a window of ${innerWidth}`);

  // Text of drawings: inside its drawing, large enough, and alone in its place.
  for (const svg of all('figure svg[viewBox], .columns')) {
    const frame = svg.getBoundingClientRect(), boxes = [];
    if (svg.parentElement.closest('svg')) continue;
    for (const text of all('text', svg)) {
      if (!shown(text) || !text.textContent) continue;
      const box = text.getBoundingClientRect(), where = `${said(text)} in ${svg.getAttribute('aria-label')}`;
      if (box.left < frame.left - 1 || box.right > frame.right + 1 || box.top < frame.top - 1
        || box.bottom > frame.bottom + 1) found.push(`cut off: ${where}`);
      const size = parseFloat(getComputedStyle(text).fontSize) * svg.getScreenCTM().a;
      if (size < 9) found.push(`${size.toFixed(1)} pixels: ${where}`);
      for (const [other, name] of boxes) {
        const across = Math.min(box.right, other.right) - Math.max(box.left, other.left);
        const up = Math.min(box.bottom, other.bottom) - Math.max(box.top, other.top);
        if (across > 1 && up > 0.3 * Math.min(box.height, other.height)) found.push(`over ${name}: ${where}`);
      }
      boxes.push([box, said(text)]);
    }
  }

  // Text of the page: nothing hidden beyond an edge, no word in pieces of a few letters.
  for (const element of all('main *')) {
    if (!shown(element) || element.closest('svg, .thumbs')) continue;
    if (element.scrollWidth > element.clientWidth + 1 && element.clientWidth
      && getComputedStyle(element).overflowX !== 'visible') found.push(`has to be scrolled: ${said(element)}`);
    if (element.matches('td, th') && element.textContent.length > 8 && element.clientWidth < 70)
      found.push(`${element.clientWidth} pixels for ${said(element)}`);
  }

  // Contrast (WCAG 2.2, 1.4.3), of text with what is behind it.
  const numbers = colour => {
    const [r, g, b, a = 1] = (colour.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
    return colour.startsWith('color(srgb') ? [r * 255, g * 255, b * 255, a] : [r, g, b, a];
  };
  const over = ([r, g, b, a], [x, y, z]) => [r * a + x * (1 - a), g * a + y * (1 - a), b * a + z * (1 - a), 1];
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map(c => (c /= 255) <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const behind = element => element ? over(numbers(getComputedStyle(element).backgroundColor),
    behind(element.parentElement)) : [255, 255, 255, 1];
  const opacity = element => element ? getComputedStyle(element).opacity * opacity(element.parentElement) : 1;
  const words = document.createTreeWalker(document.querySelector('main'), NodeFilter.SHOW_TEXT);
  while (words.nextNode()) {
    const element = words.currentNode.parentElement;
    if (!words.currentNode.data.trim() || !shown(element) || element.closest('script')) continue;
    const style = getComputedStyle(element), ground = behind(element.closest('svg')?.parentElement || element);
    const [r, g, b, a] = numbers(element.closest('svg') ? style.fill : style.color);
    const [one, two] = [over([r, g, b, a * opacity(element)], ground), ground].map(light).sort((x, y) => y - x);
    const ratio = (one + 0.05) / (two + 0.05);
    if (ratio < 4.5) found.push(`contrast ${ratio.toFixed(2)}: ${said(element)}`);
  }
  return [...new Set(found)];
})()"""


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A page of each kind, with hostile text in everything that comes from outside."""
    folder = tmp_path_factory.mktemp("pages")
    files = {name: folder / f"{name}.html" for name in PAGES}
    _report(folder / "report.html")
    _inspection(folder, files["inspect"])
    files["finetune"].write_text(_finetuning(), encoding="utf-8")
    files["plan"].write_text(_plan(), encoding="utf-8")
    files["compare"].write_text(_comparison(), encoding="utf-8")
    files["search"].write_text(_search(), encoding="utf-8")
    files["attention"].write_text(_attention(folder / "run"), encoding="utf-8")
    return files


def _report(file: Path) -> None:
    writer, draw = JsonlWriter(file.parent / "metrics.jsonl", 0), np.random.default_rng(0)
    for step in range(10, 4138, 20):
        loss = 6 + 4 / (1 + step / 300) + draw.normal() / 9
        metrics = {"train/mlm_loss": loss, "train/mlm_accuracy": (10 - loss) / 40, "train/nsp_accuracy": 0.7}
        metrics |= {"train/learning_rate": 1e-4 * min(step / 400, 1), "train/grad_norm": 1.2 + draw.random() / 9}
        writer.write(step, metrics | {"perf/tokens_per_second": 35e3, "time/step": 0.9, "time/input_wait": 0.1})
        if step % 1000 == 990:
            held_out = {"eval/mlm_loss": loss + 0.1, "eval/mlm_accuracy": 0.2, "eval/nsp_accuracy": 0.6}
            writer.write(step, held_out | _probes(step / 4000))
    writer.close()
    figures = {"eval/mlm_loss": 6.148, "eval/mlm_accuracy": 0.1331, "eval/nsp_accuracy": 0.4}
    baselines = {"no_context_loss": 6.982, "no_context_accuracy": 0.0521, "majority_accuracy": 0.5031}
    summary = Summary(
        name=f"run {HOSTILE}",
        about=f"{PATH}, text:{HOSTILE}",
        steps=4137,
        tokens_seen=24_113_552,
        wall_seconds=1083.2,
        tokens_per_second=35_420.4,
        mfu=0.381,
        peak="0.119 TFLOP/s (measured)",
        held_out=measured(
            choose(("mlm", "nsp")), figures, {f"baseline/{name}": value for name, value in baselines.items()}
        ),
        completions=(
            Completion(f"the {HOSTILE} [MASK] of", HOSTILE, ((HOSTILE, 0.6), ("Donaudampfschiff", 0.21), ("a", 0.01))),
        ),
    )
    write_report(file.parent, summary, to_dict(Config(name=HOSTILE)), environment())


def _finetuning() -> str:
    labels = ("negative", "in between", HOSTILE, "positive", "Donaudampfschifffahrtsgesellschaft")
    draw = np.random.default_rng(0)
    judged = [
        Judged((f"text {number} {HOSTILE}", "b" * 500), labels[a], labels[b], bool(a == b), float(draw.random()))
        for number, (a, b) in enumerate(draw.integers(0, len(labels), (200, 2)))
    ]
    rows = TaskRows(np.arange(201), {}, {})
    split = Split(rows, lambda folder, outputs: [], baselines={"accuracy": 0.31}, judge=lambda outputs: judged)
    content = TaskContent(SEQUENCE, labels, rows, {"dev": split}, {}, ("accuracy",))
    figures = {"eval/sequence_loss": 0.51, "eval/accuracy": 0.12, "test/accuracy": 0.6}
    steps = list(range(50, 1000, 50))
    found = {
        "train/sequence_loss": (steps, [1 / step for step in steps]),
        "eval/sequence_loss": (steps, [2 / step for step in steps]),
        "eval/accuracy": (steps, [step / 1000 for step in steps]),
        "train/learning_rate": (steps, [1e-5 * step for step in steps]),
    }
    config = to_dict(Config(name=HOSTILE))
    return render(HOSTILE, HOSTILE, content, figures, {"dev": np.zeros(0)}, found, config, environment())


def _probes(share: float) -> dict[str, float]:
    found = {"probe/pairs_accuracy": 0.52 + 0.2 * share, "probe/tags_by_form": 0.81}
    found |= {f"probe/pairs/{name}": 0.5 + 0.1 * n * share for n, name in enumerate(("agreement_1", HOSTILE, "b", "c"))}
    for number, pattern in enumerate(PATTERNS):
        found[f"probe/attention_{pattern.name.replace(' ', '_')}"] = 0.14 * number * share**2
    layers = {f"probe/tags_layer_{number}": 0.7 + 0.02 * number + 0.1 * share for number in range(5)}
    return found | layers | {"probe/tags_accuracy": max(layers.values())}


def _comparison() -> str:
    runs = (f"runs/{HOSTILE}", "runs/second", PATH.removeprefix("text:"))
    loss = (Difference(3.123, 3.071, -0.094, -0.0103, 0.0124), Difference(3.123, 3.141, -0.02, 0.055, 0.31))
    share = (Difference(0.4121, 0.4193, 0.001, 0.014, 0.0001), Difference(0.4121, 0.4121, 0.0, 0.0, 1.0))
    figures = (
        Compared("MLM loss (nats)", (3.123, 3.071, 3.141), loss, True, ".4f"),
        Compared(HOSTILE, (0.4121, 0.4193, 0.4121), share, False, ".2%"),
    )
    return render_comparison(Comparison(runs, (1_000, 20_000, 1_000_000), f"2,048 rows of {HOSTILE}", figures))


def _inspection(folder: Path, page: Path) -> None:
    words = [a + b + c for a in "bdfgklm" for b in "aeiou" for c in "nrst"]
    tokenizer = WordPiece([*SPECIAL_TOKENS, HOSTILE, "##ing", "Donaudampfschifffahrt", *words], TextRules(True, True))
    draw = np.random.default_rng(0)
    often = np.minimum(draw.zipf(1.3, 4000) + 4, len(tokenizer.tokens) - 1)
    documents = [
        [draw.choice(often, draw.integers(4, 30)).tolist() for _ in range(number)] for number in draw.integers(3, 9, 60)
    ]
    splits = {"train": [*documents[:50], documents[2], documents[4][:-1]], "held_out": documents[50:]}
    store = write_store(folder / "a_token_store_with_a_long_name-of-many-parts", splits, tokenizer)
    against = folder / "a test set with a <img onerror=run()> in its name.txt"
    against.write_text(" ".join(tokenizer.tokens[token] for token in documents[9][0]) + "\n", encoding="utf-8")
    assert main(["inspect", str(store), "--length", "32", "64", "--against", str(against), "--html", str(page)]) == 0


def _search() -> str:
    documents = [Record(f"{PATH}{n}", f"{HOSTILE} and the words of a query " * n, HOSTILE * (n % 2)) for n in range(30)]
    hits = Hits(np.arange(30), np.linspace(0.9, 0.1, 30))
    queries = [Record("1", f"words {HOSTILE}"), Record("2", "another query")]
    return render_results(f"{PATH}, by {HOSTILE}", queries, [hits, hits], cast(StoredDocuments, documents))


def _plan() -> str:
    config = Config(
        name=HOSTILE,
        model=ModelConfig(
            vocab_size=300, hidden_size=64, num_hidden_layers=1, num_attention_heads=2, intermediate_size=128
        ),
        data=DataConfig(sequence_length=128, max_predictions=8),
        optimizer=OptimizerConfig(warmup_steps=2),
        training=TrainingConfig(steps=100_000, global_batch_size=64, grad_accum_steps=1),
    )
    topology = replace(open_topology("local"), devices=tuple(jax.devices()[:2]), slices=(0, 0))
    plan = make_plan(config, topology, say=lambda line: None)
    # The speed of a CPU is unknown: the program is real, but the bound and the capacity are like a TPU's.
    stage = replace(plan.stages[0], bound=Bound(0.0935, 0.0513, 0.0124, 0.0), peak=2e14)
    stage = replace(stage, capacity=1.6 * stage.needed, traffic=1e9)
    plan = replace(plan, stages=(stage, stage), price=1.5)
    return render_plan(Answer(plan, None, None, f"vocabulary of 300 entries, as {PATH} has it {HOSTILE}"))


def _attention(folder: Path) -> str:
    model = small_model(folder)
    model = replace(model, params=jax.tree.map(lambda leaf: 2 * leaf, model.params))
    pair = ("I went to the store.", f"At the store, I bought {HOSTILE}.")
    sample = make_sample(model.tokenizer, random_sentences(20), origin=HOSTILE)
    return render_attention(view_attention(model, f"runs/{HOSTILE}", pair, sample, 10, no_progress))


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Browser]:
    """One browser for all tests."""
    program = find_browser()
    if program is None:
        pytest.skip(f"needs a browser to open pages with: none of {', '.join(NAMES)} is installed")
    started = Browser(program, tmp_path_factory.mktemp("browser"))
    yield started
    started.close()


@pytest.mark.run
@pytest.mark.parametrize("name", PAGES)
def test_pages_are_readable_at_all_widths_light_and_dark(pages, browser, name):
    """Colours do not depend on the width, nor the layout on colours."""
    complaints = []
    for width, dark in zip(WIDTHS, (False, True, False), strict=True):
        browser.open(pages[name], width, dark=dark)
        where = f"{width} pixels, {'dark' if dark else 'light'}: "
        complaints += [where + one for one in [*browser.ask(COMPLAINTS), *browser.complaints]]
    assert not complaints, "\n".join(complaints)


@pytest.mark.run
@pytest.mark.parametrize("name", PAGES)
def test_pages_run_no_hostile_script_and_request_nothing(pages, browser, name, tmp_path):
    browser.open(pages[name])
    assert browser.ask("document.body.textContent.includes('<script>window.ran=1')"), "shown as text"
    assert browser.ask("typeof window.ran") == "undefined"
    assert [address for address in browser.requests if not address.startswith(("file:", "data:"))] == []
    # The policy stops even unescaped text, and lets the page's own script run.
    raw = pages[name].read_text(encoding="utf-8").replace("<main>", f"<main>{HOSTILE}<i style='color:red'>text</i>")
    (tmp_path / "raw.html").write_text(raw, encoding="utf-8")
    browser.open(tmp_path / "raw.html")
    assert browser.ask("document.querySelectorAll('main > script:not([type]), main > img').length") == 2
    assert browser.ask("typeof window.ran") == "undefined"
    assert browser.ask("getComputedStyle(document.querySelector('main > i')).color") != "rgb(255, 0, 0)"
    refused = [output for output in browser.complaints if "Content Security Policy" in output]
    assert len(refused) >= 3, browser.complaints


def scroll_to(browser: Browser, element: str, across: float = 0.5) -> tuple[float, float]:
    """Scroll to an element, and return its position in the window."""
    box = browser.ask(
        f"(() => {{ const e = {element}; e.scrollIntoView({{block: 'center'}});"
        " const {left, top, width, height} = e.getBoundingClientRect(); return [left, top, width, height]; })()"
    )
    return box[0] + across * box[2], box[1] + box[3] / 2


@pytest.mark.run
@pytest.mark.parametrize("width", WIDTHS)
def test_curve_shows_values_by_pointer_and_keys(pages, browser, width):
    browser.open(pages["report"], width)
    box = "document.querySelector('.readout')"
    for across in (0.02, 0.5, 0.98):
        browser.point(*scroll_to(browser, "document.querySelector('figure svg')", across))
        assert not browser.ask(f"{box}.hidden")
        left, right = browser.ask(f"(({{left, right}}) => [left, right])({box}.getBoundingClientRect())")
        assert 0 <= left < right <= width
    output = browser.ask(f"{box}.innerText")
    assert output.startswith("step 4,1") and "training" in output and "held-out" in output and "at 3,990" in output
    browser.ask("document.querySelector('figure svg').focus()")
    for key, step in (("End", "4,130"), ("ArrowLeft", "4,110"), ("Home", "10"), ("ArrowRight", "30")):
        browser.press(key)
        assert browser.ask(f"{box}.innerText").splitlines()[0] == f"step {step}"
    browser.press("Escape")
    assert browser.ask(f"{box}.hidden")


@pytest.mark.run
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize("name", ["inspect", "plan"])
def test_bars_show_tooltips_by_pointer_and_keys(pages, browser, name, width):
    browser.open(pages[name], width)
    shown = "[...document.querySelectorAll('.tip')].filter(t => getComputedStyle(t).visibility === 'visible')"
    assert browser.ask(f"{shown}.length") == 0
    count = browser.ask("document.querySelectorAll('.hit').length")
    for number in sorted({0, 1, count // 2, count - 1}):
        hit = f"document.querySelectorAll('.hit')[{number}]"
        browser.point(*scroll_to(browser, hit))
        texts = browser.ask(f"{shown}.map(t => t.textContent)")
        label = browser.ask(f"{hit}.getAttribute('aria-label')")
        assert len(texts) == 1 and label.startswith(texts[0].removesuffix("…")) and ":" in label
        inside = f"(t => t.left >= 0 && t.right <= {width} && t.width > 30)({shown}[0].getBoundingClientRect())"
        assert browser.ask(inside)
    browser.point(0, 0)
    browser.ask("document.querySelector('.hit').focus()")
    browser.press("Tab")
    assert browser.ask(f"{shown}.length") == 1, "Tab moves to the next bar"


@pytest.mark.run
def test_parts_of_a_step_are_separate_bars(pages, browser):
    browser.open(pages["plan"])
    bars = browser.ask(
        "[...document.querySelectorAll('figure')].filter(f => f.textContent.includes('overlap'))"
        ".map(f => [...f.querySelectorAll('.area')].map(a => a.getBBox()).map(b => [b.x, b.width]))"
    )
    assert len(bars) == 2
    for parts in bars:
        starts, widths = zip(*parts, strict=True)
        assert np.ptp(starts) < 0.01, "each from 0"
        assert np.allclose(np.array(widths) / widths[0], np.array([0.0935, 0.0513, 0.0124, 0]) / 0.0935, atol=0.01)


@pytest.mark.run
def test_read_out_data_equals_the_log(pages, browser):
    """The read-out has the log's values, to the displayed digits."""
    browser.open(pages["report"])
    rows = [json.loads(line) for line in (pages["report"].parent / "metrics.jsonl").read_text().splitlines()]
    logged = {row["step"]: row["train/mlm_loss"] for row in rows if "train/mlm_loss" in row}
    points = browser.ask("JSON.parse(document.querySelector('figure script').textContent).series[0].points")
    assert len(points) > 100
    for step, value in points:
        assert value == pytest.approx(logged[step], rel=1e-4)


@pytest.mark.run
def test_adjacent_plots_are_aligned(pages, browser):
    browser.open(pages["inspect"], 1280)
    tops = """[...document.querySelector('.charts').querySelectorAll('figure > svg')]
      .map(svg => Math.round(svg.getBoundingClientRect().top))"""
    browser.ask("document.querySelector('.charts small').textContent += ' and more words'.repeat(9)")
    assert len(browser.ask(tops)) == 3 and len(set(browser.ask(tops))) == 1
