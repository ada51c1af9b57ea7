"""The network: equality with transformers, sizes, initial weights, and the independence of sequences and padding."""

from __future__ import annotations

import functools
import os
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from real_batches import real_batch, small_wordpiece, whole_epoch
from small_training import draw_params
from their_model import assert_same_gradients, load_tensors, our_params, relative, their_model, their_outputs

from bertjax.config import DataConfig, ExecutionConfig, ModelConfig
from bertjax.convert.huggingface.names import to_huggingface_tensors
from bertjax.families.networks import abstract_network, init_params
from bertjax.model.attention.positions import positions_in_sequence, sinusoids
from bertjax.model.network import bind
from bertjax.model.parameters import named_arrays
from bertjax.parallel.sharding import is_names
from bertjax.training.objectives import choose
from bertjax.training.objectives.objective import MODEL, Forward
from bertjax.training.step import averages, batch_weights, objective_sums, several_sequences

SMALL = ModelConfig(
    vocab_size=900, hidden_size=64, num_hidden_layers=3, num_attention_heads=4, intermediate_size=160,
    max_position_embeddings=64,
)  # fmt: skip
LARGE = ModelConfig(hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
IN_CHUNKS = ExecutionConfig(logits_chunk=32)
OBJECTIVES = choose(("mlm", "nsp"))
GOLDEN = Path(__file__).parent / "parameters.golden.txt"


@functools.partial(jax.jit, static_argnames=("graphdef", "packed"))
def run(graphdef, params, batch, *, packed):
    bert = bind(graphdef, params)
    ids = batch["input_ids"]
    inputs = ids, batch["token_type_ids"], batch["sequence_ids"]
    hidden = bert.encoder(*inputs, packed=packed)
    everywhere = jnp.broadcast_to(jnp.arange(ids.shape[1]), ids.shape)
    return hidden, bert.mlm_logits(hidden, everywhere), bert.nsp_logits(hidden, batch["cls_positions"])


def our_outputs(config, params, batch, packed=False, execution=IN_CHUNKS):
    """Compute hidden states, MLM logits at every position, and NSP logits."""
    inputs = {key: batch[key] for key in ("input_ids", "token_type_ids", "sequence_ids", "cls_positions")}
    return jax.device_get(run(abstract_network(config, execution)[0], params, inputs, packed=packed))


@functools.partial(jax.jit, static_argnames="graphdef")
@functools.partial(jax.grad, argnums=1, has_aux=True)
def figures_and_gradients(graphdef, params, batch):
    network = bind(graphdef, params)
    sums = objective_sums(Forward({MODEL: network}, None, packed=several_sequences(batch)), batch, None, OBJECTIVES)
    figures = averages(sums, batch_weights(batch, OBJECTIVES), OBJECTIVES)
    return figures["loss"], figures


def our_gradients(config, params, batch):
    """Compute (metrics, gradients) as the train step does."""
    gradients, figures = figures_and_gradients(abstract_network(config, IN_CHUNKS)[0], params, batch)
    return figures, gradients


def their_gradients(network, batch):
    """Compute (losses, gradients by name), with the losses of google-research/bert's run_pretraining.py."""
    import torch

    out = their_outputs(network, batch)
    rows = torch.arange(len(batch["input_ids"]))[:, None]
    logits = out.prediction_logits[rows, torch.from_numpy(batch["mlm_positions"]).long()]
    labels, weights = torch.from_numpy(batch["mlm_labels"]).long(), torch.from_numpy(batch["mlm_weights"])
    nll = torch.nn.functional.cross_entropy(logits.flatten(0, 1), labels.flatten(), reduction="none")
    mlm = (nll * weights.flatten()).sum() / (weights.sum() + 1e-5)
    pairs = torch.from_numpy(batch["pair_labels"][:, 0]).long()
    nsp = torch.nn.functional.cross_entropy(out.seq_relationship_logits, pairs)
    (mlm + nsp).backward()
    gradients = {name: p.grad.numpy() for name, p in network.named_parameters()}
    return {"mlm_loss": mlm.item(), "nsp_loss": nsp.item(), "loss": (mlm + nsp).item()}, gradients


@pytest.fixture(scope="module")
def batch():
    return real_batch(small_wordpiece(), rows=24)


@pytest.fixture(scope="module")
def config():
    return replace(SMALL, vocab_size=small_wordpiece().vocab_size)


def assert_outputs_equal(config, network, params, batch):
    """Compare hidden states of every layer, and the logits of both heads, on the real tokens."""
    theirs = their_outputs(network, batch)
    hidden, mlm, nsp = our_outputs(config, params, batch)
    layers = jax.jit(lambda p, *inputs: bind(abstract_network(config)[0], p).encoder.hidden_states(*inputs))(
        params, batch["input_ids"], batch["token_type_ids"], batch["sequence_ids"]
    )
    real = batch["sequence_ids"] > 0
    assert len(layers) == len(theirs.hidden_states) == config.num_hidden_layers + 1
    for ours, reference in zip(np.asarray(layers), theirs.hidden_states, strict=True):
        assert relative(ours[real], reference.detach().numpy()[real]) < 2e-6
    assert relative(hidden[real], theirs.hidden_states[-1].detach().numpy()[real]) < 2e-6
    assert relative(mlm[real][:, : config.vocab_size], theirs.prediction_logits.detach().numpy()[real]) < 2e-6
    assert relative(nsp[:, 0], theirs.seq_relationship_logits.detach().numpy()) < 2e-6


@pytest.mark.parametrize("change", [{}, {"hidden_act": "gelu_tanh", "type_vocab_size": 5, "causal": True}], ids=str)
def test_layers_and_logits_match_transformers(config, batch, change):
    config = replace(config, **change)
    network = their_model(config)
    assert_outputs_equal(config, network, our_params(network, config), batch)


def test_sinusoidal_positions_equal_a_table(config, batch, params):
    config = replace(config, position_embedding="sinusoidal")
    params = params | {"encoder": params["encoder"] | {"embeddings": dict(params["encoder"]["embeddings"])}}
    del params["encoder"]["embeddings"]["position"]
    network, tensors = their_model(config), to_huggingface_tensors(params, config)
    load_tensors(network, tensors)
    assert_outputs_equal(config, network, params, batch)


def test_sinusoids_match_formula():
    config = replace(SMALL, hidden_size=6, num_attention_heads=2)
    actual = np.asarray(sinusoids(config)) / (np.sqrt(2) * config.initializer_range)
    for position in (0, 1, 17, 63):
        for pair in range(3):
            angle = position / 10_000 ** (2 * pair / 6)
            assert actual[position, 2 * pair] == pytest.approx(np.sin(angle), abs=1e-5)
            assert actual[position, 2 * pair + 1] == pytest.approx(np.cos(angle), abs=1e-5)
    whole = np.asarray(sinusoids(ModelConfig()))
    assert np.sqrt(np.square(whole).mean()) == pytest.approx(0.02, rel=1e-3)


def test_causal_token_sees_nothing_to_its_right(config, params, batch):
    config = replace(config, causal=True)
    cut = 9
    changed = batch | {"input_ids": batch["input_ids"].copy()}
    changed["input_ids"][:, cut:] = np.random.default_rng(0).integers(0, config.vocab_size, (24, 64 - cut))
    hidden, mlm, _ = our_outputs(config, params, batch)
    hidden_too, mlm_too, _ = our_outputs(config, params, changed)
    np.testing.assert_array_equal(hidden[:, :cut], hidden_too[:, :cut])
    np.testing.assert_array_equal(mlm[:, :cut], mlm_too[:, :cut])
    assert np.abs(hidden[:, cut] - hidden_too[:, cut]).max() > 1e-3


def test_gelu_forms_differ_by_more_than_the_tolerance(config, batch):
    params = our_params(their_model(config), config)
    _, erf, _ = our_outputs(config, params, batch)
    _, tanh, _ = our_outputs(replace(config, hidden_act="gelu_tanh"), params, batch)
    assert relative(tanh[..., : config.vocab_size], erf[..., : config.vocab_size]) > 1e-5


@pytest.mark.parametrize(
    "change", [{}, pytest.param({"hidden_act": "gelu_tanh", "causal": True}, marks=pytest.mark.long)], ids=str
)
def test_losses_and_gradients_match_torch(config, batch, change):
    config = replace(config, **change)
    network = their_model(config)
    figures, gradients = our_gradients(config, our_params(network, config), batch)
    losses, expected = their_gradients(network, batch)
    for name, value in losses.items():
        assert float(figures[name]) == pytest.approx(value, rel=1e-6)
    assert_same_gradients(to_huggingface_tensors(gradients, config), expected)


@pytest.mark.parametrize(
    ("config", "body", "whole"),
    [(ModelConfig(), 109_482_240, 110_106_428), (LARGE, 335_141_888, 336_226_108)],
    ids=["base", "large"],
)
def test_parameter_counts_match_paper(config, body, whole):
    count = lambda tree: sum(leaf.size for leaf in jax.tree.leaves(tree))  # noqa: E731
    shapes = abstract_network(replace(config, vocab_pad_multiple=1))[1]
    assert count(shapes["encoder"]) + count(shapes["pooler"]) == body
    assert count(shapes) == whole
    padded = abstract_network(config)[1]
    assert count(padded) == whole + (30_592 - 30_522) * (config.hidden_size + 1)


def describe_parameters() -> str:
    """List the parameters of BERT-Base and BERT-Large: name, shape, logical name of each dim."""
    sections = []
    for name, config in {"base": ModelConfig(), "large": LARGE}.items():
        _, shapes, axes = abstract_network(config)
        leaves = jax.tree.leaves(axes, is_leaf=is_names)
        lines = [
            f"  {parameter}  {' x '.join(f'{size} {dim}' for size, dim in zip(leaf.shape, names, strict=True))}"
            for (parameter, leaf), names in zip(named_arrays(shapes).items(), leaves, strict=True)
        ]
        sections.append("\n".join([name, *lines]))
    return "\n\n".join(sections) + "\n"


def test_parameter_names_shapes_and_axes_match_golden():
    actual = describe_parameters()
    if os.environ.get("BERTJAX_UPDATE_GOLDEN"):
        GOLDEN.write_text(actual)
    assert actual == GOLDEN.read_text(), "if this is intended, run it with BERTJAX_UPDATE_GOLDEN=1 and review the diff"


@functools.cache
def initial_params(config):
    params = jax.jit(lambda key: init_params(config, key))(jax.random.key(0))
    return named_arrays(jax.device_get(params))


def test_initial_weights_match_paper():
    params = initial_params(SMALL)
    for name, array in params.items():
        if name.endswith("/bias"):
            assert not array.any(), name
        elif name.endswith("/scale"):
            assert (array == 1).all(), name
        else:
            drawn = array[: SMALL.vocab_size] if name.endswith("/word") else array
            assert np.abs(drawn).max() <= 0.04 and not array[len(drawn) :].any(), name
            # Truncation at two standard deviations reduces the standard deviation to 0.8796 of its value.
            error = 4 * 0.0176 / np.sqrt(drawn.size)
            assert abs(drawn.mean()) < error and abs(drawn.std() - 0.02 * 0.87963) < error, name
    kernels = [
        a for name, array in params.items() if name.endswith("/kernel") for a in array.reshape(-1, array.shape[-1])
    ]
    firsts = [row[:2].tobytes() for row in kernels]
    assert len(set(firsts)) == len(firsts), "two kernels, or two layers of one, are equal"


def test_word_embeddings_are_the_output_matrix(config, params, batch):
    _, gradients = our_gradients(config, params, batch)
    unseen = np.setdiff1d(np.arange(config.vocab_size), batch["input_ids"])
    assert np.abs(gradients["encoder"]["embeddings"]["word"][unseen]).max(axis=1).min() > 0


def test_nsp_head_reads_the_pooled_vector(config, params, batch):
    closed = jax.tree.map(np.zeros_like, params["pooler"])
    _, mlm, nsp = our_outputs(config, params, batch)
    _, same_mlm, closed_nsp = our_outputs(config, params | {"pooler": closed}, batch)
    np.testing.assert_array_equal(mlm, same_mlm)
    assert len(np.unique(nsp, axis=0)) > 1
    np.testing.assert_array_equal(closed_nsp[:, 0], np.tile(params["nsp_head"]["dense"]["bias"], (24, 1)))


def test_initial_weights_do_not_depend_on_vocabulary_padding():
    wide, narrow = initial_params(SMALL), initial_params(replace(SMALL, vocab_pad_multiple=1))
    assert [len(table["encoder/embeddings/word"]) for table in (wide, narrow)] == [1024, 900]
    for name, array in narrow.items():
        np.testing.assert_array_equal(wide[name][: len(array)], array, name)


@pytest.fixture(scope="module")
def params(config):
    """Random parameters that are far from their initial values."""
    shapes = abstract_network(config)[1]
    draw = np.random.default_rng(3)
    filled = {name: draw.normal(0, 0.1, leaf.shape).astype(np.float32) for name, leaf in named_arrays(shapes).items()}
    return jax.tree.unflatten(jax.tree.structure(shapes), filled.values())


def test_content_of_padding_changes_nothing(config, params, batch):
    real = batch["sequence_ids"] > 0
    garbage = np.random.default_rng(0).integers(0, config.vocab_size, real.shape)
    filled = batch | {
        "input_ids": np.where(real, batch["input_ids"], garbage).astype(np.int32),
        "token_type_ids": np.where(real, batch["token_type_ids"], garbage % 2).astype(np.int32),
    }
    hidden, _, nsp = our_outputs(config, params, batch)
    same_hidden, _, same_nsp = our_outputs(config, params, filled)
    np.testing.assert_array_equal(hidden[real], same_hidden[real])
    np.testing.assert_array_equal(nsp, same_nsp)


def test_length_of_padding_changes_nothing(config, params, batch):
    used = int((batch["sequence_ids"] > 0).sum(axis=1).min())
    row = int((batch["sequence_ids"] > 0).sum(axis=1).argmin())
    keys = ("input_ids", "token_type_ids", "sequence_ids")
    short = {key: batch[key][[row], :used] for key in keys} | {"cls_positions": batch["cls_positions"][[row]]}
    hidden, mlm, nsp = our_outputs(config, params, batch)
    short_hidden, short_mlm, short_nsp = our_outputs(config, params, short)
    assert relative(hidden[row, :used], short_hidden[0]) < 2e-6
    assert relative(mlm[row, :used, : config.vocab_size], short_mlm[0, :, : config.vocab_size]) < 2e-6
    assert relative(nsp[row], short_nsp[0]) < 2e-6


def test_packed_rows_equal_single_rows(config, params):
    draw = np.random.default_rng(5)
    lengths = (20, 9, 25)
    starts = np.cumsum((0, *lengths))[:-1]
    singles = [draw.integers(0, config.vocab_size, n, dtype=np.int32) for n in lengths]
    types = [(np.arange(n) >= n // 2).astype(np.int32) for n in lengths]
    padded = lambda parts: np.pad(np.concatenate(parts), (0, 64 - sum(lengths)))[None].astype(np.int32)  # noqa: E731
    packed = {
        "input_ids": padded(singles),
        "token_type_ids": padded(types),
        "sequence_ids": padded([np.full(n, i + 1) for i, n in enumerate(lengths)]),
        "cls_positions": starts[None].astype(np.int32),
    }
    hidden, _, nsp = our_outputs(config, params, packed, packed=True)
    rows = lambda parts: np.stack([np.pad(part, (0, 64 - len(part))) for part in parts]).astype(np.int32)  # noqa: E731
    single = {
        "input_ids": rows(singles),
        "token_type_ids": rows(types),
        "sequence_ids": rows([np.ones(n) for n in lengths]),
        "cls_positions": np.zeros((len(lengths), 1), np.int32),
    }
    expected, _, expected_nsp = our_outputs(config, params, single)
    for number, (start, length) in enumerate(zip(starts, lengths, strict=True)):
        assert relative(hidden[0, start : start + length], expected[number, :length]) < 2e-6
        assert relative(nsp[0, number], expected_nsp[number, 0]) < 2e-6


def test_packed_rows_train_like_single_rows(config):
    """Compare losses and all gradients of an epoch, packed and not."""
    config = replace(config, max_position_embeddings=160, initializer_range=0.1)
    params = draw_params(config)
    plain = DataConfig(sequence_length=160, max_predictions=20, short_sequence_probability=0.7)
    alone = whole_epoch(small_wordpiece(), plain)
    packed = whole_epoch(small_wordpiece(), replace(plain, packing="pairs"))
    assert len(packed["input_ids"]) < 0.8 * len(alone["input_ids"])
    figures, gradients = our_gradients(config, params, alone)
    same_figures, same_gradients = our_gradients(config, params, packed)
    for name in ("loss", "mlm_loss", "mlm_accuracy", "nsp_loss", "nsp_accuracy"):
        assert float(same_figures[name]) == pytest.approx(float(figures[name]), rel=1e-5), name
    for name, gradient in named_arrays(gradients).items():
        assert relative(named_arrays(same_gradients)[name], gradient) < 1e-5 or "key/bias" in name, name


@settings(max_examples=25)
@given(st.lists(st.integers(1, 9), min_size=1, max_size=6), st.integers(0, 7))
def test_positions_restart_with_each_sequence(lengths, padding):
    ids = np.concatenate([np.full(n, i + 1) for i, n in enumerate(lengths)] + [np.zeros(padding)])
    ids = np.pad(ids, (0, 64 - len(ids))).astype(np.int32)  # one shape, to compile once
    positions = np.asarray(jax.jit(positions_in_sequence)(ids[None]))[0]
    np.testing.assert_array_equal(positions[: sum(lengths)], np.concatenate([np.arange(n) for n in lengths]))


def test_vocabulary_padding_has_lowest_logits(config, params, batch):
    _, mlm, _ = our_outputs(config, params, batch)
    assert mlm.shape[-1] % 128 == 0 and mlm.shape[-1] > config.vocab_size
    assert (mlm[..., config.vocab_size :] == np.finfo(np.float32).min).all()
    assert np.isfinite(mlm).all()


def test_bfloat16_outputs_are_near_float32(config, params, batch):
    hidden, mlm, _ = our_outputs(config, params, batch)
    half_hidden, half_mlm, _ = our_outputs(config, params, batch, execution=ExecutionConfig(dtype="bfloat16"))
    assert half_hidden.dtype == jnp.bfloat16 and half_mlm.dtype == np.float32
    assert relative(half_hidden.astype(np.float32), hidden) < 0.03
    assert relative(half_mlm[..., : config.vocab_size], mlm[..., : config.vocab_size]) < 0.03
