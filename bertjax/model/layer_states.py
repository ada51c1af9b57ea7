"""Hidden states, queries and keys of single layers, for objectives that compare layers."""

from __future__ import annotations

from typing import NamedTuple

import jax

from bertjax.model.attention.backends import Backend
from bertjax.model.attention.self_attention import LayerInputs
from bertjax.model.encoder import TaskNetwork
from bertjax.model.stack import Layer


class LayerStates(NamedTuple):
    """States of M layers, in the compute dtype; K = D / H."""

    embeddings: jax.Array  # [B, L, D]: the input of the first layer
    hidden: jax.Array  # [M, B, L, D]: the output of each layer
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
    """Compute the states of `count` layers: layer N / count and its multiples, where `count` divides N.

    The N layers are counted from 1. The other arguments are as in `Encoder.__call__`.
    """
    encoder = network.encoder
    x = encoder.embeddings(input_ids, token_type_ids, sequence_ids, dropout_keys, packed)

    def step(layer: Layer, inputs: LayerInputs, x: jax.Array, _: None) -> tuple[jax.Array, tuple[jax.Array, ...]]:
        # The layer computes this product again; the compiler merges the two.
        q, k, _v = layer.attention.projected(layer.attention_input(x), inputs)
        x = layer(x, inputs)
        return x, (x, q, k)

    states = encoder.stack.run(step, x, encoder.layer_inputs(sequence_ids, dropout_keys, packed, attention))[1]
    every = len(states[0]) // count
    return LayerStates(x, *jax.tree.map(lambda stack: stack[every - 1 :: every], states))
