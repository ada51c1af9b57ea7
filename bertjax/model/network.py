"""The network of pretraining: the encoder and its family's heads; and any network's parameters as plain dicts."""

from __future__ import annotations

import difflib
import functools
from typing import Any

import jax
from flax import nnx

from bertjax.config import DEFAULT_EXECUTION, ExecutionConfig, ModelConfig
from bertjax.families.registry import family_of, generator_config
from bertjax.model.attention.backends import Backend
from bertjax.model.encoder import Embeddings
from bertjax.model.family_heads import RtdHead, SboHead, SopHead, pretraining_heads
from bertjax.model.heads import MlmHead, NspHead, Pooler, Sums, gather_positions
from bertjax.model.mask_decoder import MaskDecoder
from bertjax.model.task_heads import TASK_NETWORKS, TaskNetwork
from bertjax.parallel.sharding import is_names, logical_axes

Params = dict[str, Any]  # nested dicts of float32 arrays: no NNX object crosses a jit boundary
GENERATOR = "generator"  # the module, and its name for objectives


class PretrainingNetwork(TaskNetwork):
    """The encoder and the heads of its family, and with `model.generator_width` a generator that has its tables."""

    pooler: Pooler
    mlm_head: MlmHead
    nsp_head: NspHead
    sop_head: SopHead
    sbo_head: SboHead
    rtd_head: RtdHead
    mask_decoder: MaskDecoder
    generator: PretrainingNetwork

    name, transformers, transformers_head = "pretraining", "ForPreTraining", ""
    outputs = ()
    of_task = False
    pooled = True

    def __init__(
        self, config: ModelConfig, execution: ExecutionConfig, tables: Embeddings | None = None, *, rngs: nnx.Rngs
    ) -> None:
        super().__init__(config, execution, tables, rngs=rngs)
        for name, head in pretraining_heads(config, family_of(config.family).heads).items():
            setattr(self, name, head(config, rngs=rngs))
        self.decodes = config.mlm_decoder == "enhanced" and hasattr(self, "mlm_head")
        if self.decodes:
            self.mask_decoder = MaskDecoder(config, rngs=rngs)
        if config.generator_width:
            of_generator = generator_config(config)
            self.generator = PretrainingNetwork(of_generator, execution, self.encoder.embeddings, rngs=rngs)
        self.logits_chunk = execution.logits_chunk

    def companions(self) -> dict[str, TaskNetwork]:
        """The generator, if there is one."""
        return {GENERATOR: self.generator} if hasattr(self, GENERATOR) else {}

    def decode(self, *inputs: jax.Array | None, packed: bool = True, attention: Backend = "xla") -> jax.Array:
        """What the MLM head reads, [B, L, D]: `encode`, or the enhanced decoder of the same arguments."""
        if not self.decodes:
            return self.encode(*inputs, packed=packed, attention=attention)
        return self.mask_decoder(self.encoder, *inputs, packed=packed, attention=attention)

    def mlm_logits(self, hidden_BLD: jax.Array, positions_BP: jax.Array) -> jax.Array:
        """Vocabulary logits at the given positions only: float32 [B, P, V padded]."""
        return self.mlm_head(gather_positions(hidden_BLD, positions_BP), self.encoder.embeddings.word[...])

    def mlm_sums(self, hidden_BLD: jax.Array, positions: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
        """Loss and hits summed over the weighted predictions; positions, labels and weights are [B, P]."""
        h_BPE = self.mlm_head.transformed(gather_positions(hidden_BLD, positions))
        table_VE = self.mlm_head.table(self.encoder.embeddings.word[...])
        return self.mlm_head.sums(h_BPE, table_VE, labels, weights, self.logits_chunk)

    def rtd_logits(
        self, hidden_BLD: jax.Array, positions_BP: jax.Array | None = None, sequence_ids: jax.Array | None = None
    ) -> jax.Array:
        """Whether tokens are replaced, above 0 if so: float32 [B, P, 1] at the given positions, or all [B, L, 1].

        Without `sequence_ids` each row is one sequence.
        """
        hidden_BLD = self.rtd_head.in_context(hidden_BLD, sequence_ids)
        return self.rtd_head(hidden_BLD if positions_BP is None else gather_positions(hidden_BLD, positions_BP))

    def nsp_logits(self, hidden_BLD: jax.Array, cls_positions_BS: jax.Array) -> jax.Array:
        """Next-sentence logits of every packed sequence: float32 [B, S, 2]."""
        return self.nsp_head(self.pooler(gather_positions(hidden_BLD, cls_positions_BS)))

    def sop_logits(
        self, hidden_BLD: jax.Array, cls_positions_BS: jax.Array, keys: jax.Array | None = None
    ) -> jax.Array:
        """Sentence-order logits of every packed sequence: float32 [B, S, 2]; keys uint32 [B], None = no dropout."""
        return self.sop_head(self.pooler(gather_positions(hidden_BLD, cls_positions_BS)), keys)


Network = TaskNetwork
HEADS: dict[str, type[Network]] = {PretrainingNetwork.name: PretrainingNetwork} | TASK_NETWORKS  # by `model.head`


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
    if head.labelled != (config.num_labels > 0):
        raise ValueError(f"{labels}: {'it needs at least 1' if head.labelled else 'it has none; leave it 0'}")
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
    """The model without its arrays: (graphdef, parameter shapes, logical axis names of every dim).

    Raises ValueError for an unknown family, and for a head that the config leaves without its input.
    """
    graphdef, shapes, axes = _traced(config, execution)
    return graphdef, jax.tree.map(lambda x: x, shapes), jax.tree.map(lambda x: x, axes, is_leaf=is_names)


@functools.lru_cache(maxsize=64)
def _traced(config: ModelConfig, execution: ExecutionConfig) -> tuple[nnx.GraphDef, Params, dict[str, Any]]:
    """The cache of `abstract_network`: tracing takes a tenth of a second, and importers call it many times."""
    graphdef, state = nnx.split(nnx.eval_shape(lambda: _network(config, execution, nnx.Rngs(0))))
    return graphdef, nnx.to_pure_dict(state), logical_axes(state)


def init_params(config: ModelConfig, key: jax.Array) -> Params:
    """Fresh parameters. Pure: run it under jit with output shardings so that each array is made where it belongs."""
    return nnx.to_pure_dict(nnx.state(_network(config, DEFAULT_EXECUTION, nnx.Rngs(key)), nnx.Param))


def bind(graphdef: nnx.GraphDef, params: Params) -> Network:
    """A callable model around plain parameters; for use inside a jitted function."""
    return nnx.merge(graphdef, nnx.State(params))
