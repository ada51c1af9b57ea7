"""The pretraining network, and the registry of all networks."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
from flax import nnx

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.config.registry import Registry
from bertjax.config.suggestions import suggestion
from bertjax.model.attention.backends import Backend
from bertjax.model.denoising import DenoisingNetwork
from bertjax.model.encoder import Embeddings, TaskNetwork
from bertjax.model.family_heads import RtdHead, SboHead, SopHead, heads_with_input
from bertjax.model.heads import MlmHead, NspHead, Pooler, Sums, existing, gather_positions
from bertjax.model.mask_decoder import MaskDecoder
from bertjax.model.task_heads import TASK_NETWORKS

Params = dict[str, Any]  # nested dicts of float32 arrays: no NNX object crosses a jit boundary
GENERATOR = "generator"  # name of the module, also in objectives


class NetworkSpec(NamedTuple):
    """Specifies a pretraining network: the encoder's config, its heads, and a generator that shares its tables."""

    config: ModelConfig
    heads: tuple[str, ...]  # names in `bertjax.model.family_heads.HEADS`
    generator: NetworkSpec | None = None


class PretrainingNetwork(TaskNetwork):
    """The encoder, its family's pretraining heads, and optionally a generator with the same embedding tables."""

    name, transformers, transformers_head = "pretraining", "ForPreTraining", ""
    outputs = ()
    of_task = False
    pooled = True

    def __init__(
        self, spec: NetworkSpec, execution: ExecutionConfig, tables: Embeddings | None = None, *, rngs: nnx.Rngs
    ) -> None:
        config, heads = spec.config, heads_with_input(spec.config, spec.heads)
        super().__init__(config, execution, tables, rngs=rngs)
        self.pooler = Pooler(config, rngs=rngs) if "pooler" in heads else None
        self.mlm_head = MlmHead(config, rngs=rngs) if "mlm_head" in heads else None
        self.nsp_head = NspHead(config, rngs=rngs) if "nsp_head" in heads else None
        self.sop_head = SopHead(config, rngs=rngs) if "sop_head" in heads else None
        self.sbo_head = SboHead(config, rngs=rngs) if "sbo_head" in heads else None
        self.rtd_head = RtdHead(config, rngs=rngs) if "rtd_head" in heads else None
        self.heads, self.logits_chunk = heads, execution.logits_chunk
        self.decodes = config.mlm_decoder == "enhanced" and self.mlm_head is not None
        self.mask_decoder = MaskDecoder(config, rngs=rngs) if self.decodes else None
        self.generator = (
            PretrainingNetwork(spec.generator, execution, self.encoder.embeddings, rngs=rngs)
            if spec.generator
            else None
        )

    def companions(self) -> dict[str, TaskNetwork]:
        """The generator, if there is one."""
        return {} if self.generator is None else {GENERATOR: self.generator}

    def decode(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        sequence_ids: jax.Array,
        keys: jax.Array | None = None,
        *,
        packed: bool = True,
        attention: Backend = "xla",
    ) -> jax.Array:
        """Compute the input of the MLM head, [B, L, D]: `encode`, or the enhanced mask decoder."""
        if self.mask_decoder is None:
            return self.encode(input_ids, token_type_ids, sequence_ids, keys, packed=packed, attention=attention)
        x = self.encoder.embeddings(input_ids, token_type_ids, sequence_ids, keys, packed)
        return self.mask_decoder(self.encoder, x, self.encoder.layer_inputs(sequence_ids, keys, packed, attention))

    def mlm_logits(self, hidden_BLD: jax.Array, positions_BP: jax.Array) -> jax.Array:
        """Compute vocabulary logits at these positions: float32 [B, P, V padded]."""
        return existing(self.mlm_head)(gather_positions(hidden_BLD, positions_BP), self.encoder.embeddings.word[...])

    def mlm_sums(self, hidden_BLD: jax.Array, positions: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
        """Sum loss and hits over the weighted predictions; positions, labels and weights are [B, P]."""
        head = existing(self.mlm_head)
        h_BPE = head.transformed(gather_positions(hidden_BLD, positions))
        return head.sums(h_BPE, head.table(self.encoder.embeddings.word[...]), labels, weights, self.logits_chunk)

    def rtd_logits(
        self, hidden_BLD: jax.Array, positions_BP: jax.Array | None = None, sequence_ids: jax.Array | None = None
    ) -> jax.Array:
        """Compute logits of replaced tokens: float32 [B, P, 1] at some positions, or [B, L, 1] at all.

        Without `sequence_ids` each row is one sequence.
        """
        head = existing(self.rtd_head)
        hidden_BLD = head.in_context(hidden_BLD, sequence_ids)
        return head(hidden_BLD if positions_BP is None else gather_positions(hidden_BLD, positions_BP))

    def nsp_logits(self, hidden_BLD: jax.Array, cls_positions_BS: jax.Array) -> jax.Array:
        """Next-sentence logits of every packed sequence: float32 [B, S, 2]."""
        return existing(self.nsp_head)(self._pooled(hidden_BLD, cls_positions_BS))

    def sop_logits(
        self, hidden_BLD: jax.Array, cls_positions_BS: jax.Array, keys: jax.Array | None = None
    ) -> jax.Array:
        """Sentence-order logits of every packed sequence: float32 [B, S, 2]; keys uint32 [B], None = no dropout."""
        return existing(self.sop_head)(self._pooled(hidden_BLD, cls_positions_BS), keys)

    def _pooled(self, hidden_BLD: jax.Array, cls_positions_BS: jax.Array) -> jax.Array:
        return existing(self.pooler)(gather_positions(hidden_BLD, cls_positions_BS))


Network = TaskNetwork
_ALL: dict[str, type[Network]] = {
    network.name: network for network in (PretrainingNetwork, DenoisingNetwork)
} | TASK_NETWORKS
HEADS = Registry("task_networks", _ALL, type)  # by `model.head`


def network_class(config: ModelConfig) -> type[Network]:
    """The network class for `model.head`. Raises ValueError for an unknown name and suggests the nearest ones."""
    if config.head not in HEADS:
        raise ValueError(f"model.head={config.head!r} is unknown; {suggestion(config.head, HEADS, count=3)}")
    return HEADS[config.head]


def check_head(config: ModelConfig) -> type[Network]:
    """Return `network_class(config)` and check the head's options.

    Raises ValueError naming the key, its value and what to do.
    """
    head = network_class(config)
    labels = f"model.num_labels={config.num_labels} with model.head={config.head!r}"
    if head.labelled != (config.num_labels > 0):
        raise ValueError(
            f"{labels}: {'this head needs at least 1' if head.labelled else 'this head has no labels; leave it 0'}"
        )
    if not head.feature_based and (config.features or config.lstm_size):
        supporting = ", ".join(repr(name) for name, network in HEADS.items() if network.feature_based)
        raise ValueError(
            f"model.features={config.features}, model.lstm_size={config.lstm_size} with model.head={config.head!r}: "
            f"only the head {supporting} supports them; leave them out"
        )
    return head


def bind(graphdef: nnx.GraphDef, params: Params) -> Network:
    """Bind plain parameters to a network; for use inside a jitted function."""
    return nnx.merge(graphdef, nnx.State(params))
