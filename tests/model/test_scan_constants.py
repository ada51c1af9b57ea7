"""The gradient of a scan over layers stores no layer-independent array of the size of the scores."""

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import bertjax.model.dropout
from bertjax.model import products
from bertjax.model.attention import backends, positions
from bertjax.model.attention.backends import attend
from bertjax.model.dropout import MLP_OUTPUT, dropout

B, H, K, LAYERS = 2, 4, 8, 3
SHORT, LONG = 64, 2 * backends.WHOLE_ROWS


def largest_constant(function: Callable, inputs: Sequence[jax.ShapeDtypeStruct]) -> int:
    """Size of the largest constant of the scans over layers in the gradient of a function."""
    eqns = jax.make_jaxpr(jax.grad(function))(*inputs).eqns
    scans = [e for e in eqns if e.primitive.name == "scan" and e.params["length"] == LAYERS]
    assert len(scans) == 2, "one forward, one backward"
    return max((v.aval.size for e in scans for v in e.invars[: constant_count(e)]), default=0)


def constant_count(scan: Any) -> int:
    """The number of constants of a scan: its inputs that are neither carried nor sliced by layer."""
    body = scan.params["jaxpr"].jaxpr
    sliced = sum(v.aval.shape != inner.aval.shape for v, inner in zip(scan.invars, body.invars, strict=True))
    carried = sum(v.aval.shape == inner.aval.shape for v, inner in zip(scan.outvars, body.outvars, strict=True))
    return len(scan.invars) - sliced - carried


def largest_attention_constant(length: int, slopes: tuple[float, ...] = ()) -> int:
    """Size of the largest constant of a scan over layers of attention and dropout."""

    def total(x: jax.Array, ids: jax.Array, keys: jax.Array) -> jax.Array:
        def layer(x: jax.Array, keys: jax.Array) -> tuple[jax.Array, None]:
            options = {"packed": True, "causal": False, "dropout_keys": keys, "dropout_rate": 0.1, "slopes": slopes}
            mixed = attend("xla", x, jnp.sin(x), x, ids, **options)
            return x + dropout(mixed, keys, MLP_OUTPUT, 0.1), None

        return jnp.sum(jax.lax.scan(layer, x, keys)[0])

    shapes = [(B, length, H, K), (B, length), (LAYERS, B)]
    inputs = [jax.ShapeDtypeStruct(s, d) for s, d in zip(shapes, (jnp.float32, jnp.int32, jnp.uint32), strict=True)]
    return largest_constant(total, inputs)


@pytest.mark.parametrize("length", [SHORT, LONG])
@pytest.mark.parametrize("slopes", [(), (0.5, 0.25, 0.125, 0.0625)])
def test_scan_carries_no_constants_like_the_scores(length, slopes):
    # Whole rows: a mask for all heads, positions for dropout, and slopes times distances. Long rows: those of a block.
    allowed = max(B, H) * length * length if length == SHORT else B * H * positions.QUERIES * length
    assert largest_attention_constant(length, slopes) <= allowed


@pytest.mark.parametrize(("length", "module", "tie"), [(SHORT, products, "stay_beside"), (LONG, positions, "beside")])
def test_scan_without_beside_carries_constants_like_the_scores(monkeypatch, length, module, tie):
    monkeypatch.setattr(module, tie, lambda x, constants: constants)
    assert largest_attention_constant(length) >= B * H * length * length


def test_scan_carries_no_zeros_of_dropout(monkeypatch):
    def largest_dropout_constant(length: int) -> int:
        def total(x: jax.Array, keys: jax.Array) -> jax.Array:
            return jnp.sum(jax.lax.scan(lambda x, keys: (dropout(jnp.sin(x), keys, MLP_OUTPUT, 0.1), None), x, keys)[0])

        inputs = jax.ShapeDtypeStruct((B, length), jnp.float32), jax.ShapeDtypeStruct((LAYERS, B), jnp.uint32)
        return largest_constant(total, inputs)

    assert largest_dropout_constant(64) <= 64  # positions
    monkeypatch.setattr(bertjax.model.dropout.jax.lax, "optimization_barrier", lambda x: x)
    assert largest_dropout_constant(96) == B * 96  # another length, since JAX caches traces
