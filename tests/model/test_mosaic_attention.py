"""The attention kernel for TPUs, interpreted on a CPU, equals the XLA reference, dropout included."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_sides import assert_same, heads_split_over, outputs_and_gradients, some_ids
from jax.experimental.pallas import tpu as pltpu

from bertjax.model.attention import mosaic, mosaic_blocks, mosaic_grid
from bertjax.model.attention.backends import attend
from bertjax.model.attention.kernels import MosaicMemory
from bertjax.model.attention.positions import alibi_slopes
from bertjax.model.dropout import ATTENTION_PROBS, dropout, fold, keep_scores

ROWS = 2
KEYS = jnp.asarray([3, 0xFEDCBA98], jnp.uint32)


def attention(backend: str, ids: jax.Array, heads: int, **options) -> Callable[..., jax.Array]:
    settings = {"packed": True, "causal": False, "dropout_keys": KEYS, "dropout_rate": 0.1} | options
    if settings.pop("alibi", False):
        settings["slopes"] = alibi_slopes(heads)
    return lambda q, k, v: attend(backend, q, k, v, ids, **settings)


def padded_outputs_and_gradients(
    function: Callable[..., jax.Array], ids: jax.Array, heads: int, head_dim: int, dtype=jnp.float32
):
    return outputs_and_gradients(function, ids, dtype, heads=heads, head_dim=head_dim, padding=True)


CASES = {
    "packed": (128, 2, 64, {}),
    "half a group, no dropout": (128, 1, 64, {"dropout_keys": None}),
    "causal, a group of four heads": (128, 4, 32, {"causal": True}),
    "a group of eight heads, five of them zeros": (128, 3, 16, {}),
    "ALiBi, three blocks": (384, 1, 128, {"alibi": True}),
}


# In the suite, tests of cut rows cover the others: half a group, no dropout, four heads in a group, causal.
SHORT = ("packed", "a group of eight heads, five of them zeros", "ALiBi, three blocks")


def cells(table: dict[str, tuple], short: tuple[str, ...]) -> list[Any]:
    """Parameters from a table of cases; those that are not in `short` are long."""
    return [pytest.param(*row, id=name, marks=[] if name in short else pytest.mark.long) for name, row in table.items()]


@pytest.mark.parametrize(("length", "heads", "head_dim", "options"), cells(CASES, SHORT))
def test_mosaic_matches_reference(
    length: int, heads: int, head_dim: int, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small limits, so that the kernel loops over rows, groups and blocks, as it does for longer rows.
    monkeypatch.setattr(mosaic_blocks, "_BLOCK", 128)
    monkeypatch.setattr(mosaic_blocks, "_OPERAND", 3 * 128 * 128 * 4)
    ids = some_ids(length, packed=True)
    actual, reference = (
        padded_outputs_and_gradients(attention(backend, ids, heads, **options), ids, heads, head_dim)
        for backend in ("mosaic_interpreted", "xla")
    )
    assert_same(actual, reference, 1e-5)


def cut_rows(longest: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut rows longer than this: into pieces of at most this length with a window, else into chunks of 128."""
    monkeypatch.setattr(mosaic_blocks, "_BLOCK", 128)
    monkeypatch.setattr(mosaic_grid, "_UNIT", 128)
    monkeypatch.setattr(mosaic_grid, "mosaic_memory", lambda _: MosaicMemory(4 * longest, 65536, chunk_bytes=4 * 128))


LONG_ROWS = {
    "three chunks": (384, 128, 2, 64, {}),
    "ALiBi, causal, no dropout, a group of four heads of 24 dims": (
        *(384, 128, 3, 24),
        {"alibi": True, "causal": True, "dropout_keys": None},
    ),
    "ALiBi, heads of 72 dims": (256, 128, 1, 72, {"alibi": True}),
    "a window that is too wide for pieces": (384, 128, 1, 128, {"window": 100}),
    "three pieces of a window": (896, 512, 2, 64, {"window": 70}),
    "pieces, causal": (640, 512, 1, 40, {"window": 128, "causal": True}),
}


# The test with the TPU interpreter, below, covers dropout without a window.
SHORT_OF_LONG = (
    *("ALiBi, causal, no dropout, a group of four heads of 24 dims", "a window that is too wide for pieces"),
    "three pieces of a window",
)


