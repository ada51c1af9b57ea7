"""Window attention in blocks equals attention under the dense mask; its time and memory are linear in the length."""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_sides import (
    assert_same,
    heads_split_over,
    loops_and_gradients,
    outputs_and_gradients,
    rounding,
    some_ids,
)
from numpy_encoder import Reference
from test_options import MODERN, PLAIN, draw_params, outputs, rows
from their_model import relative

from bertjax.model.attention.backends import attend, visible, xla_attention
from bertjax.model.attention.windows import Keys, Scoring, attend_blocks, block_size, pays, window_attention
from bertjax.model.dropout import row_keys

KEYS = row_keys(3, jnp.int32(5), jnp.arange(2))


@pytest.mark.parametrize(
    ("length", "window", "packed", "causal", "rate"),
    [  # lengths: multiples of the block of 64, and others; windows: less than a block, a block, more than a block
        pytest.param(256, 64, False, False, 0.0, id="padded", marks=pytest.mark.long),
        pytest.param(300, 20, True, False, 0.0, id="packed, partial blocks"),
        pytest.param(300, 80, True, True, 0.0, id="packed, causal, larger blocks"),
        pytest.param(300, 64, True, False, 0.3, id="packed, dropout", marks=pytest.mark.long),
        pytest.param(70, 1, False, True, 0.3, id="padded, causal, dropout, nearest neighbour"),
        pytest.param(50, 80, True, False, 0.0, id="a window longer than the row"),
    ],
)
def test_windows_match_dense_mask(length: int, window: int, packed: bool, causal: bool, rate: float) -> None:
    ids = some_ids(length, packed)
    keys = KEYS if rate else None

    def dense(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return xla_attention(q, k, v, visible(ids, causal, window), keys, rate)

    def by_blocks(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return window_attention(q, k, v, ids, keys, rate, window=window, causal=causal)

    assert_same(outputs_and_gradients(by_blocks, ids), outputs_and_gradients(dense, ids))


@pytest.mark.parametrize("wrong", [19, pytest.param(21, marks=pytest.mark.long)])
def test_comparison_detects_a_window_off_by_one(wrong: int) -> None:
    ids = some_ids(150, packed=True)
    q, k, v = jax.random.normal(jax.random.key(0), (3, *ids.shape, 2, 8))
    dense = xla_attention(q, k, v, visible(ids, False, 20), None, 0.0)
    actual = jax.jit(partial(window_attention, dropout_keys=None, dropout_rate=0.0, window=wrong))(q, k, v, ids)
    with pytest.raises(AssertionError, match="out"):
        assert_same([actual], [dense])


def test_bfloat16_windows_are_as_exact_as_dense_mask() -> None:
    ids = some_ids(300, packed=True)
    exact = outputs_and_gradients(lambda q, k, v: xla_attention(q, k, v, visible(ids, False, 30), None, 0.0), ids)
    for attention in (
        lambda q, k, v: xla_attention(q, k, v, visible(ids, False, 30), None, 0.0),
        lambda q, k, v: window_attention(q, k, v, ids, None, 0.0, window=30),
    ):
        assert_same(outputs_and_gradients(attention, ids, jnp.bfloat16), exact, 2e-2)


def test_bfloat16_window_products_have_bfloat16_factors() -> None:
    """With a float32 factor the whole product would be computed in float32."""
    ids = some_ids(300, packed=True)

    def loss(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return window_attention(q, k, v, ids, None, 0.0, window=30).astype(jnp.float32).sum()

    q, k, v = jnp.ones((3, *ids.shape, 2, 8), jnp.bfloat16)
    lowered = jax.jit(jax.grad(loss, argnums=(0, 1, 2))).lower(q, k, v).as_text()
    factors = re.findall(r"dot_general.* : \(tensor<[\dx]*x(\w+)>, tensor<[\dx]*x(\w+)>\)", lowered)
    assert factors == 5 * [("bf16", "bf16")]


def test_bfloat16_key_parts_are_as_exact_as_all_keys() -> None:
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 2, 4, 64, 8)).astype(jnp.bfloat16)  # [B, H, N, C, K]
    places = jnp.arange(64, dtype=jnp.int32)
    parts = [
        Keys(k[..., n : n + 16, :], v[..., n : n + 16, :], jnp.array(True), places[n : n + 16]) for n in (0, 16, 32, 48)
    ]
    whole = Keys(k, v, jnp.array(True), places)

    def error(parts: list[Keys]) -> float:
        actual = attend_blocks(q, places[:, None], parts, Scoring(64)).astype(jnp.float32)
        wide = [part._replace(k=part.k.astype(jnp.float32), v=part.v.astype(jnp.float32)) for part in parts]
        return float(jnp.abs(actual - attend_blocks(q.astype(jnp.float32), places[:, None], wide, Scoring(64))).mean())

    assert error(parts) < 1.05 * error([whole])


@pytest.mark.parametrize(("length", "window", "expected"), [(192, 64, False), (193, 64, True)])
def test_blocks_pay_for_rows_longer_than_what_a_block_sees(length: int, window: int, expected: bool) -> None:
    assert pays(length, window) is expected
    assert block_size(window) == 64


@pytest.mark.parametrize("backend", ["xla", "cudnn"])
@pytest.mark.parametrize("length", [144, 192])
def test_window_layers_use_xla_beside_other_backends(backend: str, length: int) -> None:
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, length, 2, 8))
    settings = {"packed": True, "causal": False, "window": 40, "dropout_keys": None, "dropout_rate": 0.0}

    def attention(*qkv: jax.Array) -> jax.Array:
        return attend(backend, *qkv, some_ids(length, packed=True), **settings)

    dense = xla_attention(q, k, v, visible(some_ids(length, packed=True), False, 40), None, 0.0)
    assert_same([np.asarray(jax.jit(attention)(q, k, v))], [np.asarray(dense)], tolerance=rounding(length))
    assert (f"{length},{length}]" in str(jax.make_jaxpr(attention)(q, k, v))) == (not pays(length, 40))


