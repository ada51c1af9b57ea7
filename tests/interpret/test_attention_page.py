"""The attention page in a real browser: its drawing, and its reaction to the pointer."""

from __future__ import annotations

import html
import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from exported_models import fine_tuned_model
from page_browser import NAMES, Browser, find_browser
from small_models import make_sample, random_sentences, small_model, wordpiece

from bertjax.finetune.predict import TaskModel
from bertjax.interpret.attention_page import AttentionView, render_attention, view_attention
from bertjax.interpret.attention_patterns import PATTERNS
from bertjax.storage.progress import no_progress

SHORT = ("I went to the store.", "At the store, <b> bought fresh strawberries.")
LONG = ("the museum opened in " * 7, "every year a family gave it drawings . " * 4 + "sweet")

PROBE_SCRIPT = """(() => {
const all = (what, from = document) => [...from.querySelectorAll(what)];
const token = (side, i) => document.querySelector(`#heads [data-side="${side}"][data-token="${i}"]`);
const point = (side, i) => token(side, i).querySelector('.hit').dispatchEvent(new PointerEvent('pointerenter'));
const values = side => all(`#heads [data-side="${side}"] .value`).map(v => v.textContent);
const drawn = () => all('#heads .lines path').map(p => p.getAttribute('d')).join('').split('M').length - 1;
const chosen = () => document.getElementById('chosen').textContent;
const look = () => ({lines: drawn(), left: values(0), right: values(1), chosen: chosen(),
  colours: new Set(all('#heads .lines path').map(p => p.getAttribute('style'))).size});
  const said = {};
  said.before = look();
  point(0, 2); said.from = look();
  point(1, 3); said.to = look();
  document.getElementById('heads').dispatchEvent(new PointerEvent('pointerleave')); said.after = look();
  all('#layer-chips button')[1].click(); all('#head-chips button').at(-1).click(); said.all = look();
  all('#overview button')[6].click(); said.thumb = look();
  all('.cell')[1].click(); said.cell = look();
  const dots = canvas => [...canvas.getContext('2d').getImageData(0, 0, 120, 120).data];
  said.thumbs = all('#overview canvas').map(canvas => dots(canvas).some(dot => dot));
  said.gradient = all('#gradient .lines path').length;
  const boxes = all('#heads [data-side="0"] text:not(.value)').map(t => t.getBoundingClientRect());
  said.rows = boxes.map(box => [box.top, box.bottom, box.left, box.height]);
  said.texts = all('#heads [data-side="1"] text:not(.value)').map(t => t.textContent);
  said.wide = document.documentElement.scrollWidth <= innerWidth;
  return said;
})()"""


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    model = small_model(tmp_path_factory.mktemp("run"))
    # Larger weights, so that attention is less uniform than in a random model.
    return replace(model, params=jax.tree.map(lambda leaf: 2 * leaf, model.params))


@pytest.fixture(scope="module")
def views(model) -> dict[str, AttentionView]:
    sample = make_sample(model.tokenizer, random_sentences(40))
    return {
        name: view_attention(model, "runs/<small>", pair, sample, 20, no_progress)
        for name, pair in (("few", SHORT), ("many", LONG))
    }


@pytest.fixture(scope="module")
def output(views, tmp_path_factory) -> dict[str, dict]:
    """The results of the script above on each page in the browser."""
    program = find_browser()
    if program is None:
        pytest.skip(f"needs a browser to open the page with: none of {', '.join(NAMES)} is installed")
    folder = tmp_path_factory.mktemp("pages")
    browser, found = Browser(program, folder), {}
    for name, view in views.items():
        (folder / f"{name}.html").write_text(render_attention(view), encoding="utf-8")
        browser.open(folder / f"{name}.html", 1240, height=1600)
        found[name] = browser.ask(PROBE_SCRIPT) | {"failed": list(browser.complaints)}
    browser.close()
    return found


@pytest.mark.run
@pytest.mark.parametrize("name", ["few", "many"])
def test_pointing_at_a_token_shows_its_lines(views, output, name):
    view, shown = views[name], output[name]
    assert shown["failed"] == []
    layer, head = (int(number) - 1 for number in re.findall(r"\d+", shown["before"]["chosen"]))
    weights = view.attention[layer, head]
    assert shown["before"]["lines"] == count_lines(weights) > 0
    assert not any(shown["before"]["left"] + shown["before"]["right"])
    assert shown["from"]["lines"] == count_lines(weights[2]) < shown["before"]["lines"]
    assert_shows(shown["from"]["right"], weights[2])
    assert shown["to"]["lines"] == count_lines(weights[:, 3])
    assert_shows(shown["to"]["left"], weights[:, 3])
    assert not any(shown["from"]["left"] + shown["to"]["right"])
    assert shown["after"] == shown["before"]


def count_lines(weights):
    """The number of drawn weights, which the page stores in 16 bits."""
    return (np.round(weights * 65535) / 65535 >= 0.02).sum()


def assert_shows(texts, weights):
    for text, weight in zip(texts, weights, strict=True):
        if abs(weight - 0.005) > 1e-4:
            assert bool(text) == (weight > 0.005)
        if text:
            assert float(text.removesuffix("%")) == pytest.approx(100 * weight, abs=0.06 if weight < 0.099 else 0.6)


