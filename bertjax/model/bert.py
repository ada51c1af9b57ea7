"""BERT for pretraining: the encoder and the heads of its objectives; and any network's parameters as plain dicts."""

from __future__ import annotations

from typing import Any

import jax
from flax import nnx

from bertjax.config import DEFAULT_EXECUTION, ExecutionConfig, ModelConfig
from bertjax.model.attention.backends import Backend
from bertjax.model.encoder import Encoder
from bertjax.model.heads import MlmHead, NspHead, Pooler, gather_positions
from bertjax.model.parameters import logical_axes
from bertjax.model.task_heads import TASK_NETWORKS, TaskNetwork
from bertjax.model.vocabulary_loss import Sums

Params = dict[str, Any]  # nested dicts of float32 arrays: no NNX object crosses a jit boundary


class Bert(nnx.Module):
    """Encoder, pooler, MLM head and NSP head."""

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(config, execution, rngs=rngs)
        self.pooler = Pooler(config, rngs=rngs)
        self.mlm_head = MlmHead(config, execution, rngs=rngs)
        self.nsp_head = NspHead(config, rngs=rngs)

    def encode(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        sequence_ids: jax.Array,
        keys: jax.Array | None = None,
        *,
        packed: bool = True,
        attention: Backend = "xla",
    ) -> jax.Array:
        """What the objectives see of a batch: the encoder's last layer, [B, L, D]."""
        return self.encoder(input_ids, token_type_ids, sequence_ids, keys, packed=packed, attention=attention)

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


Network = Bert | TaskNetwork


def _network(config: ModelConfig, execution: ExecutionConfig, rngs: nnx.Rngs) -> Network:
    """The network with the head that the config names."""
    return (Bert if config.head == "pretraining" else TASK_NETWORKS[config.head])(config, execution, rngs=rngs)


def abstract_bert(
    config: ModelConfig, execution: ExecutionConfig = DEFAULT_EXECUTION
) -> tuple[nnx.GraphDef, Params, dict[str, Any]]:
    """The model without its arrays: (graphdef, parameter shapes, logical axis names of every dim)."""
    graphdef, state = nnx.split(nnx.eval_shape(lambda: _network(config, execution, nnx.Rngs(0))))
    return graphdef, nnx.to_pure_dict(state), logical_axes(state)


def init_params(config: ModelConfig, key: jax.Array) -> Params:
    """Fresh parameters. Pure: run it under jit with output shardings to have them born where they live."""
    return nnx.to_pure_dict(nnx.state(_network(config, DEFAULT_EXECUTION, nnx.Rngs(key)), nnx.Param))


def bind(graphdef: nnx.GraphDef, params: Params) -> Network:
    """A callable model around plain parameters; for use inside a jitted function."""
    return nnx.merge(graphdef, nnx.State(params))
