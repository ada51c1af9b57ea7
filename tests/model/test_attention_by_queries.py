"""Attention by blocks of queries, with and without relative terms, equals the formula over whole rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_sides import (
    HEAD_DIM,
    HEADS,
    ROWS,
    assert_same,
    loops_and_gradients,
    outputs_and_gradients,
    rounding,
    some_ids,
)

from bertjax.model.attention import backends
from bertjax.model.attention.backends import Backend, attend, visible, xla_attention
from bertjax.model.attention.positions import Relative, attention_by_queries
from bertjax.model.dropout import ATTENTION_PROBS, dropout, row_keys

SPAN = 90  # distances from -90 to 89; larger ones share the outermost rows
SCALE = (3 * HEAD_DIM) ** -0.5


def table_row(distance: jax.Array) -> jax.Array:
    return jnp.clip(distance + SPAN, 0, 2 * SPAN - 1)


def draw_inputs(length: int) -> list[jax.Array]:
    """q, k, v and the tables of relative keys and queries."""
    keys = jax.random.split(jax.random.key(0), 2)
    tables = jax.random.normal(keys[1], (2, HEADS, 2 * SPAN, HEAD_DIM))
    return [*jax.random.normal(keys[0], (3, ROWS, length, HEADS, HEAD_DIM)), *tables]


def ours(ids: jax.Array, dropout_keys: jax.Array | None, rate: float):
    def attention(q, k, v, relative_k, relative_q) -> jax.Array:
        relative = Relative(relative_k, relative_q, table_row)
        return attention_by_queries(q, k, v, ids, dropout_keys, rate, scale=SCALE, relative=relative)

    return attention


@pytest.mark.parametrize(("length", "rate"), [pytest.param(128, 0.0, marks=pytest.mark.long), (200, 0.2)])
def test_relative_terms_match_formula(length: int, rate: float) -> None:
    ids = some_ids(length, packed=True)
    keys = row_keys(3, jnp.int32(5), jnp.arange(ROWS)) if rate else None
    place = jnp.arange(length)
    rows = table_row(place[:, None] - place)
    read = jax.random.normal(jax.random.key(1), (ROWS, length, HEADS, HEAD_DIM))

    def formula(q, k, v, relative_k, relative_q) -> jax.Array:
        to_content = jnp.einsum("BLHK,BMHK->BHLM", q, k)
        to_position = jnp.einsum("BLHK,HLMK->BHLM", q, relative_k[:, rows])
        from_position = jnp.einsum("BMHK,HLMK->BHLM", k, relative_q[:, rows])
        scores = (to_content + to_position + from_position) * SCALE
        probs = jax.nn.softmax(jnp.where(visible(ids, causal=False)[:, None], scores, -jnp.inf), axis=-1)
        return jnp.einsum("BHLM,BMHK->BLHK", dropout(probs, keys, ATTENTION_PROBS, rate), v)

    def values_and_gradients(attention) -> list[np.ndarray]:
        def total(*inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
            out = jnp.where((ids > 0)[:, :, None, None], attention(*inputs), 0)
            return jnp.sum(out * read), out

        gradients, out = jax.jit(jax.grad(total, argnums=range(5), has_aux=True))(*draw_inputs(length))
        return [np.asarray(x, np.float64) for x in (out, *gradients)]

    assert_same(values_and_gradients(ours(ids, keys, rate)), values_and_gradients(formula))


def test_relative_terms_head_by_head_equal_all_at_once() -> None:
    ids, inputs = some_ids(200, packed=True), draw_inputs(200)
    attention = ours(ids, row_keys(3, jnp.int32(5), jnp.arange(ROWS)), 0.1)
    (loops, in_turn), (fewer, at_once) = (
        loops_and_gradients(devices, attention, inputs[0], *inputs) for devices in (1, 2)
    )
    assert loops > fewer
    assert_same(in_turn, at_once, tolerance=rounding(200))


@pytest.mark.parametrize(
    ("backend", "length", "window", "causal", "slopes", "rate"),
    [
        pytest.param("xla", 200, 0, False, (0.5, 0.25), 0.2, id="slopes, dropout", marks=pytest.mark.long),
        pytest.param("xla", 256, 0, True, (), 0.0, id="causal"),
        pytest.param("xla", 200, 70, False, (0.5, 0.25), 0.2, id="a window too wide for blocks, slopes, dropout"),
        pytest.param("cudnn", 256, 100, True, (), 0.0, id="a window that the backend lacks", marks=pytest.mark.long),
    ],
)
def test_long_rows_match_formula(
    backend: Backend,
    length: int,
    window: int,
    causal: bool,
    slopes: tuple[float, ...],
    rate: float,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    ids = some_ids(length, packed=not window)
    keys = row_keys(3, jnp.int32(5), jnp.arange(ROWS)) if rate else None

    def whole(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return xla_attention(q, k, v, visible(ids, causal, window), keys, rate, slopes)

    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        options = {"window": window, "slopes": slopes, "dropout_keys": keys, "dropout_rate": rate}
        return attend(backend, q, k, v, ids, packed=True, causal=causal, **options)

    monkeypatch.setattr(backends, "WHOLE_ROWS", 128)
    q = jax.ShapeDtypeStruct((*ids.shape, HEADS, HEAD_DIM), jnp.float32)
    assert f"{length},{length}]" not in str(jax.make_jaxpr(attention)(q, q, q))
    assert_same(outputs_and_gradients(attention, ids), outputs_and_gradients(whole, ids))


@pytest.mark.parametrize("windowed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_long_rows_without_blocks_need_linear_memory(windowed: bool) -> None:
    def temporary_bytes(length: int) -> int:
        q = jax.ShapeDtypeStruct((1, length, HEADS, HEAD_DIM), jnp.float32)
        ids = jax.ShapeDtypeStruct((1, length), jnp.int32)
        window = -(-length // 3) if windowed else 0  # too wide for blocks to pay

        def total(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array) -> jax.Array:
            options = {"packed": False, "causal": False, "dropout_keys": None, "dropout_rate": 0.0}
            return jnp.sum(jnp.sin(attend("xla", q, k, v, ids, window=window, **options)))

        compiled = jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(q, q, q, ids).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary_bytes(8192) <= 4.1 * temporary_bytes(2048)


@pytest.mark.parametrize(("length", "window"), [(64, 0), (64, 8), (256, 8), (1024, 0), (1152, 0)])
def test_alibi_backward_pass_keeps_no_scores(length: int, window: int) -> None:
    options = {"packed": True, "causal": False, "window": window, "dropout_keys": None, "dropout_rate": 0.0}

    def largest_residual(slopes: tuple[float, ...]) -> int:
        def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
            return attend("xla", q, k, v, jnp.ones((ROWS, length), jnp.int32), slopes=slopes, **options)

        q = jax.ShapeDtypeStruct((ROWS, length, HEADS, HEAD_DIM), jnp.float32)
        _, backward = jax.eval_shape(lambda *qkv: jax.vjp(attention, *qkv), q, q, q)
        return max(x.size for x in jax.tree.leaves(backward))

    # Either q, k or v, or the mask of whole rows, which all heads share.
    assert largest_residual((0.5, 0.25)) <= max(ROWS * length * HEADS * HEAD_DIM, ROWS * length * length)
    if length == 64:
        assert largest_residual(()) == ROWS * HEADS * length * length, "without slopes, scores of short rows are kept"


@pytest.mark.long  # the suite tests rows without relative terms, which use the same blocks
def test_relative_terms_need_linear_memory() -> None:
    def temporary_bytes(length: int) -> int:
        ids = jnp.ones((1, length), jnp.int32)
        inputs = [
            jax.ShapeDtypeStruct((1, *x.shape[1:]) if x.ndim == 4 else x.shape, x.dtype) for x in draw_inputs(length)
        ]

        def total(*inputs: jax.Array) -> jax.Array:
            return jnp.sum(jnp.sin(ours(ids, None, 0.0)(*inputs)))

        compiled = jax.jit(jax.grad(total, argnums=range(5))).lower(*inputs).compile()
        return compiled.memory_analysis().temp_size_in_bytes

    assert temporary_bytes(4096) <= 4.1 * temporary_bytes(1024)
