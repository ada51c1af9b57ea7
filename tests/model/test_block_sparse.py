"""BigBird's block-sparse attention equals attention under its dense mask."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_sides import HEADS, ROWS, assert_same, outputs_and_gradients, rounding, some_ids

from bertjax.model.attention.backends import visible, xla_attention
from bertjax.model.attention.block_sparse import (
    block_sparse_attention,
    blocks_of_transformers_evaluation,
    is_sparse,
    keys_per_token,
    random_blocks,
)
from bertjax.model.dropout import row_keys

BLOCK = 8


def counts(length: int, chosen: np.ndarray) -> np.ndarray:
    """How often each token sees each other one, as described in the paper and in transformers: [H, L, L]."""
    n = -(-length // BLOCK)
    seen = np.zeros((HEADS, n, n), int)
    for head, u in np.ndindex(HEADS, n):
        if u in (0, n - 1):
            seen[head, u] = 1
        else:
            seen[head, u, list({0, u - 1, u, u + 1, n - 1})] = 1
            np.add.at(seen[head, u], chosen[head, u - 1], 1)
    return seen.repeat(BLOCK, axis=1).repeat(BLOCK, axis=2)[:, :length, :length]


@pytest.mark.parametrize(
    ("length", "packed", "chosen"),
    [
        pytest.param(96, False, random_blocks(0, 1, HEADS, 12, 2), id="padded", marks=pytest.mark.long),
        pytest.param(93, True, random_blocks(0, 2, HEADS, 12, 3), id="packed, a partial block"),
        pytest.param(96, False, blocks_of_transformers_evaluation(HEADS, 12, 3), id="as transformers evaluates"),
    ],
)
def test_block_sparse_matches_dense_mask(length: int, packed: bool, chosen: np.ndarray) -> None:
    ids, often = some_ids(length, packed), jnp.asarray(counts(length, chosen))

    def formula(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        scores = jnp.einsum("blhk,bmhk->bhlm", q, k) / jnp.sqrt(8.0)
        seen = visible(ids, causal=False)[:, None] & (often > 0)
        probs = jax.nn.softmax(jnp.where(seen, scores + jnp.log(jnp.maximum(often, 1)), -jnp.inf), axis=-1)
        return jnp.einsum("bhlm,bmhk->blhk", probs, v)

    def ours(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        return block_sparse_attention(q, k, v, ids, jnp.asarray(chosen), None, 0.0, block=BLOCK)

    assert_same(outputs_and_gradients(ours, ids), outputs_and_gradients(formula, ids))


def test_block_sparse_dropout_matches_dense_mask() -> None:
    ids, keys = some_ids(96, packed=True), row_keys(3, jnp.int32(5), jnp.arange(ROWS))
    chosen = random_blocks(0, 0, 1, 12, 2).repeat(HEADS, axis=0)
    seen = visible(ids, causal=False) & jnp.asarray(counts(96, chosen)[0] > 0)
    q, k, v = jax.random.normal(jax.random.key(1), (3, *ids.shape, HEADS, 8))
    sparse = jax.jit(partial(block_sparse_attention, dropout_rate=0.3, block=BLOCK))
    ours = sparse(q, k, v, ids, jnp.asarray(chosen), keys)
    dense = xla_attention(q, k, v, seen, keys, 0.3)
    assert_same([np.asarray(ours[ids > 0])], [np.asarray(dense[ids > 0])], tolerance=rounding(96))


def test_random_blocks_are_distinct_and_reproducible() -> None:
    chosen = random_blocks(7, 3, 4, 32, 3)
    assert chosen.shape == (4, 30, 3)
    for u in range(30):
        seen_anyway = {0, u, u + 1, u + 2, 31}
        assert all(len(seen_anyway | set(blocks)) == len(seen_anyway) + 3 for blocks in chosen[:, u].tolist())
    assert np.array_equal(chosen, random_blocks(7, 3, 4, 32, 3))
    others = (random_blocks(8, 3, 4, 32, 3), random_blocks(7, 4, 4, 32, 3), chosen[::-1])
    assert all((chosen != other).any() for other in others)


def test_keys_per_token_matches_dense_mask() -> None:
    chosen = random_blocks(0, 1, HEADS, 12, 2)
    assert keys_per_token(96, BLOCK, 2) == counts(96, chosen).sum() / (HEADS * 96)
    assert keys_per_token(72, BLOCK, 2) == 72


@pytest.mark.parametrize(("length", "expected"), [(704, False), (705, True), (4096, True)])
def test_short_rows_have_full_attention(length: int, expected: bool) -> None:
    assert is_sparse(length, 64, 3) is expected