@pytest.mark.parametrize(("length", "longest", "heads", "head_dim", "options"), cells(LONG_ROWS, SHORT_OF_LONG))
def test_mosaic_long_rows_match_reference(
    length: int, longest: int, heads: int, head_dim: int, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    cut_rows(longest, monkeypatch)
    ids = some_ids(length, packed=True)
    actual, reference = (
        padded_outputs_and_gradients(attention(backend, ids, heads, **options), ids, heads, head_dim)
        for backend in ("mosaic_interpreted", "xla")
    )
    assert_same(actual, reference, 1e-5)


UNSEEN = {
    "packed": (384, [1] * 128 + [2] * 128 + [0] * 128, 128, {}),
    "causal": (384, [1] * 384, 128, {"causal": True}),
    "packed, in chunks": (128, [1] * 128 + [2] * 128 + [0] * 128, 128, {}),
    "causal, in chunks": (128, [1] * 384, 128, {"causal": True}),
    "a window, in chunks": (128, [1] * 384, 256, {"window": 100}),
}


SHORT_OF_UNSEEN = ("packed", "causal, in chunks", "a window, in chunks")


@pytest.mark.parametrize(("longest", "ids", "unseen", "options"), cells(UNSEEN, SHORT_OF_UNSEEN))
def test_mosaic_skips_unseen_blocks(
    longest: int, ids: list[int], unseen: int, options: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If blocks from token `unseen` on were read, their NaN would reach the first block through products with zero."""
    cut_rows(longest, monkeypatch)
    q, k, v = jax.random.normal(jax.random.key(1), (3, 1, 384, 2, 64)).at[:, :, unseen:].set(jnp.nan)
    kernel = attention("mosaic_interpreted", jnp.asarray([ids], jnp.int32), 2, dropout_keys=None, **options)

    def first_block(q: jax.Array) -> jax.Array:
        return kernel(q, k, v)[:, :128]

    out, pull = jax.vjp(first_block, q)
    assert jnp.isfinite(out).all() and jnp.isfinite(pull(out)[0][:, :128]).all()


@pytest.mark.parametrize("length", [128, 384])
def test_mosaic_dropout_matches_reference(length: int) -> None:
    """Also if the length is not a power of two."""
    heads, rate = 3, 0.1
    head, position = jnp.arange(heads, dtype=jnp.uint32)[:, None, None], jnp.arange(length, dtype=jnp.uint32)
    keys = fold(KEYS, ATTENTION_PROBS)[:, None, None, None]
    actual = keep_scores(head, position[:, None], position[None], length, keys, rate)
    expected = dropout(jnp.ones((ROWS, heads, length, length)), KEYS, ATTENTION_PROBS, rate) != 0
    np.testing.assert_array_equal(actual, expected)


def test_mosaic_numbers_heads_over_devices() -> None:
    """Tokens attend evenly to one-hot values, so that outputs are the mask; each of two devices has two heads."""
    shape = ROWS, 128, 4, 128
    q, v = jnp.zeros(shape), jnp.broadcast_to(jnp.eye(128)[None, :, None], shape)
    with jax.set_mesh(heads_split_over(2)):
        actual = jax.jit(attention("mosaic_interpreted", jnp.ones(shape[:2], jnp.int32), 4))(q, q, v)
    expected = dropout(jnp.ones((ROWS, 4, 128, 128)), KEYS, ATTENTION_PROBS, 0.1)
    np.testing.assert_allclose(actual.swapaxes(1, 2), expected / 128, rtol=1e-6)


@pytest.mark.parametrize(("length", "window"), [(512, 70), (256, 0)], ids=["a window", "chunks"])
def test_mosaic_reads_within_bounds(length: int, window: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """The TPU interpreter fills new memory with NaN, and raises for accesses outside of an array."""
    monkeypatch.setattr(mosaic_blocks, "_UNROLLED", 2)
    if not window:
        cut_rows(128, monkeypatch)
    ids = some_ids(length, packed=True)
    settings = mosaic_blocks.Settings(64, 0.1, window=window, interpret=pltpu.InterpretParams())
    kernel = functools.partial(mosaic.mosaic_attention, dropout_keys=KEYS, slopes=(), settings=settings)
    actual = padded_outputs_and_gradients(lambda q, k, v: kernel(q, k, v, ids), ids, 2, 64)
    assert_same(actual, padded_outputs_and_gradients(attention("xla", ids, 2, window=window), ids, 2, 64), 1e-5)


def test_mosaic_bfloat16_is_as_exact_as_xla(monkeypatch: pytest.MonkeyPatch) -> None:
    # Loops on a CPU do not support bfloat16 products; in float32 these products are exact.
    product = mosaic.product
    monkeypatch.setattr(mosaic, "product", lambda a, b, *dims: product(*(x.astype(jnp.float32) for x in (a, b)), *dims))
    ids = some_ids(128, packed=True)
    exact = padded_outputs_and_gradients(attention("xla", ids, 2), ids, 2, 64)

    def errors(backend: str) -> np.ndarray:
        actual = padded_outputs_and_gradients(attention(backend, ids, 2), ids, 2, 64, jnp.bfloat16)
        return np.array([np.linalg.norm(a - b) / np.linalg.norm(b) for a, b in zip(actual, exact, strict=True)])

    assert (errors("mosaic_interpreted") < 1.1 * errors("xla")).all()
