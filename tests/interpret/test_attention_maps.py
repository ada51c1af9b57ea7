"""Attention and hidden states equal transformers'; gradients equal finite differences."""

from __future__ import annotations

import functools
from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported_models import fine_tuned_model, trained_model
from family_models import family_model

from bertjax.config import ExecutionConfig
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.families.networks import abstract_network
from bertjax.interpret.attention_maps import (
    exact_graphdef,
    likeliest_label,
    look_inside,
    next_sentence,
    untrained_heads,
)
from bertjax.interpret.attention_page import view_attention
from bertjax.interpret.sample_text import sample_text
from bertjax.interpret.token_rows import read_row
from bertjax.loaded import LoadedModel
from bertjax.model.attention.self_attention import LayerInputs
from bertjax.model.network import bind
from bertjax.run.run_directory import TrainedModel

LAYERS = 2
PAIRS = [("The museum opened 1877", "drawings of the museum"), ("naive", "the and of the museum of drawings and the")]


@pytest.fixture(scope="module")
def model(tmp_path_factory) -> TrainedModel:
    return trained_model(tmp_path_factory.mktemp("run"), num_hidden_layers=LAYERS)


def make_rows(model):
    return [read_row(model.tokenizer, pair, 64) for pair in PAIRS]


def test_attention_equals_transformers(model, tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    folder = export_huggingface(model, tmp_path / "exported")
    network = transformers.BertModel.from_pretrained(folder, attn_implementation="eager").eval()
    first, second = ([pair[side] for pair in PAIRS] for side in (0, 1))
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    inputs = tokenizer(first, second, padding=True, return_tensors="pt")
    with torch.no_grad():
        out = network(**inputs, output_attentions=True, output_hidden_states=True)
    for number, (row, inside) in enumerate(zip(make_rows(model), look_inside(model, make_rows(model)), strict=True)):
        n = len(row)
        assert inputs["input_ids"][number, :n].tolist() == row.ids.tolist()
        theirs = np.stack([layer[number, :, :n, :n].numpy() for layer in out.attentions])
        np.testing.assert_allclose(inside.attention, theirs, rtol=0, atol=1e-6)
        hidden = np.stack([layer[number, :n].numpy() for layer in out.hidden_states])
        np.testing.assert_allclose(inside.hidden, hidden, rtol=0, atol=2e-5)
        assert np.abs(theirs - 1 / n).max() > 0.1, "heads distinguish tokens"
        np.testing.assert_allclose(inside.attention.sum(axis=-1), 1, atol=1e-5)


def test_pairs_match_the_family_tokenizer(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    model = family_model(tmp_path / "run", "roberta")
    folder = export_huggingface(model, tmp_path / "exported")
    network = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()
    inputs = transformers.AutoTokenizer.from_pretrained(folder)(*PAIRS[0], return_tensors="pt")
    (tmp_path / "text.txt").write_text("The river rose. The bank was high.")
    sample = sample_text(model, str(tmp_path / "text.txt"), lambda *_: None)
    row = view_attention(model, "", PAIRS[0], sample, 2, lambda *_: None).row
    assert row.ids.tolist() == inputs["input_ids"][0].tolist()
    assert row.segments.tolist() == sorted(row.segments) and set(row.segments) == {0, 1} and not row.token_types.any()
    with torch.no_grad():
        theirs = np.stack([layer[0].numpy() for layer in network(**inputs, output_attentions=True).attentions])
    (inside,) = look_inside(model, [row])
    np.testing.assert_allclose(inside.attention, theirs, rtol=0, atol=1e-6)


def apply_layer(layer, x, weights):
    """Compute a layer's output from its attention, [H, L, L], and its input, [1, L, D]."""
    value = jnp.einsum("BLD,DHK->BLHK", x, layer.attention.value.kernel[...]) + layer.attention.value.bias[...]
    x = layer.attention_norm(x + layer.attention.output(jnp.einsum("HLM,BMHK->BLHK", weights, value)))
    return layer.mlp_norm(x + layer.mlp(x))


def select_layer(bert, number):
    return jax.tree.map(lambda x: x[number], bert.encoder.layers)


def assert_reproduces_layers(model, inside):
    """The attention-weighted values, through the rest of the layer, are the input of the next layer."""
    bert, run = bind(exact_graphdef(model), model.params), jax.jit(apply_layer)
    with jax.default_matmul_precision("highest"):
        for number in range(model.config.model.num_hidden_layers):
            mixed = run(select_layer(bert, number), inside.hidden[number][None], inside.attention[number])
            np.testing.assert_allclose(mixed[0], inside.hidden[number + 1], atol=1e-5)


def test_attention_reproduces_the_next_layer(model):
    (inside,) = look_inside(model, make_rows(model)[:1])
    assert_reproduces_layers(model, inside)


def test_causal_attention_is_triangular(tmp_path):
    causal = trained_model(tmp_path, causal=True)
    (row,) = make_rows(causal)[:1]
    (inside,) = look_inside(causal, [row])
    assert not np.triu(inside.attention, 1).any() and not np.triu(inside.seen, 1).any()
    assert np.tril(inside.seen).sum() == len(row) * (len(row) + 1) / 2


def test_windowed_layer_attends_within_its_window(tmp_path):
    """Layers 1 and 2 of 3 see two tokens on either side; each reproduces the input of the next."""
    local = trained_model(tmp_path, num_hidden_layers=3, window=2, global_every=3)
    (row,) = make_rows(local)[:1]
    (inside,) = look_inside(local, [row])
    far = np.abs(np.arange(len(row))[:, None] - np.arange(len(row))) > 2
    assert inside.seen.all() and (inside.attention[0] > 0).all()
    assert not inside.attention[1:, :, far].any() and (inside.attention[1:, :, ~far] > 0).all()
    np.testing.assert_allclose(inside.attention.sum(axis=-1), 1, rtol=1e-5)
    assert_reproduces_layers(local, inside)
    # The final [CLS] depends on all tokens through layer 0, then on those within 4, then within 2.
    for norms, reach in zip(next_sentence(local, row).gradient_norms, (len(row), 4, 2, 0), strict=True):
        np.testing.assert_array_equal(norms > 0, np.arange(len(row)) <= reach)


def test_gradients_match_finite_differences(model):
    """Moves a token's vector slightly, and computes the remaining layers by hand."""
    (row,) = make_rows(model)[:1]
    (inside,) = look_inside(model, [row])
    bert, draw = bind(exact_graphdef(model), model.params), np.random.default_rng(0)

    @functools.partial(jax.jit, static_argnums=0)
    def probabilities(first, x):
        with jax.default_matmul_precision("highest"):
            for number in range(first, LAYERS):
                layer = select_layer(bert, number)
                x = apply_layer(
                    layer, x, layer.attention.probabilities(x, LayerInputs(jnp.ones(x.shape[:2], jnp.int32)))[0]
                )
            return jax.nn.softmax(bert.nsp_head(bert.pooler(x[:, :1]))[0, 0])

    def loss(first, x, follows):
        return -np.log(np.float64(probabilities(first, x[None])[0 if follows else 1]))

    for follows in (True, False):
        prediction = next_sentence(model, row, follows)
        assert prediction.loss == pytest.approx(loss(0, inside.hidden[0], follows), rel=1e-4)
        said = probabilities(LAYERS, inside.hidden[-1][None])[0 if follows else 1]
        assert prediction.probability == pytest.approx(float(said), rel=1e-4)
        assert prediction.label == ("B follows A" if follows else "B does not follow A")
        for first in range(LAYERS + 1):
            for token in (0, 1, len(row) - 1):
                # Along 32 orthogonal directions, whose products have the norm of the gradient.
                directions = np.linalg.qr(draw.normal(size=(32, 32)))[0].astype(np.float32)
                moved = np.zeros((32, len(row), 32), np.float32)
                moved[:, token] = 1e-2 * directions
                products = [
                    (
                        loss(first, inside.hidden[first] + way, follows)
                        - loss(first, inside.hidden[first] - way, follows)
                    )
                    / 2e-2
                    for way in moved
                ]
                assert prediction.gradient_norms[first, token] == pytest.approx(
                    np.linalg.norm(products), rel=1e-2, abs=1e-4
                )
        assert (prediction.gradient_norms[:-1] > 0).all()
        assert prediction.gradient_norms[-1, 0] > 0 and not prediction.gradient_norms[-1, 1:].any(), (
            "only [CLS] is read"
        )


def test_classifier_gradients_match_transformers(tmp_path):
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    labels = ("bad", "so so", "good")
    classifier = fine_tuned_model(tmp_path / "run", "sequence", labels, num_hidden_layers=LAYERS)
    folder = export_huggingface(classifier, tmp_path / "exported")
    network = transformers.AutoModelForSequenceClassification.from_pretrained(folder, attn_implementation="eager")
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    for pair, row in zip(PAIRS, make_rows(classifier), strict=True):
        out = network.eval()(**tokenizer(*pair, return_tensors="pt"), output_hidden_states=True)
        loss = torch.nn.functional.cross_entropy(out.logits, out.logits.argmax(-1))
        norms = torch.stack([part[0].norm(dim=-1) for part in torch.autograd.grad(loss, out.hidden_states)])
        prediction = likeliest_label(classifier, row)
        assert prediction.label == labels[int(out.logits.argmax())]
        assert (prediction.loss, prediction.probability) == pytest.approx(
            (loss.item(), out.logits.softmax(-1).max().item()), 1e-4
        )
        np.testing.assert_allclose(prediction.gradient_norms, norms.numpy(), rtol=1e-3, atol=1e-5 * float(norms.max()))


def test_multi_label_probabilities_are_independent(tmp_path):
    classifier = fine_tuned_model(tmp_path / "run", "multi_label", ("bad", "so so", "good"), num_hidden_layers=LAYERS)
    (row, *_), (pair, *_) = make_rows(classifier), PAIRS
    prediction, shares = likeliest_label(classifier, row), LoadedModel(classifier).predict(pair).probabilities
    assert prediction.label == max(shares, key=shares.get)
    assert prediction.probability == pytest.approx(shares[prediction.label], rel=1e-4)


def test_untrained_heads_are_reported(model):
    assert untrained_heads(model) == ()
    mlm, nsp = (jax.tree.map_with_path(without_biases, model.params[head]) for head in ("mlm_head", "nsp_head"))
    assert untrained_heads(replace(model, params=model.params | {"nsp_head": nsp})) == ("NSP head",)
    assert untrained_heads(replace(model, params=model.params | {"mlm_head": mlm})) == ("MLM head",)


def without_biases(path, leaf):
    return 0 * leaf if path[-1].key == "bias" else leaf


def test_attention_of_bfloat16_runs_is_float32(model):
    config = replace(model.config, execution=ExecutionConfig(dtype="bfloat16"))
    rough = replace(model, config=config, graphdef=abstract_network(config.model, config.execution)[0])
    for one, other in zip(look_inside(rough, make_rows(model)), look_inside(model, make_rows(model)), strict=True):
        np.testing.assert_array_equal(one.attention, other.attention)


def test_empty_and_long_sentences_are_refused(model):
    with pytest.raises(ValueError, match="has no tokens"):
        read_row(model.tokenizer, ["the", " "], 64)
    with pytest.raises(ValueError, match=r"have 9 tokens, special ones included; the model was trained on rows of 8"):
        read_row(model.tokenizer, ["the of and", "the of and"], 8)
