"""DeBERTa's decoder, convolution and distances in packed rows, compared with NumPy."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from numpy_deberta import Deberta, table_row

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.families.networks import abstract_network
from bertjax.families.registry import FAMILIES
from bertjax.interpret.attention_maps import _inside
from bertjax.model.attention.relative import distance_row, rows_in_reach
from bertjax.model.network import Params, bind

LENGTH = 20
SIZES = {
    "vocab_size": 61, "hidden_size": 12, "num_hidden_layers": 3, "num_attention_heads": 3, "intermediate_size": 20,
    "max_position_embeddings": LENGTH, "relative_max": 9, "mlm_decoder": "enhanced",
}  # fmt: skip
MODELS = {
    "v1": replace(FAMILIES["deberta"].presets["base"], **SIZES),
    "v2": replace(FAMILIES["deberta-v2"].presets["xlarge"], **SIZES, relative_buckets=6),
    "two layers": replace(
        FAMILIES["deberta-v2"].presets["xlarge"], **SIZES | {"num_hidden_layers": 2}, relative_buckets=6
    ),
}


def draw_params(config: ModelConfig) -> Params:
    """Random parameters, biases included; scales are near 1, rows that pad the vocabulary 0."""
    draw = np.random.default_rng(0)
    _, shapes, axes = abstract_network(config)

    def fill(path: tuple, leaf: jax.ShapeDtypeStruct, names: tuple[str, ...]) -> np.ndarray:
        array = draw.normal(1.0 if path[-1].key == "scale" else 0.0, 0.3, leaf.shape).astype(np.float32)
        return array if "vocab" not in names else array * (np.arange(len(array)) < config.vocab_size).reshape(
            -1, *[1] * (array.ndim - 1)
        )  # fmt: skip

    return jax.tree_util.tree_map_with_path(fill, shapes, axes)


def packed_rows(lengths: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    """Token ids and sequence ids of rows of sequences with these lengths."""
    draw = np.random.default_rng(1)
    ids, numbers = np.zeros((2, len(lengths), LENGTH), np.int32)
    for row, parts in enumerate(lengths):
        start = 0
        for number, length in enumerate(parts, 1):
            ids[row, start : start + length] = draw.integers(3, SIZES["vocab_size"], length)
            numbers[row, start : start + length] = number
            start += length
    return ids, numbers


ROWS = [[LENGTH], [13, 7], [1, 6, 4]]  # whole, packed, packed with padding


@pytest.mark.parametrize("name", [pytest.param(name, marks=[pytest.mark.long] * (name != "v2")) for name in MODELS])
def test_decoder_and_convolution_match_formula(name: str) -> None:
    config = MODELS[name]
    params, (ids, numbers) = draw_params(config), packed_rows(ROWS)
    reference = Deberta(config, params)

    def logits(execution: ExecutionConfig) -> np.ndarray:
        @jax.jit
        def computed(params: Params) -> jax.Array:
            network = bind(abstract_network(config, execution)[0], params)
            everywhere = jnp.broadcast_to(jnp.arange(LENGTH), ids.shape)
            return network.mlm_logits(network.decode(ids, ids * 0, numbers), everywhere)

        return np.asarray(computed(params))[..., : config.vocab_size]

    actual = logits(ExecutionConfig())
    for row, parts in enumerate(ROWS):
        for number in range(1, len(parts) + 1):
            inside = numbers[row] == number
            expected = reference.mlm_logits(ids[row, inside])
            np.testing.assert_allclose(actual[row, inside], expected, atol=1e-5 * np.abs(expected).max())
    recomputed = logits(ExecutionConfig(remat="full", scan_unroll=2))
    np.testing.assert_allclose(recomputed[numbers > 0], actual[numbers > 0], atol=1e-5)


def test_attention_maps_equal_layer_probabilities() -> None:
    config = replace(MODELS["v2"], mlm_decoder="plain")
    params, (ids, numbers) = draw_params(config), packed_rows(ROWS)
    attention, hidden = _inside(abstract_network(config)[0], params, ids, ids * 0, numbers)
    reference = Deberta(config, params)
    part = reference.layer(1)["attention"]
    x = np.asarray(hidden, np.float64)[1, 1, :13]
    kernel = part["value"]["kernel"]
    values = (x @ kernel.reshape(len(kernel), -1)).reshape(13, *kernel.shape[1:]) + part["value"]["bias"]
    mixed = np.einsum("hij,jhk->ihk", np.asarray(attention)[1, 1, :, :13, :13], values).reshape(13, -1)
    out = part["output"]["kernel"]
    expected = reference.attended(part, x, x)
    np.testing.assert_allclose(mixed @ out.reshape(-1, out.shape[-1]) + part["output"]["bias"], expected, atol=1e-5)
    np.testing.assert_allclose(np.asarray(attention)[1, 1].sum(-1), 1, atol=1e-5)


def test_distances_have_the_published_buckets() -> None:
    """The values of microsoft/DeBERTa's `make_log_bucket_position` with 256 buckets and 512 positions."""
    config = FAMILIES["deberta-v3"].presets["base"]
    known = {0: 0, 1: 1, 128: 128, 129: 129, 200: 169, 256: 192, 300: 207, 400: 233, 511: 255}
    distances = np.array([*known, *(-d for d in known)])
    expected = np.array([*known.values(), *(-bucket for bucket in known.values())])
    np.testing.assert_array_equal(distance_row(config, distances), expected + 256)
    for model in (*MODELS.values(), config, FAMILIES["deberta"].presets["base"]):
        apart = np.arange(-600, 601)
        np.testing.assert_array_equal(distance_row(model, apart), [table_row(model, int(d)) for d in apart])
    assert rows_in_reach(config, 128) == 255 and rows_in_reach(config, 512) == 511
    assert rows_in_reach(FAMILIES["deberta"].presets["base"], 512) == 1023
    assert rows_in_reach(FAMILIES["bert"].presets["base"], 512) == 0
