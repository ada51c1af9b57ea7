"""Two ways to compute one attention, run on the same rows and compared."""

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
    """Sequence ids of two rows of other lengths, padding last; packed rows hold three sequences."""
    made = np.zeros((ROWS, length), np.int32)
    for row, used in enumerate((length - 27, length - 3)):
        made[row, :used] = 1 + (np.arange(used) * 3 // used if packed else 0)
    return jnp.asarray(made)


def outputs_and_gradients(
    attention: Attention,
    ids: jax.Array,
    dtype=jnp.float32,
    *,
    heads: int = HEADS,
    head_dim: int = HEAD_DIM,
    padding: bool = False,
) -> list[np.ndarray]:
    """What the real tokens get, or all with `padding`, and the gradients of q, k and v if only those are read."""
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
    devices: int, attention: Callable[..., jax.Array], given: jax.Array, *inputs: jax.Array
) -> tuple[int, list[np.ndarray]]:
    """With heads split over so many devices: the loops of the program, and the gradients of all inputs for `given`."""
    with jax.set_mesh(heads_split_over(devices)):
        program = jax.jit(lambda *x: jax.vjp(attention, *x)[1](given))
        loops = program.lower(*inputs).as_text().count("while")
        return loops, [np.asarray(x) for x in program(*inputs)]


def rounding(terms: int) -> float:
    """Bound for two programs that add so many float32 terms, of the largest result: they may add in another order.

    Errors of half an ulp each (2**-24) add up like a random walk. Four times that has room for every instruction set.
    """
    return 4 * terms**0.5 * 2.0**-24


def assert_same(found: list[np.ndarray], reference: list[np.ndarray], tolerance: float = 1e-6) -> None:
    """Outputs and gradients differ by at most so much of the largest."""
    for number, (ours, theirs) in enumerate(zip(found, reference, strict=True)):
        name = f"gradient {number}" if number else "out"
        assert np.isfinite(ours).all(), name
        assert np.abs(ours - theirs).max() <= tolerance * np.abs(theirs).max(), name


def global_tokens(marked: np.ndarray | jax.Array, most: int) -> GlobalTokens:
    """The marked tokens, bool [B, L], at most so many of each row, and at least one."""
    positions = [(np.flatnonzero(row).tolist() + [0] * most)[:most] for row in np.asarray(marked)]
    return tokens_at(jnp.asarray(positions, jnp.int32), marked.shape[1])
