"""Forms of products, sums and gradients that XLA compiles to fast code on a CPU.

products.py has the formulas and is the only module that uses this one. What differs by platform is chosen where the
program is lowered, so that a plan has the form of its machine; everything else is as fast in any form elsewhere.

bfloat16: on a CPU with AVX512-BF16, XLA multiplies it at twice the rate of float32 where the result is float32, the sum
is over the last dim of the first factor, and both factors lie in memory row by row. In any other form it converts them
to float32 before.
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
    """`tensordot(x, y, axes)`, the sum over the last dims of x; rounded to the dtype of x."""

    def wide(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.tensordot(x, y, axes, preferred_element_type=jnp.float32).astype(x.dtype)

    return _by_platform(wide, partial(jnp.tensordot, axes=axes), x, y)


def over_rows(x: jax.Array, y: jax.Array, dims: int, dtype: DTypeLike) -> jax.Array:
    """x^T y: [*rows, *in] and [*rows, *out] -> [*in, *out], the sum over the first `dims` dims; in that dtype."""
    bfloat16 = partial(_columns_by_rows, dims=dims, dtype=dtype)
    return _by_platform(bfloat16, partial(_contracted, dims=dims, dtype=dtype), x, y)


def kernel_gradient(x: jax.Array, g: jax.Array, dtype: DTypeLike) -> jax.Array:
    """x^T g in a dtype: [..., in] and [..., *out] -> [in, *out].

    JAX puts g first, and XLA on a CPU transposes the first factor in memory: where g is four times as wide as x, the
    gradient takes a third longer at 896 rows and three times as long at 1,024. Here the narrower factor is first; but
    in the form for bfloat16 on a CPU always x, for the result would be transposed in float32.
    """
    dims = x.ndim - 1

    def narrower_first(x: jax.Array, g: jax.Array) -> jax.Array:
        if x.shape[-1] <= math.prod(g.shape[dims:]):
            return _contracted(x, g, dims=dims, dtype=x.dtype).astype(dtype)
        return jnp.moveaxis(_contracted(g, x, dims=dims, dtype=x.dtype), -1, 0).astype(dtype)

    return _by_platform(partial(_columns_by_rows, dims=dims, dtype=dtype), narrower_first, x, g)


def times_transposed(g: jax.Array, kernel: jax.Array) -> jax.Array:
    """g kernel^T: [..., *out] and [in, *out] -> [..., in].

    Over one dim on a CPU: where the sum is over several, XLA transposes the kernel in memory, which takes half as long
    as the product in float32, and twice as long in bfloat16.
    """
    rows = g.ndim - kernel.ndim + 1
    direct = partial(by_rows, axes=(tuple(range(rows, g.ndim)), tuple(range(1, kernel.ndim))))
    if kernel.ndim == 2 or not tensors_are_whole():
        return direct(g, kernel)

    def joined(g: jax.Array, kernel: jax.Array) -> jax.Array:
        return by_rows(g.reshape(*g.shape[:rows], -1), kernel.reshape(len(kernel), -1), ((rows,), (1,)))

    return jax.lax.platform_dependent(g, kernel, cpu=joined, default=direct)


def _contracted(x: jax.Array, y: jax.Array, *, dims: int, dtype: DTypeLike) -> jax.Array:
    rows = tuple(range(dims))
    return jnp.tensordot(x, y, (rows, rows), preferred_element_type=dtype)


def _columns_by_rows(x: jax.Array, y: jax.Array, *, dims: int, dtype: DTypeLike) -> jax.Array:
    count = math.prod(x.shape[:dims])
    # XLA computes what it merges with a transposition in the order of the columns: GELU takes ten times as long there.
    rows = jax.lax.optimization_barrier(x).reshape(count, -1)
    # In one dim, since XLA takes a transposition that it sees into the product, which then has the slow form.
    columns = jax.lax.optimization_barrier(rows.T.reshape(-1)).reshape(-1, count)
    result = jnp.matmul(columns, y.reshape(count, -1), preferred_element_type=jnp.float32)
    return result.astype(dtype).reshape(*x.shape[dims:], *y.shape[dims:])


def _by_platform(
    cpu_form: Callable[[jax.Array, jax.Array], jax.Array],
    other_form: Callable[[jax.Array, jax.Array], jax.Array],
    x: jax.Array,
    y: jax.Array,
) -> jax.Array:
    """bfloat16 on a CPU has a form of its own."""
    if x.dtype != jnp.bfloat16:
        return other_form(x, y)
    return jax.lax.platform_dependent(x, y, cpu=cpu_form, default=other_form)


# 2. Products within attention


def scores_gradient(q: jax.Array, k: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradient of q k / sqrt(K), given that of the scores: [B, L, H, K] twice and [B, H, L, M]."""
    scale = q.shape[-1] ** -0.5

    def both(g: jax.Array, q: jax.Array, k: jax.Array) -> tuple[jax.Array, jax.Array]:
        return mixed(g, k) * scale, _over_queries(q * scale, g)

    return with_one_dtype(both, g, q, k)


