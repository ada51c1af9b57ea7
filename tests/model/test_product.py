"""Products: their gradients equal those that JAX derives, and bfloat16 factors are not converted to float32."""

from __future__ import annotations

import re
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.families.networks import abstract_network
from bertjax.model import products
from bertjax.model.network import Params, bind
from bertjax.model.products import over_rows, plus_bias, product, summed, unstack


def test_only_products_imports_cpu_forms() -> None:
    package = Path(products.__file__).parent.parent
    importers = [file for file in package.rglob("*.py") if "bertjax.model.cpu" in file.read_text(encoding="utf-8")]
    assert importers == [Path(products.__file__)]


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize("kernel", [(8, 32), (32, 8), (8, 3, 2, 4), (32, 3, 2, 4)], ids=str)
def test_product_gradients_equal_derived_gradients(kernel: tuple[int, ...], dtype) -> None:
    keys = jax.random.split(jax.random.key(0), 3)
    x, w, read = (
        jax.random.normal(key, shape, dtype)
        for key, shape in zip(keys, ((3, 7, kernel[0]), kernel, (3, 7, *kernel[1:])), strict=True)
    )

    def loss_and_gradients(multiply) -> tuple[jax.Array, tuple[jax.Array, jax.Array]]:
        return jax.value_and_grad(lambda x, w: jnp.sum(multiply(x, w) * read, dtype=jnp.float32), argnums=(0, 1))(x, w)

    loss, gradients = loss_and_gradients(product)
    derived_loss, derived_gradients = loss_and_gradients(lambda x, w: jnp.tensordot(x, w, axes=1))
    assert loss == derived_loss
    for ours, theirs in zip(gradients, derived_gradients, strict=True):
        assert ours.dtype == dtype and ours.shape == theirs.shape
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        assert np.linalg.norm(ours - theirs) <= 1e-6 * np.linalg.norm(theirs)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="accelerators round kernel gradients, see `product`")
@pytest.mark.parametrize("kernel", [(8, 32), (32, 3, 2, 4)], ids=str)
def test_kernel_gradients_are_not_rounded(kernel: tuple[int, ...]) -> None:
    x_key, w_key, g_key = jax.random.split(jax.random.key(0), 3)
    x, w = jax.random.normal(x_key, (5, kernel[0]), jnp.bfloat16), jax.random.normal(w_key, kernel)
    g = jax.random.normal(g_key, (5, *kernel[1:]), jnp.bfloat16)
    y, back = jax.vjp(product, x, w)
    dx, dw = back(g)
    exact = np.tensordot(np.asarray(x, np.float64).T, np.asarray(g, np.float64), 1)
    assert (y.dtype, dx.dtype, dw.dtype) == (jnp.bfloat16, jnp.bfloat16, jnp.float32)
    np.testing.assert_allclose(dw, exact, rtol=0, atol=1e-6 * np.abs(exact).max())


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
def test_over_rows_returns_the_requested_dtype(dtype) -> None:
    x, y = (jax.random.normal(jax.random.key(n), (5, 3, width), jnp.bfloat16) for n, width in enumerate((4, 6)))
    actual = jax.jit(lambda x, y: over_rows(x, y, 2, dtype))(x, y)
    exact = np.einsum("abi,abo->io", np.asarray(x, np.float64), np.asarray(y, np.float64))
    assert actual.dtype == dtype
    assert np.abs(np.asarray(actual, np.float64) - exact).max() <= jnp.finfo(dtype).eps * np.abs(exact).max()


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16])
@pytest.mark.parametrize(
    "dims",
    [
        "BHLK,BHMK->BHLM",
        "BHLM,BHMK->BHLK",
        "BHNCK,BHNMK->BHNCM",
        "BHNCM,BHNMK->BHNCK",
        "HBCK,HMK->HBCM",
        "HNBCK,HNMK->HNBCM",
    ],
)
def test_summed_gradients_have_the_dtype_of_the_factors(dims: str, dtype) -> None:
    sizes = {"B": 2, "H": 2, "N": 3, "C": 8, "L": 8, "M": 15, "K": 4}
    factor_dims, _, sum_dims = dims.partition("->")
    names = [*factor_dims.split(","), sum_dims]
    x, y, g = (
        jax.random.normal(jax.random.key(n), [sizes[name] for name in each], dtype) for n, each in enumerate(names)
    )
    actual, back = jax.vjp(lambda x, y: summed(dims, x, y), x, y)
    dx, dy = jax.jit(back)(g.astype(jnp.float32))
    assert (actual.dtype, dx.dtype, dy.dtype) == (jnp.float32, dtype, dtype)
    exact = [np.asarray(array, np.float64) for array in (x, y, g)]
    for number, ours in ((2, actual), (0, dx), (1, dy)):
        one, other = (n for n in range(3) if n != number)
        expected = np.einsum(f"{names[one]},{names[other]}->{names[number]}", exact[one], exact[other])
        tolerance = 2 * float(jnp.finfo(ours.dtype).eps)
        assert np.abs(np.asarray(ours, np.float64) - expected).max() <= tolerance * np.abs(expected).max()


