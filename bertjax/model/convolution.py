"""DeBERTa v2's convolution over neighbouring tokens, added to the output of the first layer."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ModelConfig
from bertjax.model.dropout import CONVOLUTION, dropout
from bertjax.model.layers import ACTIVATIONS, LayerNorm
from bertjax.model.parameters import weight, zeros
from bertjax.model.products import plus_bias, product


class Convolution(nnx.Module):
    """LayerNorm(y + gelu(dropout(conv(x)))), where x is the input and y the output of a layer, both [B, L, D].

    The kernel spans `conv_kernel` tokens, centred on each token. Tokens of other sequences and padding count as zero.
    Source: transformers' `ConvLayer` with `conv_act` gelu, as in microsoft/deberta-v2-xlarge.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        D = config.hidden_size
        self.kernel = weight(rngs, (D, config.conv_kernel, D), ("embed", "taps", "hidden"), config)
        self.bias = zeros((D,), ("hidden",))
        self.norm = LayerNorm(config, D)
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(
        self, x_BLD: jax.Array, y_BLD: jax.Array, sequence_ids: jax.Array, keys: jax.Array | None
    ) -> jax.Array:
        D, taps, _ = self.kernel.shape
        reach, length = taps // 2, x_BLD.shape[1]
        real = jnp.where(sequence_ids[..., None] > 0, x_BLD, 0)
        around = jnp.pad(real, [(0, 0), (reach, reach), (0, 0)])
        ids = jnp.pad(sequence_ids, [(0, 0), (reach, reach)])
        neighbours = [
            jnp.where(
                (ids[:, tap : tap + length] == sequence_ids)[..., None], around[:, tap : tap + length], 0
            )
            for tap in range(taps)
        ]  # fmt: skip
        context = jnp.stack(neighbours, axis=-1).reshape(*x_BLD.shape[:2], D * taps)
        y = product(context, self.kernel[...].reshape(D * taps, D))
        y = plus_bias(y, self.bias[...])
        return self.norm(y_BLD + ACTIVATIONS["gelu"](dropout(y, keys, CONVOLUTION, self.dropout_rate)))
