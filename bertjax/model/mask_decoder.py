"""The enhanced mask decoder (DeBERTa, arXiv 2006.03654, section 3.2): absolute positions, added late."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ModelConfig
from bertjax.model.attention.backends import Backend
from bertjax.model.attention.positions import positions_in_sequence
from bertjax.model.dropout import fold
from bertjax.model.encoder import Encoder
from bertjax.model.parameters import weight
from bertjax.model.stack import Layer, layers_from, run_layers

_RUNS = 2  # of the last layer


class MaskDecoder(nnx.Module):
    """The last layer of an encoder run twice for the MLM head, with keys and values of what the layers below give, H.

    The first run's queries are H + P, P a learned vector of each position in the sequence; the second run's are the
    first one's output. Source: microsoft/DeBERTa, `apps/models/masked_language_model.py`. transformers never runs it
    (`z_steps` is 0).
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        sizes = config.max_position_embeddings, config.hidden_size
        self.position = weight(rngs, sizes, ("position", "embed"), config)

    def __call__(
        self,
        encoder: Encoder,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        sequence_ids: jax.Array,
        dropout_keys: jax.Array | None = None,
        *,
        packed: bool = True,
        attention: Backend = "xla",
    ) -> jax.Array:
        """What the MLM head reads, [B, L, D]; the arguments are those of the encoder."""
        config, relative = encoder.config, encoder.of_distances()
        x = encoder.embeddings(input_ids, token_type_ids, sequence_ids, dropout_keys, packed)
        below = config.num_hidden_layers - 1

        def keys_of(number: jax.Array) -> jax.Array | None:
            return None if dropout_keys is None else fold(dropout_keys, number + 1)

        def step(layer: Layer, number: jax.Array, window: int, x: jax.Array, _: Any) -> tuple[jax.Array, None]:
            return layer(x, sequence_ids, keys_of(number), packed, attention, window, relative), None

        stacked = below - (encoder.first_layer is not None)
        lower = layers_from(encoder.layers, 0, stacked)
        if below:
            of_lower = replace(config, num_hidden_layers=below), encoder.execution, encoder.first_layer, lower
            x, _ = run_layers(*of_lower, step, x)

        def again(layer: Layer, run: jax.Array, window: int, asking: jax.Array, _: Any) -> tuple[jax.Array, None]:
            keys = keys_of(run + below)
            return layer(x, sequence_ids, keys, packed, attention, window, relative, asking), None

        twice = replace(config, num_hidden_layers=_RUNS, layer_groups=1), encoder.execution, None
        last = layers_from(encoder.layers, stacked, stacked + 1)
        return run_layers(*twice, last, again, x + self._positions(sequence_ids, packed).astype(x.dtype))[0]

    def _positions(self, sequence_ids: jax.Array, packed: bool) -> jax.Array:
        if packed:
            return jnp.take(self.position[...], positions_in_sequence(sequence_ids), axis=0, mode="clip")
        return self.position[: sequence_ids.shape[1]]
