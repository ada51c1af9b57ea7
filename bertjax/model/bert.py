"""BERT for pretraining: the encoder and the heads of its objectives, and its parameters as plain dicts."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from bertjax.config import ModelConfig
from bertjax.model.encoder import Encoder
from bertjax.model.heads import MlmHead, NspHead, Pooler, gather_positions
from bertjax.model.parameters import logical_axes
from bertjax.model.vocabulary_loss import Sums

Params = dict[str, Any]  # nested dicts of float32 arrays: no NNX object crosses a jit boundary


class Bert(nnx.Module):
    """Encoder, pooler, MLM head and NSP head."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(config, rngs=rngs)
        self.pooler = Pooler(config, rngs=rngs)
        self.mlm_head = MlmHead(config, rngs=rngs)
        self.nsp_head = NspHead(config, rngs=rngs)

    def mlm_logits(self, hidden_BLD: jax.Array, positions_BP: jax.Array) -> jax.Array:
        """Vocabulary logits at the given positions only: float32 [B, P, V padded]."""
        return self.mlm_head(gather_positions(hidden_BLD, positions_BP), self.encoder.embeddings.word[...])

    def mlm_sums(self, hidden_BLD: jax.Array, positions: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
        """Loss and hits summed over the weighted predictions; positions, labels and weights are [B, P]."""
        hidden_BPD = gather_positions(hidden_BLD, positions)
        return self.mlm_head.sums(hidden_BPD, self.encoder.embeddings.word[...], labels, weights)

    def nsp_logits(self, hidden_BLD: jax.Array, cls_positions_BS: jax.Array) -> jax.Array:
        """Next-sentence logits of every packed sequence: float32 [B, S, 2]."""
        return self.nsp_head(self.pooler(gather_positions(hidden_BLD, cls_positions_BS)))


def abstract_bert(config: ModelConfig) -> tuple[nnx.GraphDef, Params, dict[str, Any]]:
    """The model without its arrays: (graphdef, parameter shapes, logical axis names of every dim)."""
    graphdef, state = nnx.split(nnx.eval_shape(lambda: Bert(config, rngs=nnx.Rngs(0))))
    return graphdef, nnx.to_pure_dict(state), logical_axes(state)


def init_params(config: ModelConfig, key: jax.Array) -> Params:
    """Fresh parameters. Pure: run it under jit with output shardings to have them born where they live."""
    return nnx.to_pure_dict(nnx.state(Bert(config, rngs=nnx.Rngs(key)), nnx.Param))


def bind(graphdef: nnx.GraphDef, params: Params) -> Bert:
    """A callable model around plain parameters; for use inside a jitted function."""
    return nnx.merge(graphdef, nnx.State(params))
