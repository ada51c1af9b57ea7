"""Products, biases and slices with gradients of their own; the factors lie as XLA multiplies them fastest.

On a CPU with AVX512-BF16, XLA multiplies bfloat16 at twice the rate of float32 where the result is float32, the sum is
over the last dim of the first factor, and both factors lie in memory row by row. In any other form it converts them to
float32 before. Other platforms take every form at full speed.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
from jax.ad_checkpoint import checkpoint_name
from jax.typing import DTypeLike

from bertjax.parallel.sharding import tensors_are_whole

Gradients = Callable[[jax.Array, jax.Array, jax.Array], tuple[jax.Array, jax.Array]]
PRODUCT = "product"  # name that a policy of `jax.checkpoint` knows the results of `product` by


def product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    """x kernel in the dtype of x: [..., in] and [in, *out] -> [..., *out].

    The kernel's gradient has the dtype of the kernel. On a CPU it is not rounded to that of x before, which would take
    two more passes over it there; on accelerators the casts are part of other passes, and narrow products move less.
    """
    return checkpoint_name(_product(x, kernel), PRODUCT)


@jax.custom_vjp
def _product(x: jax.Array, kernel: jax.Array) -> jax.Array:
    return by_rows(x, kernel.astype(x.dtype))


def _product_forward(x: jax.Array, kernel: jax.Array) -> tuple[jax.Array, tuple[jax.Array, ...]]:
    cast = kernel.astype(x.dtype)
    return by_rows(x, cast), (x, cast, jnp.zeros((), kernel.dtype))


def _product_backward(kept: tuple[jax.Array, ...], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    """The derivative of the product, with the factors of the kernel's gradient in another order than JAX derives.

    JAX puts g first, and XLA on a CPU transposes the first factor in memory: where g is four times as wide as x, the
    gradient takes a third longer at 896 rows and three times as long at 1,024. Here the narrower factor is first; but
    in the form for bfloat16 on a CPU always x, for the result would be transposed in float32.
    """
    x, kernel, of_parameters = kept
    dims, dtype = x.ndim - 1, of_parameters.dtype

    def narrower_first(x: jax.Array, g: jax.Array) -> jax.Array:
        if kernel.shape[0] <= math.prod(kernel.shape[1:]):
            return _contracted(x, g, dims=dims, dtype=x.dtype).astype(dtype)
        return jnp.moveaxis(_contracted(g, x, dims=dims, dtype=x.dtype), -1, 0).astype(dtype)

    by_kernel = _by_platform(partial(_columns_by_rows, dims=dims, dtype=dtype), narrower_first, x, g)
    return _times_transposed(g, kernel), by_kernel


_product.defvjp(_product_forward, _product_backward)


def _times_transposed(g: jax.Array, kernel: jax.Array) -> jax.Array:
    """g kernel^T: [..., *out] and [in, *out] -> [..., in].

    Over one dim on a CPU: where the sum is over several, XLA transposes the kernel in memory, which takes half as long
    as the product in float32, and twice as long in bfloat16.
    """
    rows = g.ndim - kernel.ndim + 1
    as_it_is = partial(by_rows, axes=(tuple(range(rows, g.ndim)), tuple(range(1, kernel.ndim))))
    if kernel.ndim == 2 or not tensors_are_whole():
        return as_it_is(g, kernel)

    def joined(g: jax.Array, kernel: jax.Array) -> jax.Array:
        return by_rows(g.reshape(*g.shape[:rows], -1), kernel.reshape(len(kernel), -1), ((rows,), (1,)))

    return jax.lax.platform_dependent(g, kernel, cpu=joined, default=as_it_is)


def by_rows(x: jax.Array, y: jax.Array, axes: int | tuple[tuple[int, ...], tuple[int, ...]] = 1) -> jax.Array:
    """`tensordot(x, y, axes)`, the sum over the last dims of x; rounded to the dtype of x."""

    def wide(x: jax.Array, y: jax.Array) -> jax.Array:
        return jnp.tensordot(x, y, axes, preferred_element_type=jnp.float32).astype(x.dtype)

    return _by_platform(wide, partial(jnp.tensordot, axes=axes), x, y)


def over_rows(x: jax.Array, y: jax.Array, dims: int, dtype: DTypeLike) -> jax.Array:
    """x^T y: [*rows, *in] and [*rows, *out] -> [*in, *out], the sum over the first `dims` dims; in that dtype."""
    how = {"dims": dims, "dtype": dtype}
    return _by_platform(partial(_columns_by_rows, **how), partial(_contracted, **how), x, y)


def _contracted(x: jax.Array, y: jax.Array, *, dims: int, dtype: DTypeLike) -> jax.Array:
    rows = tuple(range(dims))
    return jnp.tensordot(x, y, (rows, rows), preferred_element_type=dtype)


def _columns_by_rows(x: jax.Array, y: jax.Array, *, dims: int, dtype: DTypeLike) -> jax.Array:
    count = math.prod(x.shape[:dims])
    # XLA computes what it merges with a transposition in the order of the columns: GELU takes ten times as long there.
    rows = jax.lax.optimization_barrier(x).reshape(count, -1)
    # In one dim, since XLA takes a transposition that it sees into the product, which then has the slow form.
    columns = jax.lax.optimization_barrier(rows.T.reshape(-1)).reshape(-1, count)
    found = jnp.matmul(columns, y.reshape(count, -1), preferred_element_type=jnp.float32)
    return found.astype(dtype).reshape(*x.shape[dims:], *y.shape[dims:])


def with_one_dtype(both: Gradients, g: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """`both`(g, x, y) with g in the dtype of x, as a product of two dtypes is computed in the wider one.

    A TPU is given g as it is: it rounds factors itself, within the product.
    """
    return jax.lax.platform_dependent(g, x, y, tpu=both, default=lambda g, x, y: both(g.astype(x.dtype), x, y))


@partial(jax.custom_vjp, nondiff_argnums=(0,))
def summed(dims: str, x: jax.Array, y: jax.Array) -> jax.Array:
    """`einsum` to float32, of which the backward pass, too, multiplies arrays of the dtype of x and y.

    What JAX derives has a factor of float32, so that a CPU and a GPU compute all in float32. The gradient of y is made
    with its last two dims swapped, the factor that has its last dim first, where it is a sum over one dim: a CPU takes
    a third to half of the time.
    """
    return jnp.einsum(dims, x, y, preferred_element_type=jnp.float32)


def _summed_backward(dims: str, factors: tuple[jax.Array, jax.Array], g: jax.Array) -> tuple[jax.Array, jax.Array]:
    of_factors, _, of_sum = dims.partition("->")
    of_x, of_y = of_factors.split(",")

    def both(g: jax.Array, x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
        product = partial(jnp.einsum, preferred_element_type=jnp.float32)
        by_x = product(f"{of_sum},{of_y}->{of_x}", g, y).astype(x.dtype)
        # Of sums over two dims XLA swaps the factors back, into a form of bfloat16 that its CPU does not compute.
        if len(set(of_sum) - set(of_y)) > 1:
            return by_x, product(f"{of_sum},{of_x}->{of_y}", g, x).astype(y.dtype)
        swapped = f"{of_y[:-2]}{of_y[-1]}{of_y[-2]}"
        named, factors = (f"{of_x},{of_sum}", (x, g)) if of_y[-1] in of_x else (f"{of_sum},{of_x}", (g, x))
        return by_x, product(f"{named}->{swapped}", *factors).swapaxes(-1, -2).astype(y.dtype)

    return with_one_dtype(both, g, *factors)


summed.defvjp(lambda dims, x, y: (summed(dims, x, y), (x, y)), _summed_backward)


def unstack(x: jax.Array, axis: int) -> tuple[jax.Array, ...]:
    """The slices of x along an axis; the gradient puts theirs side by side, where that of x[i] adds padded ones."""
    return tuple(part.squeeze(axis) for part in jax.lax.split(x, (1,) * x.shape[axis], axis))


@jax.custom_vjp
def plus_bias(y: jax.Array, bias: jax.Array) -> jax.Array:
    """y + bias in the dtype of y: [*rows, *out] and [*out]; the bias' gradient is summed in float32.

    The gradient that JAX derives is a sum in the dtype of y. In bfloat16 it is rounded after each row, and a CPU takes
    twenty times as long for it.
    """
    return y + bias.astype(y.dtype)


def _plus_bias_forward(y: jax.Array, bias: jax.Array) -> tuple[jax.Array, jax.Array]:
    return plus_bias(y, bias), bias


def _plus_bias_backward(bias: jax.Array, g: jax.Array) -> tuple[jax.Array, jax.Array]:
    return g, jnp.sum(g, range(g.ndim - bias.ndim), dtype=jnp.float32).astype(bias.dtype)


plus_bias.defvjp(_plus_bias_forward, _plus_bias_backward)


def _by_platform(
    of_cpu: Callable[[jax.Array, jax.Array], jax.Array],
    of_others: Callable[[jax.Array, jax.Array], jax.Array],
    x: jax.Array,
    y: jax.Array,
) -> jax.Array:
    """bfloat16 on a CPU has its own form; chosen where the program is lowered, so that a plan has its machine's."""
    if x.dtype != jnp.bfloat16:
        return of_others(x, y)
    return jax.lax.platform_dependent(x, y, cpu=of_cpu, default=of_others)