@pytest.mark.parametrize("window", [0, 20])
def test_alibi_matches_formula(window: int) -> None:
    ids, slopes = some_ids(150, packed=True), (0.25, 0.0625)
    place = jnp.arange(150)
    bias = -jnp.asarray(slopes)[:, None, None] * jnp.abs(place[:, None] - place)

    def formula(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum("blhk,bmhk->bhlm", q, k) / jnp.sqrt(8.0) + bias
        probs = jax.nn.softmax(jnp.where(visible(ids, False, window)[:, None], scores, -jnp.inf), axis=-1)
        return jnp.einsum("bhlm,bmhk->blhk", probs, v)

    def ours(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        settings = {"packed": True, "causal": False, "window": window, "dropout_keys": None, "dropout_rate": 0.0}
        return attend("xla", q, k, v, ids, **settings, slopes=slopes)

    assert_same(outputs_and_gradients(ours, ids), outputs_and_gradients(formula, ids))


def test_window_heads_stay_on_their_devices() -> None:
    mesh = heads_split_over(2)
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 150, 2, 8))
    ids = some_ids(150, packed=True)

    def total(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return jnp.sum(jnp.sin(window_attention(q, k, v, ids, KEYS, 0.1, window=20)))

    gradient = jax.jit(jax.grad(total, argnums=(0, 1, 2)))
    split = jax.device_put((q, k, v), jax.NamedSharding(mesh, jax.P(None, None, "tensor")))
    with jax.set_mesh(mesh):
        program = gradient.lower(*split).compile()
    assert not re.findall(r"all-gather|all-to-all|collective-permute|all-reduce", program.as_text())
    for actual, alone in zip(program(*split), gradient(q, k, v), strict=True):
        np.testing.assert_allclose(actual, alone, atol=1e-6)


@pytest.mark.parametrize("slopes", [pytest.param((), marks=pytest.mark.long), (0.25, 0.0625)])
def test_windows_head_by_head_equal_all_at_once(slopes: tuple[float, ...]) -> None:
    q, k, v = jax.random.normal(jax.random.key(0), (3, 2, 150, 2, 8))
    ids = some_ids(150, packed=True)

    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return window_attention(q, k, v, ids, KEYS, 0.1, window=20, slopes=slopes)

    (loops, in_turn), (none, at_once) = (loops_and_gradients(devices, attention, q + k, q, k, v) for devices in (1, 2))
    assert loops > 0 and none == 0
    assert_same(in_turn, at_once, tolerance=rounding(150))


@pytest.mark.parametrize("positions", ["rope", pytest.param("alibi", marks=pytest.mark.long)])  # slopes: above
def test_windows_in_blocks_match_reference(positions: str) -> None:
    options = MODERN | {"position_embedding": positions, "window": 9, "num_hidden_layers": 4}
    config = replace(PLAIN, max_position_embeddings=150, **options)
    params = draw_params(config)
    batch, lengths = rows([[90, 40], [150]], size=150), ((90, 40), (150,))
    assert pays(150, config.window)
    states, last, _ = outputs(config, params, batch)
    reference = Reference(config, params)
    for row, number in ((row, number) for row, parts in enumerate(lengths) for number in range(len(parts))):
        place = batch["sequence_ids"][row] == number + 1
        expected, _ = reference(batch["input_ids"][row, place], batch["token_type_ids"][row, place])
        assert relative(states[:, row, place], expected) < 5e-6
        assert relative(last[row, place], expected[-1]) < 5e-6


def temporary_bytes(length: int, rate: float = 0.1) -> int:
    """Bytes of temporaries of the compiled gradient, with a window of 64."""
    x = jax.ShapeDtypeStruct((1, length, 2, 16), jnp.float32)
    ids, keys = jax.ShapeDtypeStruct((1, length), jnp.int32), jax.ShapeDtypeStruct((1,), jnp.uint32)

    def total(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array, keys: jax.Array) -> jax.Array:
        # The sine keeps the backward pass from starting before the forward pass ends.
        return jnp.sum(jnp.sin(window_attention(q, k, v, ids, keys, rate, window=64)))

    return (
        jax.jit(jax.grad(total, argnums=(0, 1, 2)))
        .lower(x, x, x, ids, keys)
        .compile()
        .memory_analysis()
        .temp_size_in_bytes
    )


@pytest.mark.long  # the suite tests the memory of other attention, in test_attention_by_queries.py
def test_windows_need_linear_memory() -> None:
    sizes = {length: temporary_bytes(length) for length in (1024, 2048, 4096, 8192, 32768)}
    for length, size in sizes.items():
        assert size <= 7 * 4 * length * (64 + 2 * 64), "seven times the scores of one head"
    # In shorter rows with dropout XLA keeps a tenth less per token, so the ratio holds from 4,096 tokens on.
    assert sizes[32768] <= 8.1 * sizes[4096]
    assert sizes[8192] < 4 * 8192 * 8192  # one square in float32
    assert temporary_bytes(8192, rate=0.0) <= 8.1 * temporary_bytes(1024, rate=0.0)
