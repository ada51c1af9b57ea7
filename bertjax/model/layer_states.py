"""What single layers of an encoder compute: vectors, queries and keys, for objectives that compare layers."""

from __future__ import annotations

from typing import NamedTuple

import jax

from bertjax.model.attention.backends import Backend
from bertjax.model.attention.self_attention import LayerInputs
from bertjax.model.encoder import TaskNetwork
from bertjax.model.stack import Layer


class LayerStates(NamedTuple):
    """Arrays of M layers, in the compute dtype; heads have K = D / H dims."""

    embeddings: jax.Array  # [B, L, D]: the input of the first layer
    hidden: jax.Array  # [M, B, L, D]: what each layer gives to the next
    queries: jax.Array  # [M, B, L, H, K]
    keys: jax.Array  # [M, B, L, H, K]


def layer_states(
    network: TaskNetwork,
    input_ids: jax.Array,
    token_type_ids: jax.Array,
    sequence_ids: jax.Array,
    dropout_keys: jax.Array | None = None,
    *,
    count: int,
    packed: bool,
    attention: Backend,
) -> LayerStates:
    """The states of `count` layers, which must divide the number N of layers: of layer N / count and its multiples.

    Layers are counted from 1. The other arguments are those of the encoder.
    """
    encoder = network.encoder
    x = encoder.embeddings(input_ids, token_type_ids, sequence_ids, dropout_keys, packed)

    def step(layer: Layer, inputs: LayerInputs, x: jax.Array, _: None) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        # The layer computes the same product of the same arrays, which the compiler does once for both.
        q, k, _v = layer.attention.projected(layer.attention_input(x), inputs)
        x = layer(x, inputs)
        return x, (x, q, k)

    states = encoder.stack.run(step, x, encoder.layer_inputs(sequence_ids, dropout_keys, packed, attention))[1]
    every = len(states[0]) // count
    return LayerStates(x, *jax.tree.map(lambda stack: stack[every - 1 :: every], states))
