"""BERT with the head of a task: what fine-tuning trains.

A head reads what `encode` gives. Logits are float32. Dropout before a head is driven by one key per row, uint32 [B];
without keys there is none.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.model.attention.backends import Backend
from bertjax.model.dropout import HEAD, dropout
from bertjax.model.encoder import Encoder
from bertjax.model.heads import Pooler, gather_positions
from bertjax.model.layers import Dense
from bertjax.model.lstm import BiLstmLayer


class BiLstm(nnx.Module):
    """Two layers, as in the paper's feature-based variant (section 5.3): [B, L, W] -> [B, L, 2 size]."""

    def __init__(self, width: int, size: int, *, rngs: nnx.Rngs) -> None:
        self.first = BiLstmLayer(width, size, rngs=rngs)
        self.second = BiLstmLayer(2 * size, size, rngs=rngs)

    def __call__(self, x_BLW: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        return self.second(self.first(x_BLW, sequence_ids), sequence_ids)


class TaskHead(nnx.Module):
    """Dropout and a dense layer: [B, ..., width] -> [B, ..., classes]."""

    def __init__(self, config: ModelConfig, width: int, classes: int, *, rngs: nnx.Rngs) -> None:
        self.dense = Dense(config, (width, classes), ("embed", "classes"), "classes", rngs=rngs)
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(self, x: jax.Array, keys: jax.Array | None) -> jax.Array:
        return self.dense(dropout(x, keys, HEAD, self.dropout_rate)).astype(jnp.float32)


class TokenHead(TaskHead):
    """The head of the feature-based variant has a BiLSTM in front, where the config gives it a size."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        width, size = config.hidden_size * max(1, len(config.features)), config.lstm_size
        super().__init__(config, 2 * size or width, config.num_labels, rngs=rngs)
        self.lstm = BiLstm(width, size, rngs=rngs) if size else None

    def __call__(self, x_BLW: jax.Array, sequence_ids: jax.Array, keys: jax.Array | None) -> jax.Array:
        return super().__call__(x_BLW if self.lstm is None else self.lstm(x_BLW, sequence_ids), keys)


class TaskNetwork(nnx.Module):
    """The encoder, for a head of whichever task."""

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        self.encoder = Encoder(config, execution, rngs=rngs)

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
        """What the head reads: the encoder's last layer, [B, L, D]."""
        return self.encoder(input_ids, token_type_ids, sequence_ids, keys, packed=packed, attention=attention)


class SequenceNetwork(TaskNetwork):
    """A class or a number for a text or a pair (transformers' BertForSequenceClassification)."""

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, execution, rngs=rngs)
        self.pooler = Pooler(config, rngs=rngs)
        self.head = TaskHead(config, config.hidden_size, config.num_labels, rngs=rngs)

    def sequence_logits(
        self, hidden_BLD: jax.Array, cls_positions_BS: jax.Array, keys: jax.Array | None = None
    ) -> jax.Array:
        """A logit per label for every packed sequence: [B, S, num_labels]."""
        return self.head(self.pooler(gather_positions(hidden_BLD, cls_positions_BS)), keys)


class ChoiceNetwork(TaskNetwork):
    """One of several choices, which lie packed in one row (transformers' BertForMultipleChoice)."""

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, execution, rngs=rngs)
        self.pooler = Pooler(config, rngs=rngs)
        self.head = TaskHead(config, config.hidden_size, 1, rngs=rngs)

    def choice_logits(
        self, hidden_BLD: jax.Array, cls_positions_BC: jax.Array, keys: jax.Array | None = None
    ) -> jax.Array:
        """A logit per choice: [B, C]."""
        return self.head(self.pooler(gather_positions(hidden_BLD, cls_positions_BC)), keys)[:, :, 0]


class TokenNetwork(TaskNetwork):
    """A tag for every token (transformers' BertForTokenClassification), or the paper's feature-based variant of it.

    With `features` the encoder stays as it is, and the vectors of those layers are read side by side.
    """

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, execution, rngs=rngs)
        self.head = TokenHead(config, rngs=rngs)
        self.features = config.features

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
        """What the head reads: the encoder's last layer, [B, L, D], or the features, [B, L, D features].

        A frozen encoder has neither gradient nor dropout.
        """
        inputs = (input_ids, token_type_ids, sequence_ids)
        if not self.features:
            return super().encode(*inputs, keys, packed=packed, attention=attention)
        states = jax.lax.stop_gradient(self.encoder.hidden_states(*inputs, packed=packed, attention=attention))
        return jnp.concatenate([states[layer] for layer in self.features], axis=-1)

    def token_logits(self, hidden_BLD: jax.Array, sequence_ids: jax.Array, keys: jax.Array | None = None) -> jax.Array:
        """A logit per label for every token: [B, L, num_labels]."""
        return self.head(hidden_BLD, sequence_ids, keys)


class SpanNetwork(TaskNetwork):
    """Where an answer starts and ends (transformers' BertForQuestionAnswering); there is no dropout before its head."""

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, execution, rngs=rngs)
        self.head = TaskHead(config, config.hidden_size, 2, rngs=rngs)

    def span_logits(self, hidden_BLD: jax.Array) -> jax.Array:
        """For every token, logits of being the first and the last of the answer: [B, L, 2]."""
        return self.head(hidden_BLD, None)


class VectorNetwork(TaskNetwork):
    """A vector of length 1 for a text, the mean of its tokens'. The pooler is kept, untrained, for who exports it."""

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, execution, rngs=rngs)
        self.pooler = Pooler(config, rngs=rngs)

    def vectors(self, hidden_BLD: jax.Array, sequence_ids: jax.Array, S: int) -> jax.Array:
        """Of each of up to S packed sequences, float32 [B, S, D]; zeros for one that the row does not have."""
        member_BLS = (sequence_ids[:, :, None] == jnp.arange(1, S + 1)).astype(jnp.float32)
        # Neither the number of tokens nor anything else that scales a vector shows in it once it has length 1.
        sums_BSD = jnp.einsum("BLS,BLD->BSD", member_BLS, hidden_BLD.astype(jnp.float32))
        return sums_BSD * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(sums_BSD), axis=-1, keepdims=True), 1e-24))


TASK_NETWORKS: dict[str, type[TaskNetwork]] = {
    "sequence": SequenceNetwork,
    "choice": ChoiceNetwork,
    "tokens": TokenNetwork,
    "span": SpanNetwork,
    "vector": VectorNetwork,
}