@pytest.mark.parametrize("out", [(5,), (3, 2, 4)], ids=str)
def test_bias_gradient_is_summed_in_float32(out: tuple[int, ...]) -> None:
    # 4,096 terms of about 1: a sum in bfloat16 stops growing at 256.
    rows = np.random.default_rng(0).uniform(0.5, 1.5, (32, 128, *out))
    y, bias = jnp.asarray(rows, jnp.bfloat16), jnp.ones(out, jnp.float32)
    actual, back = jax.vjp(plus_bias, y, bias)
    assert actual.dtype == jnp.bfloat16 and (actual == y + bias.astype(y.dtype)).all()
    dy, dbias = back(y)
    exact = np.asarray(y, np.float64).sum((0, 1))
    assert (dy == y).all() and dbias.dtype == jnp.float32
    np.testing.assert_allclose(dbias, exact, rtol=1e-6)


def test_step_does_not_sum_in_bfloat16() -> None:
    model = ModelConfig(vocab_size=64, hidden_size=16, num_attention_heads=2, num_hidden_layers=2, intermediate_size=64)
    execution = ExecutionConfig(dtype="bfloat16", scan_unroll=2)
    batch = np.ones((2, 8), np.int32)

    def loss(params: Params) -> jax.Array:
        network = bind(abstract_network(model, execution)[0], params)
        hidden = network.encode(batch, batch - 1, batch)
        return network.mlm_sums(hidden, batch[:, :2], batch[:, :2], jnp.ones((2, 2))).loss

    text = str(jax.make_jaxpr(jax.grad(loss))(abstract_network(model)[1]))
    sums = re.findall(r"(\w+)\[[\d,]*\] = (?:reduce_sum|cumsum)\[", text)
    assert sums and set(sums) <= {"f32", "i32"}


@pytest.mark.parametrize("axis", [0, 1])
def test_unstack_equals_indexing(axis: int) -> None:
    x, read = (jax.random.normal(jax.random.key(n), (2, 2, 5)) for n in range(2))

    def loss_and_gradient(slices) -> tuple[jax.Array, jax.Array]:
        return jax.value_and_grad(lambda x: sum(jnp.vdot(jnp.sin(s), r) for s, r in zip(slices(x), read, strict=True)))(
            x
        )

    ours = loss_and_gradient(lambda x: unstack(x, axis))
    expected = loss_and_gradient(lambda x: [jnp.take(x, n, axis) for n in range(2)])
    np.testing.assert_array_equal(ours[1], expected[1])
    assert ours[0] == expected[0]


_FLAGS = Path("/proc/cpuinfo").read_text() if Path("/proc/cpuinfo").exists() else ""


@pytest.mark.skipif("avx512_bf16" not in _FLAGS, reason="this CPU has no bfloat16 products")
@pytest.mark.parametrize("out", [(3072,), (3, 12, 64)], ids=str)
def test_bfloat16_step_has_no_float32_factors(out: tuple[int, ...]) -> None:
    x, kernel = jnp.zeros((2, 64, 768), jnp.bfloat16), jnp.zeros((768, *out), jnp.bfloat16)

    def step(x: jax.Array, kernel: jax.Array) -> jax.Array:
        return jnp.sum(jnp.square(product(x, kernel)), dtype=jnp.float32)

    text = jax.jit(jax.grad(step, argnums=(0, 1))).lower(x, kernel).compile().as_text()
    dtypes = dict(re.findall(r"(%[\w.]+) = (\w+)\[", text))
    factors = [(dtypes[x], dtypes[y]) for x, y in re.findall(r" dot\((%[\w.]+), (%[\w.]+)\)", text)]
    assert factors == [("bf16", "bf16")] * 3
