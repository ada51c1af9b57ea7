"""The product's gradients are those that JAX derives."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.model.layers import product


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("kernel", [(8, 32), (32, 8), (8, 3, 2, 4), (32, 3, 2, 4)], ids=str)
def test_gradients_are_those_derived_from_the_formula(kernel: tuple[int, ...], dtype) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    x, w, read = (
        jax.random.normal(key, shape, dtype)
        for key, shape in zip(keys, ((3, 7, kernel[0]), kernel, (3, 7, *kernel[1:])), strict=True)
    )

    def read_by(multiply) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        return jax.value_and_grad(lambda x, w: jnp.sum(multiply(x, w) * read, dtype=jnp.float32), argnums=(0, 1))(x, w)

    (value, found), (told, derived) = read_by(product), read_by(lambda x, w: jnp.tensordot(x, w, axes=1))
    assert value == told
    for ours, theirs in zip(found, derived, strict=True):
        assert ours.dtype == dtype and ours.shape == theirs.shape
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        assert np.linalg.norm(ours - theirs) <= 1e-6 * np.linalg.norm(theirs)
