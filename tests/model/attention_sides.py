"""Helpers to compare two implementations of attention on the same rows."""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.model.attention.sparse import tokens_at
from bertjax.model.attention.windows import GlobalTokens

ROWS, HEADS, HEAD_DIM = 2, 2, 8
Attention = Callable[[jax.Array, jax.Array, jax.Array], jax.Array]


def some_ids(length: int, packed: bool) -> jax.Array:
    """Sequence ids of two rows with different numbers of tokens, then padding; packed rows hold three sequences."""
    ids = np.zeros((ROWS, length), np.int32)
    for row, used in enumerate((length - 27, length - 3)):
        ids[row, :used] = 1 + (np.arange(used) * 3 // used if packed else 0)
    return jnp.asarray(ids)


def outputs_and_gradients(
    attention: Attention,
    ids: jax.Array,
    dtype=jnp.float32,
    *,
    heads: int = HEADS,
    head_dim: int = HEAD_DIM,
    padding: bool = False,
) -> list[np.ndarray]:
    """Outputs of the real tokens (with `padding` of all), and the gradients of q, k and v through those outputs."""
    shape = (4, *ids.shape, heads, head_dim)
    q, k, v, read = jax.random.normal(jax.random.key(0), shape).astype(dtype)  # the same numbers in every dtype
    real = ((ids > 0) | padding)[:, :, None, None]

    def total(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = jnp.where(real, attention(q, k, v), 0)
        return jnp.sum(out * read, dtype=jnp.float32), out

    gradients, out = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    return [np.asarray(x, np.float64) for x in (out, *gradients)]


def heads_split_over(devices: int) -> jax.sharding.Mesh:
    """A mesh that splits heads, and nothing else, over the first devices."""
    kinds = (jax.sharding.AxisType.Auto,)
    return jax.make_mesh((devices,), ("tensor",), axis_types=kinds, devices=jax.devices()[:devices])


def loops_and_gradients(
    devices: int, attention: Callable[..., jax.Array], cotangent: jax.Array, *inputs: jax.Array
) -> tuple[int, list[np.ndarray]]:
    """Split heads over devices; return the number of loops in the program, and the gradients of all inputs."""
    with jax.set_mesh(heads_split_over(devices)):
        program = jax.jit(lambda *x: jax.vjp(attention, *x)[1](cotangent))
        loops = program.lower(*inputs).as_text().count("while")
        return loops, [np.asarray(x) for x in program(*inputs)]


def rounding(terms: int) -> float:
    """Tolerance, relative to the largest result, for programs that sum `terms` float32 terms in different orders.

    Errors of half an ulp each (2**-24) add up like a random walk; four times that leaves room for all instruction sets.
    """
    return 4 * terms**0.5 * 2.0**-24


def assert_same(actual: list[np.ndarray], reference: list[np.ndarray], tolerance: float = 1e-6) -> None:
    """Compare outputs and gradients; the tolerance is relative to the largest value of each."""
    for number, (ours, theirs) in enumerate(zip(actual, reference, strict=True)):
        name = f"gradient {number}" if number else "out"
        assert np.isfinite(ours).all(), name
        assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max(), name


def global_tokens(marked: np.ndarray | jax.Array, most: int) -> GlobalTokens:
    """Global tokens from a mask, bool [B, L], with at most `most` tokens in each row, and at least one."""
    positions = [(np.flatnonzero(row).tolist() + [0] * most)[:most] for row in np.asarray(marked)]
    return tokens_at(jnp.asarray(positions, jnp.int32), marked.shape[1])
