"""Rewrites of products, sums and gradients that XLA compiles to fast code on a CPU.

products.py contains the formulas and is the only module that imports this one. A rewrite for CPUs alone is selected
when the program is lowered, so that an ahead-of-time plan gets the form of its target machine. The other rewrites cost
nothing on other platforms.

bfloat16: on a CPU with AVX512-BF16, XLA multiplies bfloat16 at twice the rate of float32 if the result is float32, the
first factor is contracted over its last dim, and both factors are row-major in memory. Otherwise it first converts the
factors to float32.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.typing import DTypeLike

from bertjax.parallel.sharding import tensors_are_whole

Gradients = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]

_einsum = partial(jnp.einsum, preferred_element_type=jnp.float32)


# 1. The product of states and a kernel


def by_rows(x: jax.Array, y: jax.Array, axes: int | tuple[tuple[int, ...], tuple[int, ...]] = 1) -> jax.Array:
    """Compute `tensordot(x, y, axes)`, contracted over the last dims of x, in the dtype of x."""

    def wide(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.tensordot(x, y, axes, preferred_element_type=jnp.float32).astype(x.dtype)

    return _by_platform(wide, partial(jnp.tensordot, axes=axes), x, y)


def over_rows(x: jax.Array, y: jax.Array, dims: int, dtype: DTypeLike) -> jax.Array:
    """Compute x^T y in `dtype`, contracted over the first `dims` dims: [*rows, *in], [*rows, *out] -> [*in, *out]."""
    bfloat16 = partial(_columns_by_rows, dims=dims, dtype=dtype)
    return _by_platform(bfloat16, partial(_contract, dims=dims, dtype=dtype), x, y)


def kernel_gradient(x: jax.Array, g: jax.Array, dtype: DTypeLike) -> jax.Array:
    """Compute x^T g in `dtype`: [..., in], [..., *out] -> [in, *out].

    JAX puts g first, and XLA on a CPU transposes the first factor in memory: if g is four times as wide as x, the
    gradient takes a third longer at 896 rows and three times as long at 1,024. So the narrower factor comes first here.
    The CPU's bfloat16 form always puts x first, since its float32 result would have to be transposed otherwise.
    """
    dims = x.ndim - 1

    def narrower_first(x: jax.Array, g: jax.Array) -> jax.Array:
        if x.shape[-1] <= math.prod(g.shape[dims:]):
            return _contract(x, g, dims=dims, dtype=x.dtype).astype(dtype)
        return jnp.moveaxis(_contract(g, x, dims=dims, dtype=x.dtype), -1, 0).astype(dtype)

    return _by_platform(partial(_columns_by_rows, dims=dims, dtype=dtype), narrower_first, x, g)


def times_transposed(g: jax.Array, kernel: jax.Array) -> jax.Array:
    """Compute g kernel^T: [..., *out], [in, *out] -> [..., in].

    On a CPU the `out` dims are joined first: to contract over several dims XLA transposes the kernel in memory, which
    takes half as long as the product in float32, and twice as long in bfloat16.
    """
    rows = g.ndim - kernel.ndim + 1
    direct = partial(by_rows, axes=(tuple(range(rows, g.ndim)), tuple(range(1, kernel.ndim))))
    if kernel.ndim == 2 or not tensors_are_whole():
        return direct(g, kernel)

    def join_dims(g: jax.Array, kernel: jax.Array) -> jax.Array:
        return by_rows(g.reshape(*g.shape[:rows], -1), kernel.reshape(len(kernel), -1), ((rows,), (1,)))

    return jax.lax.platform_dependent(g, kernel, cpu=join_dims, default=direct)


def _contract(x: jax.Array, y: jax.Array, *, dims: int, dtype: DTypeLike) -> jax.Array:
    rows = tuple(range(dims))
    return jnp.tensordot(x, y, (rows, rows), preferred_element_type=dtype)


def _columns_by_rows(x: jax.Array, y: jax.Array, *, dims: int, dtype: DTypeLike) -> jax.Array:
    count = math.prod(x.shape[:dims])
    # Whatever XLA fuses with a transpose is computed in column order, in which GELU takes ten times as long.
    rows = jax.lax.optimization_barrier(x).reshape(count, -1)
    # Flattened to one dim, since XLA would merge a visible transpose into the product, which then has the slow form.
    columns = jax.lax.optimization_barrier(rows.T.reshape(-1)).reshape(-1, count)
    result = jnp.matmul(columns, y.reshape(count, -1), preferred_element_type=jnp.float32)
    return result.astype(dtype).reshape(*x.shape[dims:], *y.shape[dims:])


def _by_platform(
    cpu_form: Callable[[jax.Array, jax.Array], jax.Array],
    other_form: Callable[[jax.Array, jax.Array], jax.Array],
    x: jax.Array,
    y: jax.Array,
) -> jax.Array:
    """Use `cpu_form` for bfloat16 on a CPU, and `other_form` otherwise."""
    if x.dtype != jnp.bfloat16:
        return other_form(x, y)
    return jax.lax.platform_dependent(x, y, cpu=cpu_form, default=other_form)


# 2. Products within attention


def scores_gradient(q: jax.Array, k: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gradients of q k / sqrt(K) with respect to q and k [B, L, H, K], given the scores' gradient g [B, H, L, M]."""
    scale = q.shape[-1] ** -0.5

    def both(g: jax.Array, q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        return mixed(g, k) * scale, _over_queries(q * scale, g)

    return with_one_dtype(both, g, q, k)


def mixed(weights: jax.Array, v: jax.Array) -> jax.Array:
    """Compute weights v: [B, H, L, M], [B, M, H, K] -> [B, L, H, K].

    An einsum straight to that shape swaps the factors, which is slow on a CPU.
    """
    return _einsum("BHLM,BMHK->BHLK", weights, v).swapaxes(1, 2).astype(v.dtype)


def mixed_gradient(weights: jax.Array, v: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gradients of `mixed` with respect to the weights and v."""
    return _einsum("BLHK,BMHK->BHLM", g, v).astype(weights.dtype), _over_queries(g, weights)


def _over_queries(x: jax.Array, weights: jax.Array) -> jax.Array:
    """Compute weights^T x: [B, L, H, K], [B, H, L, M] -> [B, M, H, K], as [K, M] and then transposed.

    XLA lacks a fast path for [M, K] on a CPU, which took twice as long.
    """
    return _einsum("BLHK,BHLM->BHKM", x, weights).transpose(0, 3, 1, 2).astype(x.dtype)


def einsum_gradient(dims: str, x: jax.Array, y: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Gradients of einsum(dims, x, y) with respect to x and y.

    If the gradient of y is a sum over one dim, it is computed with its last two dims swapped, from the factor with the
    last dim of y and then the other: on a CPU this takes a third to half of the time.
    """
    factor_dims, _, sum_dims = dims.partition("->")
    x_dims, y_dims = factor_dims.split(",")

    def both(g: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        dx = _einsum(f"{sum_dims},{y_dims}->{x_dims}", g, y).astype(x.dtype)
        # In sums over two dims XLA swaps the factors back, to a bfloat16 form that it does not support on a CPU.
        if len(set(sum_dims) - set(y_dims)) > 1:
            return dx, _einsum(f"{sum_dims},{x_dims}->{y_dims}", g, x).astype(y.dtype)
        swapped = f"{y_dims[:-2]}{y_dims[-1]}{y_dims[-2]}"
        if y_dims[-1] in x_dims:
            dy = _einsum(f"{x_dims},{sum_dims}->{swapped}", x, g)
        else:
            dy = _einsum(f"{sum_dims},{x_dims}->{swapped}", g, x)
        return dx, dy.swapaxes(-1, -2).astype(y.dtype)

    return with_one_dtype(both, g, x, y)


def with_one_dtype(both: Gradients, g: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Call `both(g, x, y)` with g cast to the dtype of x, since a product of two dtypes is computed in the wider one.

    On a TPU g is not cast: a TPU rounds factors itself, within the product.
    """
    return jax.lax.platform_dependent(g, x, y, tpu=both, default=lambda g, x, y: both(g.astype(x.dtype), x, y))


def head_by_head(
    attention: Callable[..., jax.Array], q: jax.Array, k: jax.Array, v: jax.Array, *tables: jax.Array
) -> jax.Array:
    """Call `attention(q, k, v, heads, *tables)` -> [B, L, H, K] for all heads at once, or on a CPU head by head.

    q, k and v are [B, L, H, K], each of `tables` is [H, ...], and `heads` is described in `Scoring`. The scores of one
    head stay in a CPU's cache between the operations on them, arrays of all heads do not. On a mesh that splits heads
    they are computed at once, as on other platforms; rounding may differ.
    """

    def at_once(qkv: tuple[jax.Array, ...], tables: tuple[jax.Array, ...]) -> jax.Array:
        return attention(*qkv, None, *tables)

    def one_head(slices: tuple[tuple[jax.Array, ...], jax.Array, tuple[jax.Array, ...]]) -> jax.Array:
        qkv, head, tables = slices
        return attention(*(x[:, :, None] for x in qkv), head[None], *(x[None] for x in tables))[:, :, 0]

    def in_turn(qkv: tuple[jax.Array, ...], tables: tuple[jax.Array, ...]) -> jax.Array:
        heads = jnp.arange(q.shape[2], dtype=jnp.uint32)
        out = jax.lax.map(one_head, (tuple(jnp.moveaxis(x, 2, 0) for x in qkv), heads, tables))
        return jnp.moveaxis(out, 0, 2)

    if not tensors_are_whole():
        return at_once((q, k, v), tables)
    return jax.lax.platform_dependent((q, k, v), tables, cpu=in_turn, default=at_once)


# 3. Sums


def column_sums(x: jax.Array) -> jax.Array:
    """Sum over rows in float32, [n, V] -> [V], by a product with ones: a sum is several times slower on a CPU."""
    return jnp.einsum("n,nV->V", jnp.ones_like(x[:, 0]), x, preferred_element_type=jnp.float32)
