"""BERT for pretraining: the encoder and the heads of its objectives; and any network's parameters as plain dicts."""

from __future__ import annotations

import difflib
from typing import Any

import jax
from flax import nnx

from bertjax.config import DEFAULT_EXECUTION, ExecutionConfig, ModelConfig
from bertjax.model.heads import MlmHead, NspHead, Pooler, gather_positions
from bertjax.model.parameters import logical_axes
from bertjax.model.task_heads import TASK_NETWORKS, TaskNetwork
from bertjax.model.vocabulary_loss import Sums

Params = dict[str, Any]  # nested dicts of float32 arrays: no NNX object crosses a jit boundary


class Bert(TaskNetwork):
    """Encoder, pooler, MLM head and NSP head."""

    name, transformers, transformers_head = "pretraining", "ForPreTraining", ""
    outputs = ()
    of_task = False
    pooled = True

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, execution, rngs=rngs)
        self.pooler = Pooler(config, rngs=rngs)
        self.mlm_head = MlmHead(config, execution, rngs=rngs)
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


Network = TaskNetwork
HEADS: dict[str, type[Network]] = {Bert.name: Bert} | TASK_NETWORKS  # by `model.head`


def head_of(config: ModelConfig) -> type[Network]:
    """The class of network that `model.head` names. Raises ValueError for an unknown name, with the nearest ones."""
    if config.head not in HEADS:
        near = difflib.get_close_matches(config.head, HEADS, 3, 0.4) or HEADS
        raise ValueError(f"model.head={config.head!r} is unknown; did you mean {' or '.join(near)}?")
    return HEADS[config.head]


def check_head(config: ModelConfig) -> type[Network]:
    """`head_of`, whose options are checked too. Raises ValueError naming the key, its value and what to do."""
    head = head_of(config)
    labels = f"model.num_labels={config.num_labels} with model.head={config.head!r}"
    if head.labelled and config.num_labels < 1:
        raise ValueError(f"{labels}: it needs at least 1")
    if not head.labelled and config.num_labels:
        raise ValueError(f"{labels}: it has none; leave it 0")
    if not head.feature_based and (config.features or config.lstm_size):
        able = ", ".join(repr(name) for name, network in HEADS.items() if network.feature_based)
        raise ValueError(
            f"model.features={config.features}, model.lstm_size={config.lstm_size} with model.head={config.head!r}: "
            f"they are of the head {able} only; leave them out"
        )
    return head


def _network(config: ModelConfig, execution: ExecutionConfig, rngs: nnx.Rngs) -> Network:
    """The network with the head that the config names."""
    return check_head(config)(config, execution, rngs=rngs)


def abstract_network(
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
