"""Architecture options: equality with a NumPy reference, parameter shapes, and initial values."""

from __future__ import annotations

import functools
import re
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_encoder import Reference
from their_model import relative

from bertjax.config import DEFAULT_EXECUTION, ExecutionConfig, ModelConfig, OptimizerConfig
from bertjax.families.bert import BERT
from bertjax.families.networks import abstract_network, init_params
from bertjax.families.registry import FAMILIES
from bertjax.model.attention.positions import alibi_slopes, rotated
from bertjax.model.attention.self_attention import layer_windows
from bertjax.model.dropout import HEAD, dropout, row_keys
from bertjax.model.network import Params, bind
from bertjax.model.parameters import named_arrays
from bertjax.model.stack import layers_per_group
from bertjax.parallel.sharding import is_names
from bertjax.training.optimizer import make_optimizer

LENGTH = 24
# Relative tolerances for eight float32 layers compared with float64. The largest errors measured (SSE4.2, AVX, AVX2 and
# AVX-512 round differently) are 6.7e-6 in outputs and 1e-5 in gradients; a wrong option exceeds 1e-2.
ROUNDING, GRADIENT_ROUNDING = 3e-5, 4e-5
PLAIN = ModelConfig(
    vocab_size=70, hidden_size=12, num_hidden_layers=8, num_attention_heads=3, intermediate_size=20,
    max_position_embeddings=LENGTH,
)  # fmt: skip
MODERN = {
    "position_embedding": "rope", "rope_theta": 50.0, "rope_theta_local": 10.0, "window": 3, "global_every": 3,
    "norm_bias": False, "norm_place": "pre", "first_norm": False, "attention_bias": "none", "mlp_bias": "none",
    "mlp": "glu", "type_vocab_size": 0,
}  # fmt: skip
OPTIONS: dict[str, dict[str, Any]] = {
    "none": {},
    "narrow tables": {"embedding_size": 8},
    "narrow sinusoids": {"embedding_size": 8, "position_embedding": "sinusoidal"},
    "no token types": {"type_vocab_size": 0},
    "one token type": {"type_vocab_size": 1},
    "task types": {"task_type_vocab_size": 3},
    "one group": {"layer_groups": 1},
    "four groups": {"layer_groups": 4},
    "two groups": {"layer_groups": 2},
    "relu": {"hidden_act": "relu"},
    "silu": {"hidden_act": "silu"},
    "windows": {"window": 3, "global_every": 3},  # two periods and two more layers
    "windows, causal": {"window": 3, "global_every": 3, "causal": True},
    "windows everywhere": {"window": 3, "global_every": 0},
    "a period longer than the stack": {"window": 3, "global_every": 9},
    "norms in front": {"norm_place": "pre"},
    "rotated": {"position_embedding": "rope", "rope_theta": 50.0},
    # The options of ModernBERT: after the first layer two periods and one more layer.
    "modern": MODERN,
    "neo": {
        "position_embedding": "rope",
        "rope_interleaved": True,
        "embedding_norm": "none",
        "norm": "rms",
        "norm_bias": False,
        "norm_place": "pre",
        "attention_bias": "none",
        "mlp_bias": "none",
        "mlp": "glu",
        "hidden_act": "silu",
        "mlm_tied": False,
        "type_vocab_size": 0,
    },
    "mosaic": {"position_embedding": "alibi", "mlp": "glu", "mlp_bias": "output"},
    "all": {"embedding_size": 8, "type_vocab_size": 1, "layer_groups": 3, "window": 3, "global_every": 3},
}
# The suite tests "all", which combines several options. test_network.py compares BERT's own network, its activations
# and causal attention with transformers; test_window_attention.py compares ModernBERT's options with the reference.
each_option = pytest.mark.parametrize(
    "option", [pytest.param(name, marks=[pytest.mark.long] * (name != "all")) for name in OPTIONS]
)


def with_options(option: str) -> ModelConfig:
    return replace(PLAIN, **OPTIONS[option])


def draw_params(config: ModelConfig) -> Params:
    """Random parameters, biases included; scales are near 1."""
    draw = np.random.default_rng(0)

    def fill(path: tuple, leaf: jax.ShapeDtypeStruct) -> np.ndarray:
        return draw.normal(1.0 if path[-1].key == "scale" else 0.0, 0.3, leaf.shape).astype(np.float32)

    return jax.tree_util.tree_map_with_path(fill, abstract_network(config)[1])