@pytest.mark.run
@pytest.mark.parametrize("name", ["few", "many"])
def test_layers_and_heads_are_chosen(views, output, name):
    shown, view = output[name], views[name]
    assert shown["all"]["chosen"] == "Layer 2, all heads" and shown["all"]["colours"] == 4
    assert shown["all"]["lines"] == count_lines(view.attention[1])
    assert shown["thumb"]["chosen"] == "Layer 2, head 3" and shown["cell"]["chosen"] == "Layer 1, head 2"
    assert shown["thumb"]["lines"] == count_lines(view.attention[1, 2])
    assert shown["thumbs"] == [True] * 8 and shown["gradient"] > 0


@pytest.mark.run
@pytest.mark.parametrize("name", ["few", "many"])
def test_tokens_can_be_read(views, output, name):
    shown, view = output[name], views[name]
    assert len(shown["rows"]) == len(view.row) == {"few": 21, "many": 64}[name]
    assert shown["texts"] == [view.row.tokenizer.display_texts[token] for token in view.row.ids]
    for (top, bottom, left, height), (below, *_) in zip(shown["rows"], shown["rows"][1:], strict=False):
        assert left > 0 and height >= 12 and below - top >= 15 and bottom - below <= 4, "lines of text do not overlap"
    assert shown["wide"], "no horizontal scrolling"


def test_page_is_self_contained(views):
    page = render_attention(views["few"])
    assert "default-src 'none'" in page
    addresses = set(re.findall(r"https?://[^\s'\"<]+", page))
    assert addresses == {"http://www.w3.org/2000/svg"}
    assert not re.search(r"<(?:link|img|iframe|script[^>]* src)|@import|url\(|fetch\(|XMLHttpRequest", page)
    assert "<b>" not in page.partition("<main>")[2].partition("What each head does")[0].replace("<b></b>", "")
    assert "runs/&lt;small&gt;" in page and "a &lt;test&gt;" in page
    assert page.count("</script>") == 2


def test_page_shows_pattern_strength_per_head(views):
    view, page = views["few"], render_attention(views["few"])
    for number, pattern in enumerate(PATTERNS):
        assert html.escape(pattern.looks_at) in page
        for layer in range(2):
            for head in range(4):
                share, strength = (x[number, layer, head] for x in (view.patterns.shares, view.patterns.strengths))
                assert (
                    f"layer {layer + 1}, head {head + 1}: {share:.1%} of the attention, strength {strength:.2f}" in page
                )
    assert page.count('class="cell') == 6 * 2 * 4


def test_missing_predictions_are_reported(model, tmp_path):
    sample = make_sample(model.tokenizer, random_sentences(10))
    alone = view_attention(model, "small", SHORT[:1], sample, 8, no_progress)
    assert alone.at_cls is None and "next-sentence prediction needs a second sentence" in render_attention(alone)
    bare = replace(model, params=model.params | {"nsp_head": jax.tree.map(np.zeros_like, model.params["nsp_head"])})
    numbers = fine_tuned_model(tmp_path, "regression", tokenizer=model.tokenizer)
    for other, output in (
        (bare, "the model has no trained NSP head; fine-tune it for classification to get a label"),
        (numbers, "the model was fine-tuned for regression, which does not label texts"),
    ):
        view = view_attention(other, "small", SHORT, sample, 8, no_progress)
        assert view.at_cls is None and output in render_attention(view)
    causal = small_model(tmp_path, causal=True)
    data = replace(causal.config.data, predict="next")
    training = replace(causal.config.training, objectives=("mlm",))
    causal = replace(causal, config=replace(causal.config, data=data, training=training))
    view = view_attention(causal, "small", SHORT, sample, 8, no_progress)
    page = render_attention(view)
    assert "“words that predict it” is not measured: a causal model predicts the next token" in page
    assert "“next word” is not measured: no token may attend to" in page
    assert "in a causal model [CLS] attends only to itself" in page
    assert np.isnan(view.patterns.strengths[0]).all() and "Not measured." in page


def test_gradient_belongs_to_the_predicted_label(tmp_path):
    """With the names exchanged, the predicted label is the other one."""
    found = []
    for labels in (("<bad>", "good"), ("good", "<bad>")):
        model = fine_tuned_model(tmp_path / labels[1], "sequence", labels, tokenizer=wordpiece())
        view = view_attention(
            model, "small", SHORT[:1], make_sample(model.tokenizer, random_sentences(10)), 8, no_progress
        )
        (predicted,) = TaskModel(model).predict([SHORT[0]])
        assert view.at_cls.label == predicted.label
        assert view.at_cls.probability == pytest.approx(predicted.probability, rel=1e-5)
        assert view.at_cls.loss == pytest.approx(-np.log(predicted.probability), rel=1e-4)
        assert (view.at_cls.gradient_norms[0] > 0).all()
        page = render_attention(view)
        label = html.escape(predicted.label)
        assert f"<h2>What “{label}” depends on</h2>" in page
        assert f"The model predicts “{label}” with {view.at_cls.probability:.1%}" in page
        assert "<bad>" not in page and not any("at [CLS] is not shown" in note for note in view.missing)
        found.append(predicted.label)
    assert sorted(found) == ["<bad>", "good"]


def test_sample_without_pairs_is_refused(model):
    sample = make_sample(model.tokenizer, ["the store ."] * 5)
    with pytest.raises(ValueError, match="no two successive sentences that are short enough"):
        view_attention(model, "small", SHORT, sample, 8, no_progress)