def mixed(weights: jax.Array, v: jax.Array) -> jax.Array:
    """weights v: [B, H, L, M] and [B, M, H, K] -> [B, L, H, K]; einsum to that swaps the factors, slow on a CPU."""
    return _einsum("BHLM,BMHK->BHLK", weights, v).swapaxes(1, 2).astype(v.dtype)


def mixed_gradient(weights: jax.Array, v: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradient of `mixed`."""
    return _einsum("BLHK,BMHK->BHLM", g, v).astype(weights.dtype), _over_queries(g, weights)


def _over_queries(x: jax.Array, weights: jax.Array) -> jax.Array:
    """weights^T x: [B, L, H, K] and [B, H, L, M] -> [B, M, H, K], computed as [K, M] and then transposed.

    XLA has no fast path for [M, K] on a CPU: it took twice the time.
    """
    return _einsum("BLHK,BHLM->BHKM", x, weights).transpose(0, 3, 1, 2).astype(x.dtype)


def einsum_gradient(dims: str, x: jax.Array, y: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The gradient of einsum(dims, x, y).

    That of y is made with its last two dims swapped, the factor that has its last dim first, where it is a sum over one
    dim: a CPU takes a third to half of the time.
    """
    factor_dims, _, sum_dims = dims.partition("->")
    x_dims, y_dims = factor_dims.split(",")

    def both(g: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        by_x = _einsum(f"{sum_dims},{y_dims}->{x_dims}", g, y).astype(x.dtype)
        # Of sums over two dims XLA swaps the factors back, into a form of bfloat16 that its CPU does not compute.
        if len(set(sum_dims) - set(y_dims)) > 1:
            return by_x, _einsum(f"{sum_dims},{x_dims}->{y_dims}", g, x).astype(y.dtype)
        swapped = f"{y_dims[:-2]}{y_dims[-1]}{y_dims[-2]}"
        if y_dims[-1] in x_dims:
            by_y = _einsum(f"{x_dims},{sum_dims}->{swapped}", x, g)
        else:
            by_y = _einsum(f"{sum_dims},{x_dims}->{swapped}", g, x)
        return by_x, by_y.swapaxes(-1, -2).astype(y.dtype)

    return with_one_dtype(both, g, x, y)


def with_one_dtype(both: Gradients, g: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`both`(g, x, y) with g in the dtype of x, as a product of two dtypes is computed in the wider one.

    A TPU is given g as it is: it rounds factors itself, within the product.
    """
    return jax.lax.platform_dependent(g, x, y, tpu=both, default=lambda g, x, y: both(g.astype(x.dtype), x, y))


def head_by_head(
    attended: Callable[..., jax.Array], q: jax.Array, k: jax.Array, v: jax.Array, *tables: jax.Array
) -> jax.Array:
    """`attended`(q, k, v [B, L, H, K], heads as `Scoring` has them, *tables) -> [B, L, H, K], on a CPU head by head.

    `tables` are of heads too, [H, ...]. Scores of one head stay in a CPU's cache between the operations on them, those
    of all heads do not. A mesh that splits heads computes them at once, like other platforms; rounding may differ.
    """

    def at_once(qkv: tuple[jax.Array, ...], tables: tuple[jax.Array, ...]) -> jax.Array:
        return attended(*qkv, None, *tables)

    def one_head(slices: tuple[tuple[jax.Array, ...], jax.Array, tuple[jax.Array, ...]]) -> jax.Array:
        qkv, head, tables = slices
        return attended(*(x[:, :, None] for x in qkv), head[None], *(x[None] for x in tables))[:, :, 0]

    def in_turn(qkv: tuple[jax.Array, ...], tables: tuple[jax.Array, ...]) -> jax.Array:
        heads = jnp.arange(q.shape[2], dtype=jnp.uint32)
        out = jax.lax.map(one_head, (tuple(jnp.moveaxis(x, 2, 0) for x in qkv), heads, tables))
        return jnp.moveaxis(out, 0, 2)

    if not tensors_are_whole():
        return at_once((q, k, v), tables)
    return jax.lax.platform_dependent((q, k, v), tables, cpu=in_turn, default=at_once)


# 3. A sum


def column_sums(x: jax.Array) -> jax.Array:
    """The float32 sum over rows, [n, V] -> [V]; as a product with ones, for a sum is several times slower on a CPU."""
    return jnp.einsum("n,nV->V", jnp.ones_like(x[:, 0]), x, preferred_element_type=jnp.float32)
