"""The encoder: embeddings and the stack of layers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.model.attention.backends import Backend
from bertjax.model.dropout import fold
from bertjax.model.embeddings import Embeddings
from bertjax.model.stack import Layer, Step, run_layers, stacked_layers


class Encoder(nnx.Module):
    """From token ids to one vector per token."""

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        self.embeddings = Embeddings(config, execution, rngs=rngs)
        self.layers = stacked_layers(config, rngs=rngs)
        self.config, self.execution = config, execution

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        sequence_ids: jax.Array,
        dropout_keys: jax.Array | None = None,
        *,
        packed: bool = True,
        attention: Backend = "xla",
    ) -> jax.Array:
        """Hidden states of the last layer, [B, L, D] in the compute dtype.

        The three inputs are int32 [B, L]; dropout_keys is uint32 [B], or None to run without dropout. `packed=False`
        means that every row is one sequence that starts at position 0: this saves a gather of the position table.
        `attention` is the back end that `choose_attention` gives for these rows; the default is the reference.
        """
        x = self.embeddings(input_ids, token_type_ids, sequence_ids, dropout_keys, packed)

        def step(layer: Layer, number: jax.Array, window: int, x: jax.Array, _: Any) -> tuple[jax.Array, None]:
            keys = None if dropout_keys is None else fold(dropout_keys, number + 1)
            return layer(x, sequence_ids, keys, packed, attention, window), None

        return self.through_layers(step, x)[0]

    def hidden_states(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        sequence_ids: jax.Array,
        *,
        packed: bool = True,
        attention: Backend = "xla",
    ) -> jax.Array:
        """The input of the first layer and the output of each layer, without dropout: [layers + 1, B, L, D]."""
        first = self.embeddings(input_ids, token_type_ids, sequence_ids, None, packed)

        def step(layer: Layer, _: jax.Array, window: int, x: jax.Array, __: Any) -> tuple[jax.Array, jax.Array]:
            x = layer(x, sequence_ids, None, packed, attention, window)
            return x, x

        return jnp.concatenate([first[None], self.through_layers(step, first)[1]])

    def through_layers(self, step: Step, x: jax.Array, extras: Any = None) -> tuple[jax.Array, Any]:
        """`run_layers` with this encoder's layers: (output of the last layer, what `step` collects of each)."""
        return run_layers(self.config, self.execution, self.layers, step, x, extras)
