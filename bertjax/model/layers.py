"""Building blocks of every network: activations, Dense, LayerNorm, the feed-forward net."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ModelConfig
from bertjax.model.parameters import Role, ones, weight, zeros
from bertjax.model.products import plus_bias, product, unstack
from bertjax.parallel.sharding import constrain

Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")


def recomputed(function: Callable[Inputs, Output], static: tuple[int, ...] = ()) -> Callable[Inputs, Output]:
    """Keep only the inputs of a function for the backward pass, and recompute its intermediate values there.

    For norms and element-wise arithmetic, where recomputing takes less time than writing and reading the values, and
    for a product at the end: no gradient needs its result, so it is not recomputed. `static` are the positions of
    arguments that are not arrays.
    """
    # prevent_cse is for straight-line code; the backward pass of a scan is a separate loop, with nothing to merge.
    return jax.checkpoint(function, prevent_cse=False, static_argnums=static)


@jax.custom_vjp
def gelu(x: jax.Array) -> jax.Array:
    """x Phi(x) through erf, as Hugging Face computes it; jax.nn.gelu uses erfc, which takes twice as long.

    GELU and its derivative, Phi(x) + x phi(x), are computed in float32 and rounded once; gradients keep only x.
    """
    wide = x.astype(jnp.float32)
    return (0.5 * wide * (1.0 + jax.lax.erf(wide * math.sqrt(0.5)))).astype(x.dtype)


def _gelu_backward(x: jax.Array, g: jax.Array) -> tuple[jax.Array]:
    wide = x.astype(jnp.float32)
    density = jnp.exp(-0.5 * jnp.square(wide)) * (1.0 / math.sqrt(2.0 * math.pi))
    slope = 0.5 * (1.0 + jax.lax.erf(wide * math.sqrt(0.5))) + wide * density
    return ((g.astype(jnp.float32) * slope).astype(x.dtype),)


gelu.defvjp(lambda x: (gelu(x), x), _gelu_backward)


def _in_float32(function: Callable[[jax.Array], jax.Array]) -> Callable[[jax.Array], jax.Array]:
    return lambda x: function(x.astype(jnp.float32)).astype(x.dtype)


ACTIVATIONS: dict[str, Callable[[jax.Array], jax.Array]] = {
    "gelu": gelu,
    "gelu_tanh": recomputed(_in_float32(partial(jax.nn.gelu, approximate=True))),
    "relu": recomputed(jax.nn.relu),
    "silu": recomputed(_in_float32(jax.nn.silu)),
}


class Dense(nnx.Module):
    """x @ kernel + bias, [..., in] -> [..., *out]; `bias_name` is the logical name of the bias' last dim."""

    def __init__(
        self,
        config: ModelConfig,
        sizes: tuple[int, ...],
        names: tuple[str, ...],
        bias_name: str,
        *,
        bias: bool = True,
        role: Role = "inner",
        rngs: nnx.Rngs,
    ) -> None:
        self.kernel = weight(rngs, sizes, names, config, role)
        self.bias = zeros(sizes[1:], (*names[1:-1], bias_name)) if bias else None

    def __call__(self, x: jax.Array) -> jax.Array:
        y = product(x, self.kernel[...])
        return y if self.bias is None else plus_bias(y, self.bias[...])

    def products(self, x: jax.Array) -> tuple[jax.Array, ...]:
        """Compute the slices of the result along its first output dim, [..., *out[1:]], by separate products."""
        products = [product(x, kernel) for kernel in unstack(self.kernel[...], axis=1)]
        if self.bias is None:
            return tuple(products)
        return tuple(map(plus_bias, products, unstack(self.bias[...], axis=0)))


class LayerNorm(nnx.Module):
    """Normalise the last dim in float32, whatever the dtype of x (epsilon 1e-12 in BERT).

    With `norm` rms, divide by the root mean square without centring (Zhang and Sennrich 2019).
    """

    def __init__(self, config: ModelConfig, width: int, bias: bool = True) -> None:
        self.scale = ones((width,), ("hidden",))
        self.bias = zeros((width,), ("hidden",)) if config.norm_bias and bias else None
        self.epsilon, self.centres = config.layer_norm_eps, config.norm == "layer"

    def __call__(self, x: jax.Array) -> jax.Array:
        bias = None if self.bias is None else self.bias[...]
        return _normalize(x, self.scale[...], bias, self.epsilon, self.centres)


@partial(recomputed, static=(3, 4))
def _normalize(x: jax.Array, scale: jax.Array, bias: jax.Array | None, epsilon: float, centres: bool) -> jax.Array:
    wide = x.astype(jnp.float32)
    if centres:
        wide = wide - wide.mean(axis=-1, keepdims=True)
    variance = jnp.mean(jnp.square(wide), axis=-1, keepdims=True)
    # Broadcast, so that the gradient sums over rows and tokens at once: with one row, a sum over tokens alone takes 80
    # times as long on a CPU.
    y = wide * jax.lax.rsqrt(variance + epsilon) * jnp.broadcast_to(scale, wide.shape)
    return (y if bias is None else plus_bias(y, bias)).astype(x.dtype)


class FeedForward(nnx.Module):
    """Dense, activation, dense: [B, L, D] -> [B, L, F] -> [B, L, D].

    With `mlp` glu the first matrix computes two arrays [B, L, F], and the activated first is multiplied with the second
    (Shazeer 2020). The two are a dim of the kernel, so that a mesh splits both alike.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        D, F = config.hidden_size, config.intermediate_size
        self.gated = config.mlp == "glu"
        sizes, names = ((D, 2, F), ("embed", "halves", "mlp")) if self.gated else ((D, F), ("embed", "mlp"))
        self.intermediate = Dense(config, sizes, names, "mlp", bias=config.mlp_bias == "all", rngs=rngs)
        has_bias = config.mlp_bias != "none"
        self.output = Dense(config, (F, D), ("mlp", "embed"), "hidden", bias=has_bias, role="output", rngs=rngs)
        self.activation = config.hidden_act

    def __call__(self, x_BLD: jax.Array) -> jax.Array:
        return self.contract(*self.expand(x_BLD))

    def expand(self, x_BLD: jax.Array) -> tuple[jax.Array, ...]:
        """Compute the input of the activation and, with `mlp` glu, the factor of its result: [B, L, F] each."""
        # Two products: on a TPU the gradients of the halves are then fused into the products that read them, and not
        # concatenated.
        parts = self.intermediate.products(x_BLD) if self.gated else (self.intermediate(x_BLD),)
        return tuple(constrain(part, "act_batch", "act_length", "act_mlp") for part in parts)

    def contract(self, h_BLF: jax.Array, gated_BLF: jax.Array | None = None) -> jax.Array:
        """Activate what `expand` returns, and project it back to the width of the network."""
        return _activate_and_project(h_BLF, gated_BLF, self.output, self.activation)


@partial(recomputed, static=(3,))
def _activate_and_project(h: jax.Array, gated: jax.Array | None, output: Dense, activation: str) -> jax.Array:
    # Includes the product, so that h and gated are the only arrays of the inner width that the backward pass keeps.
    activated = ACTIVATIONS[activation](h)
    return output(activated if gated is None else activated * gated)