def rows(lengths: list[list[int]], size: int = LENGTH) -> dict[str, np.ndarray]:
    """A batch of rows of sequences with these lengths; each sequence has two segments."""
    draw = np.random.default_rng(1)
    ids, types, sequences = (np.zeros((len(lengths), size), np.int32) for _ in range(3))
    for row, parts in enumerate(lengths):
        start = 0
        for number, length in enumerate(parts):
            ids[row, start : start + length] = draw.integers(0, PLAIN.vocab_size, length)
            types[row, start + length // 2 : start + length] = 1
            sequences[row, start : start + length] = number + 1
            start += length
    return {"input_ids": ids, "token_type_ids": types, "sequence_ids": sequences}


@functools.partial(jax.jit, static_argnames=("config", "packed", "execution"))
def outputs(
    config: ModelConfig,
    params: Params,
    batch: dict[str, np.ndarray],
    packed: bool = True,
    keys: jax.Array | None = None,
    execution: ExecutionConfig = DEFAULT_EXECUTION,
) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Compute the hidden states of all layers, those of the last layer, and MLM logits at every position."""
    model = bind(abstract_network(config, execution)[0], params)
    inputs = batch["input_ids"], batch["token_type_ids"], batch["sequence_ids"]
    last = model.encode(*inputs, keys, packed=packed)
    everywhere = jnp.broadcast_to(jnp.arange(batch["input_ids"].shape[1]), batch["input_ids"].shape)
    logits = model.mlm_logits(last, everywhere)[..., : config.vocab_size]
    return model.encoder.hidden_states(*inputs, packed=packed), last, logits


@each_option
def test_options_match_reference_packed_and_unpacked(option: str) -> None:
    config = with_options(option)
    params = draw_params(config)
    reference = Reference(config, params)
    for lengths, packed in (([[LENGTH], [17], [1]], False), ([[9, 2, 13], [1, 20]], True)):
        batch = rows(lengths)
        states, last, logits = outputs(config, params, batch, packed)
        assert states.shape == (9, len(lengths), LENGTH, 12)
        for row, parts in enumerate(lengths):
            for number in range(len(parts)):
                place = batch["sequence_ids"][row] == number + 1
                expected, expected_logits = reference(
                    batch["input_ids"][row, place], batch["token_type_ids"][row, place]
                )
                assert relative(states[:, row, place], expected) < ROUNDING
                assert relative(last[row, place], expected[-1]) < ROUNDING
                assert relative(logits[row, place], expected_logits) < ROUNDING


def loss_and_gradient(config: ModelConfig, params: Params, batch: dict[str, np.ndarray]) -> tuple[jax.Array, Params]:
    @jax.jit
    @jax.value_and_grad
    def loss(params: Params) -> jax.Array:
        model = bind(abstract_network(config)[0], params)
        last = model.encode(batch["input_ids"], batch["token_type_ids"], batch["sequence_ids"])
        positions = jnp.tile(jnp.arange(8), (len(last), 1))
        return model.mlm_sums(last, positions, batch["input_ids"][:, :8], jnp.ones(positions.shape)).loss

    return loss(params)


def reference_loss(reference: Reference, batch: dict[str, np.ndarray]) -> float:
    """Compute the loss of `loss_and_gradient` for rows whose first sequence has at least eight tokens."""
    total = 0.0
    for ids, types, sequences in zip(
        *(batch[key] for key in ("input_ids", "token_type_ids", "sequence_ids")), strict=True
    ):
        logits = reference(ids[sequences == 1], types[sequences == 1])[1][:8]
        total += np.logaddexp.reduce(logits, axis=1).sum() - logits[np.arange(8), ids[:8]].sum()
    return float(total)


# Other options have classes in transformers; test_window_attention.py tests gradients with ALiBi.
@pytest.mark.parametrize("option", ["neo", pytest.param("mosaic", marks=pytest.mark.long)])
def test_gradients_match_finite_differences(option: str) -> None:
    config, batch = with_options(option), rows([[LENGTH], [10, 9]])
    params = draw_params(config)
    loss, gradient = loss_and_gradient(config, params, batch)
    reference = Reference(config, params)
    assert float(loss) == pytest.approx(reference_loss(reference, batch), rel=1e-6)
    gradients = {name: np.asarray(x, np.float64) for name, x in named_arrays(gradient).items()}
    whole = np.sqrt(sum(np.square(x).sum() for x in gradients.values()))
    draw = np.random.default_rng(2)
    for name, ours in gradients.items():
        value, signs, losses = reference.params[name], draw.choice([-1.0, 1.0], ours.shape), []
        for step in (1e-5, -1e-5):
            reference.params[name] = value + step * signs
            losses.append(reference_loss(reference, batch))
        reference.params[name] = value
        off = abs((ours * signs).sum() - (losses[0] - losses[1]) / 2e-5)
        assert off <= GRADIENT_ROUNDING * np.linalg.norm(ours) or off <= 1e-6 * whole, name


@pytest.mark.parametrize(
    ("remat", "unroll"),
    [("none", 2), ("dots", 1), ("full", 99)],
)
@pytest.mark.long  # the suite tests one group of layers, in tests/training/test_equivalence.py
def test_outputs_do_not_depend_on_execution(remat: str, unroll: int) -> None:
    config = with_options("all")
    params, batch = draw_params(config), rows([[LENGTH], [10, 9]])
    keys = row_keys(0, jnp.int32(5), jnp.arange(2))
    execution = ExecutionConfig(remat=remat, scan_unroll=unroll)
    actual, plain = (outputs(config, params, batch, keys=keys, execution=e)[1] for e in (execution, DEFAULT_EXECUTION))
    assert relative(actual, np.asarray(plain)) < 1e-6


def test_gradients_of_a_period_are_concatenated() -> None:
    """Gradients of strided slices would be padded with zeros in between, which takes a TPU ten times as long."""
    config = with_options("windows")
    params, batch = draw_params(config), rows([[LENGTH]])
    program = str(jax.make_jaxpr(jax.grad(lambda params: jnp.sum(outputs(config, params, batch)[1])))(params))
    padding = re.findall(r"padding_config=(.*)", re.sub(r"np\.int64\((\d+)\)", r"\1", program))
    assert "scan[" in program and padding and not re.search(r", [1-9]\d*\)", " ".join(padding))


@pytest.mark.parametrize(("unroll", "scans"), [(1, True), (2, False)])
def test_fully_unrolled_layers_are_not_stacked(unroll: int, scans: bool) -> None:
    config = replace(PLAIN, num_hidden_layers=2)
    params, batch = draw_params(config), rows([[LENGTH]])

    def loss(params: dict) -> jax.Array:
        return jnp.sum(outputs(config, params, batch, execution=ExecutionConfig(scan_unroll=unroll))[1])

    assert ("scan[" in str(jax.make_jaxpr(jax.grad(loss))(params))) == scans


@pytest.mark.parametrize(
    ("depth", "window", "every", "windows"),
    [
        (4, 0, 3, (0, 0, 0, 0)),
        (4, 5, 1, (0, 0, 0, 0)),
        (4, 5, 0, (5, 5, 5, 5)),
        (7, 5, 3, (0, 5, 5, 0, 5, 5, 0)),
        (2, 5, 3, (0, 5)),
    ],
)
def test_layer_windows_follow_global_every(depth: int, window: int, every: int, windows: tuple[int, ...]) -> None:
    config = replace(PLAIN, num_hidden_layers=depth, window=window, global_every=every)
    assert layer_windows(config) == windows


def test_logical_axes_of_groups_and_projection() -> None:
    _, shapes, axes = abstract_network(with_options("all"))
    names = dict(zip(named_arrays(shapes), jax.tree.leaves(axes, is_leaf=is_names), strict=True))
    sizes = {name: leaf.shape for name, leaf in named_arrays(shapes).items()}
    assert names["encoder/embeddings/projection/kernel"] == ("embed", "hidden")
    assert sizes["encoder/embeddings/projection/kernel"] == (8, 12)
    assert names["encoder/embeddings/projection/bias"] == ("hidden",)
    assert sizes["encoder/embeddings/word"] == (128, 8) and sizes["encoder/embeddings/norm/scale"] == (8,)
    assert names["mlm_head/transform/kernel"] == ("embed", "hidden")
    assert sizes["mlm_head/transform/kernel"] == (12, 8) and sizes["mlm_head/norm/bias"] == (8,)
    layers = {name for name in names if name.startswith("encoder/layers/")}
    assert len(layers) == 16 and all(names[n][0] == "layers" and sizes[n][0] == 3 for n in layers)
    assert all(len(names[name]) == len(sizes[name]) for name in names)


def test_layer_of_another_kind_is_a_separate_module() -> None:
    _, shapes, axes = abstract_network(with_options("modern"))
    names = dict(zip(named_arrays(shapes), jax.tree.leaves(axes, is_leaf=is_names), strict=True))
    sizes = {name: leaf.shape for name, leaf in named_arrays(shapes).items()}
    first = {name.removeprefix("encoder/first_layer/") for name in sizes if name.startswith("encoder/first_layer/")}
    others = {name.removeprefix("encoder/layers/") for name in sizes if name.startswith("encoder/layers/")}
    assert others - first == {"attention_norm/scale"} and first < others
    assert all(sizes[f"encoder/layers/{name}"][0] == 7 for name in others)
    assert not any(name.endswith("bias") for name in sizes if name.startswith("encoder/"))
    # Both halves of a gated MLP are split alike.
    assert names["encoder/first_layer/mlp/intermediate/kernel"] == ("embed", "halves", "mlp")
    assert sizes["encoder/layers/mlp/intermediate/kernel"] == (7, 12, 2, 20)


@pytest.mark.parametrize(
    ("initializer", "spreads"),
    [
        ("truncated", {"query": 1.0, "output": 1.0, "word": 1.0, "classes": 1.0}),
        # Output: 1 / sqrt(2 * 8 layers). Classes: 1 / sqrt(64) instead of 0.02.
        ("scaled", {"query": 1.0, "output": 0.25, "word": 1.0, "classes": 6.25}),
    ],
)
def test_initial_values_are_truncated_normal(initializer: str, spreads: dict[str, float]) -> None:
    actual = initial_values(initializer)
    for name, spread in spreads.items():
        assert actual[name].std() == pytest.approx(0.88 * 0.02 * spread, rel=0.05), name
        assert np.abs(actual[name]).max() == pytest.approx(2 * 0.02 * spread, rel=0.05), name


def test_initial_values_are_uniform() -> None:
    for name, x in initial_values("uniform").items():
        assert np.abs(x).max() == pytest.approx(0.02, rel=0.02), name
        assert x.std() == pytest.approx(0.02 / 3**0.5, rel=0.05), name


def initial_values(initializer: str) -> dict[str, np.ndarray]:
    """Initial kernels of a classifier by their role."""
    sizes = {"hidden_size": 64, "intermediate_size": 64, "vocab_size": 500, "num_attention_heads": 4}
    config = replace(PLAIN, head="tokens", num_labels=64, **sizes)
    params = jax.jit(lambda key: init_params(replace(config, initializer=initializer), key))(jax.random.key(0))
    layers, embeddings = params["encoder"]["layers"], params["encoder"]["embeddings"]
    return {
        "query": np.asarray(layers["attention"]["query"]["kernel"]),
        "output": np.asarray(layers["mlp"]["output"]["kernel"]),
        "word": np.asarray(embeddings["word"])[:500],
        "classes": np.asarray(params["head"]["dense"]["kernel"]),
    }


def test_alibi_slopes() -> None:
    assert alibi_slopes(4) == (2**-2, 2**-4, 2**-6, 2**-8)
    assert alibi_slopes(3) == (2**-4, 2**-8, 2**-2)
    sixteen_heads = [2 ** (-number / 2) for number in range(1, 17)]
    assert alibi_slopes(12) == pytest.approx([2.0**-number for number in range(1, 9)] + sixteen_heads[0:8:2])


def test_rotation_of_bfloat16_uses_float32_angles() -> None:
    config = replace(PLAIN, position_embedding="rope")
    q = jnp.ones((1, 3000, 1, 4), jnp.bfloat16)
    turned, _ = rotated(config, q, q, jnp.ones((1, 3000), jnp.int32), False, 0)
    angles = np.arange(3000.0)[:, None] * np.array([1, 0.01])
    expected = np.concatenate([np.cos(angles) - np.sin(angles), np.cos(angles) + np.sin(angles)], -1)
    assert turned.dtype == jnp.bfloat16
    np.testing.assert_allclose(np.asarray(turned, np.float32)[0, :, 0], expected, atol=1e-2)


def test_lamb_has_one_trust_ratio_per_group() -> None:
    config = replace(PLAIN, layer_groups=2)
    lamb = make_optimizer(OptimizerConfig(name="lamb", weight_decay=0.0))
    output, draw = draw_params(config)["encoder"]["layers"]["mlp"]["output"], np.random.default_rng(5)
    params = {"layers": output}
    gradients = jax.tree.map(lambda x: draw.normal(size=x.shape).astype(np.float32), params)
    updates, _ = lamb.update(gradients, lamb.init(params), params)
    kernel, update = (tree["layers"]["kernel"] for tree in (params, updates))
    for group in range(2):
        assert np.linalg.norm(update[group]) == pytest.approx(np.linalg.norm(kernel[group]), rel=1e-5)
    bias = updates["layers"]["bias"]
    np.testing.assert_allclose(np.abs(bias), 1, rtol=1e-4, err_msg="the first update of Adam, without a ratio")


@pytest.fixture
def mlm_sop_family(monkeypatch: pytest.MonkeyPatch) -> str:
    """The name of a family that pretrains with MLM and sentence order."""
    family = replace(BERT, name="mlm_sop", presets={}, heads=("pooler", "mlm_head", "sop_head"))
    monkeypatch.setitem(FAMILIES, family.name, family)
    return family.name


def test_sop_head_is_dense_after_dropout(mlm_sop_family: str) -> None:
    config = replace(PLAIN, family=mlm_sop_family, hidden_dropout_prob=0.4)
    params = draw_params(config)
    assert set(params) == {"encoder", "pooler", "mlm_head", "sop_head"}
    hidden = np.random.default_rng(0).normal(size=(2, LENGTH, 12)).astype(np.float32)
    places, keys = jnp.asarray([[0, 9], [0, 3]]), row_keys(0, jnp.int32(1), jnp.arange(2))
    model = bind(abstract_network(config)[0], params)
    vectors = np.stack([hidden[row, place] for row, place in enumerate(np.asarray(places))])
    pooled = np.tanh(vectors @ params["pooler"]["dense"]["kernel"] + params["pooler"]["dense"]["bias"])
    for key, inputs in ((None, pooled), (keys, np.asarray(dropout(jnp.asarray(pooled), keys, HEAD, 0.4)))):
        expected = inputs @ params["sop_head"]["dense"]["kernel"] + params["sop_head"]["dense"]["bias"]
        np.testing.assert_allclose(model.sop_logits(hidden, places, key), expected, rtol=1e-5, atol=1e-6)
    assert (inputs != pooled).any(), "nothing was dropped"


def test_heads_without_their_pooler_are_refused(monkeypatch: pytest.MonkeyPatch, mlm_sop_family: str) -> None:
    for family, head in (("bert", "nsp_head"), (mlm_sop_family, "sop_head")):
        with pytest.raises(ValueError, match=rf"model.pooler='none' with model.family='{family}': its {head} reads"):
            abstract_network(replace(PLAIN, pooler="none", family=family))
    monkeypatch.setitem(FAMILIES, "plain", replace(BERT, name="plain", presets={}, heads=("pooler", "mlm_head")))
    for pooler, heads in (("none", {"mlm_head"}), ("tanh", {"mlm_head", "pooler"})):
        shapes = abstract_network(replace(PLAIN, pooler=pooler, family="plain"))[1]
        assert set(shapes) == {"encoder", *heads}


@pytest.mark.parametrize(("depth", "groups"), [(12, 1), (12, 4), (7, 3), (6, 4), (18, 14), (27, 21), (3, 3)])
def test_layers_per_group_follows_transformers(depth, groups):
    """transformers divides in floating point, which puts layer 9 of 18 in group 6 of 14, not 7."""
    sizes = layers_per_group(replace(PLAIN, num_hidden_layers=depth, layer_groups=groups))
    theirs = [int(number / (depth / groups)) for number in range(depth)]
    assert np.repeat(np.arange(groups), sizes).tolist() == theirs
