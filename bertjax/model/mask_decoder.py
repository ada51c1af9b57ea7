"""The enhanced mask decoder (DeBERTa, arXiv 2006.03654, section 3.2): absolute positions, added late."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ModelConfig
from bertjax.model.attention.positions import positions_in_sequence
from bertjax.model.attention.self_attention import LayerInputs
from bertjax.model.encoder import Encoder
from bertjax.model.parameters import weight
from bertjax.model.stack import Layer

_RUNS = 2  # of the last layer


class MaskDecoder(nnx.Module):
    """Run an encoder's last layer twice for the MLM head, with keys and values from H, the output of the layers below.

    The queries of the first run are H + P, where P is a learned vector for each position in the sequence. Those of the
    second run are the output of the first. Source: microsoft/DeBERTa, `apps/models/masked_language_model.py`;
    transformers never runs it (`z_steps` is 0).
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        sizes = config.max_position_embeddings, config.hidden_size
        self.position = weight(rngs, sizes, ("position", "embed"), config)

    def __call__(self, encoder: Encoder, x: jax.Array, inputs: LayerInputs) -> jax.Array:
        """Compute the input of the MLM head, [B, L, D], from x, the output of the encoder's embeddings."""
        below = encoder.config.num_hidden_layers - 1

        def step(layer: Layer, inputs: LayerInputs, x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return layer(x, inputs), None

        def repeated_step(layer: Layer, inputs: LayerInputs, queries: jax.Array, _: None) -> tuple[jax.Array, None]:
            return layer(x, inputs, queries), None

        if below:
            x, _ = encoder.stack.lower(below).run(step, x, inputs)
        queries = x + self._positions(inputs).astype(x.dtype)
        return encoder.stack.last_repeated(_RUNS).run(repeated_step, queries, inputs, first_number=below)[0]

    def _positions(self, inputs: LayerInputs) -> jax.Array:
        if inputs.packed:
            return jnp.take(self.position[...], positions_in_sequence(inputs.sequence_ids), axis=0, mode="clip")
        return self.position[: inputs.sequence_ids.shape[1]]
