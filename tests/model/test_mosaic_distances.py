"""The kernel for DeBERTa's attention on TPUs, interpreted on a CPU, equals the XLA reference."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_sides import ROWS, assert_same, heads_split_over, some_ids
from jax.experimental.pallas import tpu as pltpu

from bertjax.config import ModelConfig
from bertjax.model.attention import mosaic, mosaic_blocks, mosaic_distances
from bertjax.model.attention.relative import DistanceProjections, disentangled_attention, distance_rows

KEYS = jnp.asarray([3, 0xFEDCBA98], jnp.uint32)
MODEL = ModelConfig(position_embedding="relative", relative_max=90)
BUCKETS = replace(MODEL, relative_max=300, relative_buckets=64)


def attention(
    backend: str, config: ModelConfig, ids: jax.Array, keys: jax.Array | None = KEYS
) -> Callable[..., jax.Array]:
    def compute(q, k, v, relative_keys, relative_queries) -> jax.Array:
        distances = DistanceProjections(relative_queries, relative_keys)
        return disentangled_attention(config, q, k, v, distances, ids, keys, backend)

    return compute


def draw_inputs(config: ModelConfig, length: int, heads: int, head_dim: int) -> list[jax.Array]:
    """q, k, v and both projections of the distance table."""
    draw = jax.random.split(jax.random.key(0), 2)
    tables = jax.random.normal(draw[1], (2, heads, distance_rows(config), head_dim))
    return [*jax.random.normal(draw[0], (3, ROWS, length, heads, head_dim)), *tables]


def outputs_and_gradients(function: Callable[..., jax.Array], inputs: list[jax.Array]) -> list[np.ndarray]:
    read = jax.random.normal(jax.random.key(1), inputs[0].shape)

    def total(*inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = function(*inputs)
        return jnp.sum(out * read, dtype=jnp.float32), out

    gradients, out = jax.jit(jax.grad(total, argnums=range(5), has_aux=True))(*inputs)
    return [np.asarray(x, np.float64) for x in (out, *gradients)]


def gathered_roll(x: jax.Array, shift: int, axis: int, *, stride: int, stride_axis: int) -> jax.Array:
    """`pltpu.roll` as one gather. Interpreted, it is one operation per row, which takes seconds to compile."""
    assert (axis, stride_axis) == (1, 0)
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, x.shape, n) for n in (0, 1))
    return jnp.take_along_axis(x, (columns - shift - stride * rows) % x.shape[1], axis=1)


CASES = {
    "packed": (MODEL, 128, 2, 64, True, KEYS),
    "padded, buckets, no dropout": (BUCKETS, 128, 1, 128, False, None),
    "half a group, blocks of one row": (BUCKETS, 256, 1, 64, True, KEYS),
}


@pytest.mark.long  # the suite tests several tiles of a block, below
@pytest.mark.parametrize(("config", "length", "heads", "head_dim", "packed", "keys"), CASES.values(), ids=CASES)
def test_distances_kernel_matches_reference(
    config: ModelConfig, length: int, heads: int, head_dim: int, packed: bool, keys: jax.Array | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(mosaic_distances.pltpu, "roll", gathered_roll)
    monkeypatch.setattr(mosaic_blocks, "_BLOCK", 128)
    monkeypatch.setattr(mosaic_blocks, "_OPERAND", 3 * 128 * 128 * 4)
    ids, inputs = some_ids(length, packed), draw_inputs(config, length, heads, head_dim)
    actual, reference = (
        outputs_and_gradients(attention(backend, config, ids, keys), inputs)
        for backend in ("mosaic_interpreted", "xla")
    )
    assert_same(actual, reference, 1e-5)


def test_distances_kernel_with_several_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed, with dropout, and two heads in a group."""
    monkeypatch.setattr(mosaic_distances.pltpu, "roll", gathered_roll)
    ids, inputs = some_ids(256, packed=True), draw_inputs(MODEL, 256, 2, 64)
    actual, reference = (
        outputs_and_gradients(attention(backend, MODEL, ids), inputs) for backend in ("mosaic_interpreted", "xla")
    )
    assert_same(actual, reference, 1e-5)


def test_gathered_roll_equals_strided_roll() -> None:
    x = jax.random.normal(jax.random.key(0), (16, 256))
    rolled = [jax.jit(lambda x, f=f: f(x, 129, 1, stride=1, stride_axis=0))(x) for f in (pltpu.roll, gathered_roll)]
    np.testing.assert_array_equal(*rolled)


@pytest.mark.long
def test_distances_kernel_reads_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The TPU interpreter fills new memory with NaN, and raises for accesses outside of an array."""
    monkeypatch.setattr(mosaic_blocks, "_BLOCK", 128)
    interpreted = partial(mosaic_blocks.Settings._replace, interpret=pltpu.InterpretParams())
    run = mosaic.mosaic_attention
    monkeypatch.setattr(mosaic, "mosaic_attention", lambda *x: run(*x[:6], interpreted(x[6]), x[7]))
    ids, inputs = some_ids(256, packed=True), draw_inputs(MODEL, 256, 2, 64)
    actual, reference = (
        outputs_and_gradients(attention(backend, MODEL, ids), inputs) for backend in ("mosaic_interpreted", "xla")
    )
    assert_same(actual, reference, 1e-5)


@pytest.mark.long
def test_split_heads_use_their_own_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mosaic_distances.pltpu, "roll", gathered_roll)
    ids, inputs = some_ids(128, packed=True), draw_inputs(MODEL, 128, 2, 128)
    kernel = attention("mosaic_interpreted", MODEL, ids)
    actual = []
    for devices in (1, 2):
        with jax.set_mesh(heads_split_over(devices)):
            actual.append(outputs_and_gradients(kernel, inputs))
    assert_same(*actual, 1e-6)
