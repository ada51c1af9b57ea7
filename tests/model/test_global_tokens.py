"""Windows with global tokens equal Longformer's formula under dense masks."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_sides import HEAD_DIM, HEADS, ROWS, assert_same, global_tokens, some_ids

from bertjax.model.attention.backends import visible, xla_attention
from bertjax.model.attention.sparse import tokens_at
from bertjax.model.attention.windows import global_attention, keys_with_globals, take_tokens
from bertjax.model.dropout import row_keys


def marked_tokens(length: int) -> jax.Array:
    """Global tokens of two rows: four, with neighbours and one in the last sequence, and only the first token."""
    marked = np.zeros((ROWS, length), bool)
    marked[0, [0, 1, 66, length - 30]] = True
    marked[1, 0] = True
    return jnp.asarray(marked)


def values_and_gradients(attention, ids: jax.Array) -> list[np.ndarray]:
    """Outputs of the real tokens, and gradients with respect to both sets of queries, keys and values."""
    *inputs, read = jax.random.normal(jax.random.key(0), (7, *ids.shape, HEADS, HEAD_DIM))

    def total(*inputs: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = jnp.where((ids > 0)[:, :, None, None], attention(*inputs), 0)
        return jnp.sum(out * read), out

    gradients, out = jax.jit(jax.grad(total, argnums=range(6), has_aux=True))(*inputs)
    return [np.asarray(x, np.float64) for x in (out, *gradients)]


@pytest.mark.parametrize(
    ("length", "window", "packed", "rate"),
    [
        pytest.param(200, 20, False, 0.0, id="padded", marks=pytest.mark.long),
        pytest.param(300, 70, True, 0.2, id="packed, dropout"),
    ],
)
def test_global_attention_matches_formula(length: int, window: int, packed: bool, rate: float) -> None:
    ids, marked = some_ids(length, packed), marked_tokens(length)
    keys = row_keys(3, jnp.int32(5), jnp.arange(ROWS)) if rate else None

    def formula(q, k, v, global_q, global_k, global_v) -> jax.Array:
        same = visible(ids, causal=False)
        near = visible(ids, causal=False, window=window) | (same & marked[:, None, :])
        ordinary = xla_attention(q, k, v, near, keys, rate)
        return jnp.where(
            marked[:, :, None, None], xla_attention(global_q, global_k, global_v, same, keys, rate), ordinary
        )

    def ours(q, k, v, global_q, global_k, global_v) -> jax.Array:
        tokens = global_tokens(marked, 5)
        projected = take_tokens(global_q, tokens), global_k, global_v
        return global_attention((q, k, v), projected, ids, tokens, keys, rate, window=window)

    assert_same(values_and_gradients(ours, ids), values_and_gradients(formula, ids))


def test_keys_with_globals_matches_masks() -> None:
    # The count ignores shorter windows at both ends and global tokens within windows: at most (2 w + 1)^2 of L^2.
    length, window, marked = 600, 10, np.arange(600) % 200 == 100
    near = np.abs(np.subtract.outer(np.arange(length), np.arange(length))) <= window
    seen = (near & ~marked | marked | marked[:, None]).sum() / length
    assert keys_with_globals(length, window, 3) == pytest.approx(seen, abs=441 / 600)
    assert keys_with_globals(20, window, 3) == 20


def test_tokens_at_ignores_unused_slots() -> None:
    tokens = tokens_at(jnp.asarray([[0, 2], [4, 4]]), 5)
    assert tokens.positions.tolist() == [[0, 2], [4, 5]]
    assert tokens.marked.tolist() == [[True, False, True, False, False], [False] * 4 + [True]]
    taken = take_tokens(jnp.asarray([[10, 11, 12, 13, 14], [20, 21, 22, 23, 24]]), tokens)
    assert taken.tolist() == [[10, 12], [24, 0]]
