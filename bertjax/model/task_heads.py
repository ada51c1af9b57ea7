"""The networks of fine-tuning: the encoder with the head of a task.

`model.head` selects the class of the network. Class attributes describe the head and name it in transformers (see
`TaskNetwork`). A head reads the output of `encode`. Logits are float32. Dropout before a head takes one key per row,
uint32 [B]; without keys there is no dropout.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.model.dropout import HEAD, dropout
from bertjax.model.encoder import TaskNetwork
from bertjax.model.heads import TASK_POOLERS, TOKEN_POOLER, Pooler, existing, gather_positions, task_pooler
from bertjax.model.layers import ACTIVATIONS, Dense, FeedForward, LayerNorm
from bertjax.model.parameters import uniform

_FORGET = 1  # the forget gate in PyTorch's order: input, forget, cell, output


class InnerDense(nnx.Module):
    """Dense and the activation of the layers, [..., D] -> [..., D] (transformers' `BigBirdClassificationHead`).

    Precedes the classifier if `model.task_heads` is deep.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        D = config.hidden_size
        self.dense = Dense(config, (D, D), ("embed", "hidden"), "hidden", rngs=rngs)
        self.activation = config.hidden_act

    def __call__(self, x: jax.Array) -> jax.Array:
        return ACTIVATIONS[self.activation](self.dense(x))


class InnerMlp(nnx.Module):
    """LayerNorm(x + MLP(x)), [B, L, D] -> [B, L, D] (transformers' `BigBirdForQuestionAnsweringHead`, no dropout)."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.mlp = FeedForward(config, rngs=rngs)
        self.norm = LayerNorm(config, config.hidden_size)

    def __call__(self, x: jax.Array) -> jax.Array:
        return self.norm(x + self.mlp(x))


class BiLstmLayer(nnx.Module):
    """One layer, both directions side by side: [B, L, W] -> [B, L, 2 size], in the dtype of its input.

    The state is zero at the start of each packed sequence, so that a sequence does not depend on neighbours or padding.
    Weights are initialised as in PyTorch, and the bias of the forget gate with 1, as in TensorFlow.
    """

    def __init__(self, width: int, size: int, *, rngs: nnx.Rngs) -> None:
        bound = size**-0.5
        self.kernel = uniform(rngs, (width, 2, 4, size), ("embed", "directions", "gates", "state"), bound)
        self.recurrent = uniform(rngs, (2, size, 4, size), ("directions", "embed", "gates", "state"), bound)
        bias = jnp.zeros((2, 4, size), jnp.float32).at[:, _FORGET].set(1.0)
        self.bias = nnx.Param(bias, logical_axes=("directions", "gates", "state"))

    def __call__(self, x_BLW: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        kernel, recurrent = self.kernel[...].astype(x_BLW.dtype), self.recurrent[...].astype(x_BLW.dtype)
        # The inputs' part of the gates does not depend on the state: one product for all positions.
        inputs = jnp.einsum("BLW,WTGH->LBTGH", x_BLW, kernel, preferred_element_type=jnp.float32) + self.bias[...]
        ids_LB = sequence_ids.T
        continues = jnp.stack([_continues(ids_LB), _continues(ids_LB[::-1])], axis=-1)

        def step(state: tuple[jax.Array, jax.Array], now: tuple[jax.Array, jax.Array]) -> tuple:
            inputs_BTGH, continues_BT = now
            h, c = (jnp.where(continues_BT[:, :, None], part, 0.0) for part in state)
            recurred = jnp.einsum("BTH,THGK->BTGK", h.astype(recurrent.dtype), recurrent)
            i, f, g, o = jnp.moveaxis(inputs_BTGH + recurred.astype(jnp.float32), 2, 0)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((inputs.shape[1], *recurrent.shape[:2]), jnp.float32)
        _, states_LBTH = jax.lax.scan(step, (zero, zero), (_reverse_second(inputs), continues))
        both = _reverse_second(states_LBTH).swapaxes(0, 1)
        return both.reshape(*sequence_ids.shape, -1).astype(x_BLW.dtype)


def _continues(ids_LB: jax.Array) -> jax.Array:
    """Whether a position has the same sequence id as the one before it: bool [L, B]."""
    return jnp.pad(ids_LB[1:] == ids_LB[:-1], ((1, 0), (0, 0)))


def _reverse_second(x_LBT: jax.Array) -> jax.Array:
    """Reverse the positions of the second direction: [L, B, 2, ...]."""
    return jnp.stack([x_LBT[:, :, 0], x_LBT[::-1, :, 1]], axis=2)


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
        self.dense = Dense(config, (width, classes), ("embed", "classes"), "classes", role="classes", rngs=rngs)
        self.dropout_rate = config.task_dropout_prob

    def __call__(self, x: jax.Array, keys: jax.Array | None) -> jax.Array:
        return self.dense(dropout(x, keys, HEAD, self.dropout_rate)).astype(jnp.float32)


def _token_pooler(config: ModelConfig, *, rngs: nnx.Rngs) -> Pooler | None:
    """The pooler below a head per token, or None; frozen features have no pooler."""
    return Pooler(config, rngs=rngs) if config.pooler == TOKEN_POOLER and not config.features else None


class TokenHead(TaskHead):
    """A head per token, with a BiLSTM below the dense layer if `model.lstm_size` is not 0."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        width, size = config.hidden_size * max(1, len(config.features)), config.lstm_size
        super().__init__(config, 2 * size or width, config.num_labels, rngs=rngs)
        self.lstm = BiLstm(width, size, rngs=rngs) if size else None

    def read(self, x_BLW: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        """Compute the input of the dense layer: x, or the states of the BiLSTM."""
        return x_BLW if self.lstm is None else self.lstm(x_BLW, sequence_ids)


class SequenceNetwork(TaskNetwork):
    """A class or a number for a text or a pair (transformers' BertForSequenceClassification)."""

    name, transformers = "sequence", "ForSequenceClassification"
    labelled = pooled = True

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, execution, rngs=rngs)
        self.pooler = task_pooler(config, rngs=rngs)
        self.head = TaskHead(config, config.hidden_size, config.num_labels, rngs=rngs)
        self.inner = InnerDense(config, rngs=rngs) if config.task_heads == "deep" else None

    def sequence_logits(
        self, hidden_BLD: jax.Array, cls_positions_BS: jax.Array, keys: jax.Array | None = None
    ) -> jax.Array:
        """A logit per class for every packed sequence: [B, S, num_labels]."""
        pool, cls_BSD = self.inner or self.pooler, gather_positions(hidden_BLD, cls_positions_BS)
        return self.head(cls_BSD if pool is None else pool(cls_BSD), keys)

    def row_logits(self, hidden_BLD: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        """[B, num_labels]."""
        return self.sequence_logits(hidden_BLD, jnp.zeros((sequence_ids.shape[0], 1), jnp.int32))[:, 0]


class ChoiceNetwork(TaskNetwork):
    """One of several choices, which are packed in one row (transformers' BertForMultipleChoice)."""

    name, transformers = "choice", "ForMultipleChoice"
    pooled = True

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, execution, rngs=rngs)
        self.pooler = task_pooler(config, rngs=rngs)
        self.head = TaskHead(config, config.hidden_size, 1, rngs=rngs)

    def choice_logits(
        self, hidden_BLD: jax.Array, cls_positions_BC: jax.Array, keys: jax.Array | None = None
    ) -> jax.Array:
        """A logit per choice: [B, C]."""
        cls_BCD = gather_positions(hidden_BLD, cls_positions_BC)
        return self.head(cls_BCD if self.pooler is None else self.pooler(cls_BCD), keys)[:, :, 0]

    def row_logits(self, hidden_BLD: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        """[B, 1]."""
        return self.choice_logits(hidden_BLD, jnp.zeros((sequence_ids.shape[0], 1), jnp.int32))


class TokenNetwork(TaskNetwork):
    """A class for every token (transformers' BertForTokenClassification), or the paper's feature-based variant.

    The feature-based variant (section 5.3) reads `features` of the frozen encoder, with a BiLSTM of `lstm_size`.
    """

    name, transformers = "tokens", "ForTokenClassification"
    labelled = per_token = feature_based = True

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, execution, rngs=rngs)
        pooler = _token_pooler(config, rngs=rngs)
        self.reads_pooler = pooler is not None
        # With deep heads an untrained pooler is kept for exports.
        self.pooler = Pooler(config, rngs=rngs) if config.task_heads == "deep" else pooler
        self.head = TokenHead(config, rngs=rngs)

    def token_logits(self, hidden_BLD: jax.Array, sequence_ids: jax.Array, keys: jax.Array | None = None) -> jax.Array:
        """A logit per class for every token: [B, L, num_labels]."""
        if self.reads_pooler:
            hidden_BLD = existing(self.pooler)(hidden_BLD)
        return self.head(self.head.read(hidden_BLD, sequence_ids), keys)

    def row_logits(self, hidden_BLD: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        """[B, L, num_labels]."""
        return self.token_logits(hidden_BLD, sequence_ids)


class SpanNetwork(TaskNetwork):
    """Where an answer starts and ends (transformers' BertForQuestionAnswering); its head has no dropout."""

    name, transformers, transformers_head = "span", "ForQuestionAnswering", "qa_outputs"
    outputs = ("start_logits", "end_logits")
    per_token = True

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, execution, rngs=rngs)
        self.pooler = _token_pooler(config, rngs=rngs)
        self.head = TaskHead(config, config.hidden_size, 2, rngs=rngs)
        self.inner = InnerMlp(config, rngs=rngs) if config.task_heads == "deep" else None

    def span_logits(self, hidden_BLD: jax.Array) -> jax.Array:
        """Two logits for every token, that the answer starts and that it ends there: [B, L, 2]."""
        pool = self.pooler or self.inner
        return self.head(hidden_BLD if pool is None else pool(hidden_BLD), None)

    def row_logits(self, hidden_BLD: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        """[B, L, 2]."""
        return self.span_logits(hidden_BLD)


class VectorNetwork(TaskNetwork):
    """A vector of length 1 for a text: the mean of its tokens' vectors.

    An untrained pooler is kept for exports, unless `model.pooler` belongs to task heads.
    """

    name, transformers, transformers_head = "vector", "Model", ""
    outputs = ()
    pooled = True

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, execution, rngs=rngs)
        self.pooler = None if config.pooler in TASK_POOLERS else Pooler(config, rngs=rngs)

    def vectors(self, hidden_BLD: jax.Array, sequence_ids: jax.Array, S: int) -> jax.Array:
        """Compute the vectors of up to S packed sequences, float32 [B, S, D]; zeros for those that a row lacks."""
        member_BLS = (sequence_ids[:, :, None] == jnp.arange(1, S + 1)).astype(jnp.float32)
        # A sum serves as well as a mean: the scale of a vector is lost when it gets length 1.
        sums_BSD = jnp.einsum("BLS,BLD->BSD", member_BLS, hidden_BLD.astype(jnp.float32))
        return sums_BSD * jax.lax.rsqrt(jnp.maximum(jnp.sum(jnp.square(sums_BSD), axis=-1, keepdims=True), 1e-24))


TASK_NETWORKS: dict[str, type[TaskNetwork]] = {
    network.name: network for network in (SequenceNetwork, ChoiceNetwork, TokenNetwork, SpanNetwork, VectorNetwork)
}
