"""The kernel for TPUs computes DeBERTa's attention as the reference does, interpreted on a CPU."""

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
    def attended(q, k, v, relative_keys, relative_queries) -> jax.Array:
        distances = DistanceProjections(relative_queries, relative_keys)
        return disentangled_attention(config, q, k, v, distances, ids, keys, backend)

    return attended


def drawn(config: ModelConfig, length: int, heads: int, head_dim: int) -> list[jax.Array]:
    """q, k, v and both projections of the table of distances."""
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
    """`pltpu.roll` as one gather: interpreted, that is an operation per row, which takes seconds to compile."""
    assert (axis, stride_axis) == (1, 0)
    rows, columns = (jax.lax.broadcasted_iota(jnp.int32, x.shape, n) for n in (0, 1))
    return jnp.take_along_axis(x, (columns - shift - stride * rows) % x.shape[1], axis=1)


CASES = {
    "packed": (MODEL, 128, 2, 64, True, KEYS),
    "padded, buckets, no dropout": (BUCKETS, 128, 1, 128, False, None),
    "half a group, blocks of one row": (BUCKETS, 256, 1, 64, True, KEYS),
}


@pytest.mark.long  # the suite has tiles of blocks as they are, below
@pytest.mark.parametrize(("config", "length", "heads", "head_dim", "packed", "keys"), CASES.values(), ids=CASES)
def test_the_kernel_is_the_reference(
    config: ModelConfig, length: int, heads: int, head_dim: int, packed: bool, keys: jax.Array | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setattr(mosaic_distances.pltpu, "roll", gathered_roll)
    monkeypatch.setattr(mosaic_blocks, "_BLOCK", 128)
    monkeypatch.setattr(mosaic_blocks, "_OPERAND", 3 * 128 * 128 * 4)
    ids, inputs = some_ids(length, packed), drawn(config, length, heads, head_dim)
    found, reference = (
        outputs_and_gradients(attention(backend, config, ids, keys), inputs)
        for backend in ("mosaic_interpreted", "xla")
    )
    assert_same(found, reference, 1e-5)


def test_rows_of_several_tiles_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Packed, with dropout, and two heads in a group."""
    monkeypatch.setattr(mosaic_distances.pltpu, "roll", gathered_roll)
    ids, inputs = some_ids(256, packed=True), drawn(MODEL, 256, 2, 64)
    found, reference = (
        outputs_and_gradients(attention(backend, MODEL, ids), inputs) for backend in ("mosaic_interpreted", "xla")
    )
    assert_same(found, reference, 1e-5)


def test_a_strided_roll_is_the_gather() -> None:
    x = jax.random.normal(jax.random.key(0), (16, 256))
    rolled = [jax.jit(lambda x, f=f: f(x, 129, 1, stride=1, stride_axis=0))(x) for f in (pltpu.roll, gathered_roll)]
    np.testing.assert_array_equal(*rolled)


@pytest.mark.long
def test_the_interpreter_of_tpus_finds_no_read_out_of_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """It fills fresh memory with NaN, and raises for what lies outside of an array."""
    monkeypatch.setattr(mosaic_blocks, "_BLOCK", 128)
    interpreted = partial(mosaic_blocks.Settings._replace, interpret=pltpu.InterpretParams())
    run = mosaic.mosaic_attention
    monkeypatch.setattr(mosaic, "mosaic_attention", lambda *x: run(*x[:6], interpreted(x[6]), x[7]))
    ids, inputs = some_ids(256, packed=True), drawn(MODEL, 256, 2, 64)
    found, reference = (
        outputs_and_gradients(attention(backend, MODEL, ids), inputs) for backend in ("mosaic_interpreted", "xla")
    )
    assert_same(found, reference, 1e-5)


@pytest.mark.long
def test_heads_split_over_devices_have_their_own_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(mosaic_distances.pltpu, "roll", gathered_roll)
    ids, inputs = some_ids(128, packed=True), drawn(MODEL, 128, 2, 128)
    kernel = attention("mosaic_interpreted", MODEL, ids)
    found = []
    for devices in (1, 2):
        with jax.set_mesh(heads_split_over(devices)):
            found.append(outputs_and_gradients(kernel, inputs))
    assert_same(*found, 1e-6)
