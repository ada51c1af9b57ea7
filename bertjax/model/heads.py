"""BERT's pretraining heads (pooler, MLM, NSP), and the cross-entropy over the vocabulary in chunks."""

from __future__ import annotations

from functools import partial
from typing import ClassVar, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ModelConfig
from bertjax.model.encoder import embedding_width, padded_vocab_size, word_table
from bertjax.model.layers import ACTIVATIONS, Dense, LayerNorm
from bertjax.model.parameters import zeros
from bertjax.model.products import by_rows, column_sums, over_rows
from bertjax.parallel.sharding import constrain

# Values of `model.pooler` for poolers that only task heads have; heads per token have one only with the second name.
TASK_POOLERS, TOKEN_POOLER = ("gelu", "relu", "gelu_norm", "cls", "tanh_of_tasks"), "gelu_norm"


def gather_positions(x_BLD: jax.Array, positions_BP: jax.Array) -> jax.Array:
    """Gather the vectors at some positions of each row: [B, L, D], int32 [B, P] -> [B, P, D]."""
    return jnp.take_along_axis(x_BLD, positions_BP[:, :, None], axis=1, mode="clip")


_Module = TypeVar("_Module")


def existing(module: _Module | None) -> _Module:
    """Narrow the type of an optional module that the caller knows to exist."""
    assert module is not None, "the network lacks this module"
    return module


class Head(nnx.Module):
    """Base of the pretraining heads, which are constructed as `Head(config, rngs=rngs)`."""

    needs_pooler: ClassVar[bool] = False


class Pooler(Head):
    """Dense and an activation (tanh, or `model.pooler`) on the [CLS] vectors: [B, S, D] -> [B, S, D]."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        D, activation = config.hidden_size, config.pooler.removesuffix("_norm")
        has_bias = config.heads_have_biases
        self.dense = Dense(config, (D, D), ("embed", "hidden"), "hidden", bias=has_bias, role="output", rngs=rngs)
        self.activation = activation if activation in ACTIVATIONS else "tanh"
        self.norm = LayerNorm(config, D) if config.pooler == TOKEN_POOLER else None

    def __call__(self, cls_BSD: jax.Array) -> jax.Array:
        x = self.dense(cls_BSD)
        x = jnp.tanh(x) if self.activation == "tanh" else ACTIVATIONS[self.activation](x)
        return x if self.norm is None else self.norm(x)


def task_pooler(config: ModelConfig, *, rngs: nnx.Rngs) -> Pooler | None:
    """The layer between the [CLS] vectors and a task's head; None with `model.pooler` cls."""
    return None if config.pooler == "cls" else Pooler(config, rngs=rngs)


class VocabularyHead(Head):
    """A head whose output matrix is the word table, [V, E], plus its own bias, unless `mlm_bias` is False."""

    def __init__(self, config: ModelConfig) -> None:
        self.rows = padded_vocab_size(config)
        self.bias = zeros((self.rows,), ("vocab",)) if config.mlm_bias else None
        self.activation = config.hidden_act
        self.vocab_size = config.vocab_size

    def sums(
        self, h_BPE: jax.Array, word_embeddings_VE: jax.Array, labels_BP: jax.Array, weights_BP: jax.Array, chunk: int
    ) -> Sums:
        """Sum loss and hits over the weighted predictions, `chunk` predictions at a time."""
        return vocabulary_cross_entropy(
            h_BPE.reshape(-1, h_BPE.shape[-1]),
            word_embeddings_VE,
            self.vocabulary_bias(),
            labels_BP.reshape(-1),
            weights_BP.reshape(-1),
            vocab_size=self.vocab_size,
            chunk=chunk,
        )

    def vocabulary_bias(self) -> jax.Array:
        """The bias of each entry of the padded vocabulary, float32 [V]; zeros without `mlm_bias`."""
        return jnp.zeros((self.rows,), jnp.float32) if self.bias is None else self.bias[...]


class MlmHead(VocabularyHead):
    """Dense D -> E, activation, LayerNorm, then the word table as the output matrix (run_pretraining.py).

    E is the width of the table: D in BERT, less in ALBERT (google-research/albert `get_masked_lm_output`). Without
    `mlm_tied` the head is a separate output matrix, [V, D], and its bias; with `mlm_inner_size` S it follows two layers
    D -> S -> D, each with a GELU (transformers' `UltrabertPredictionHead`).
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        E, tied, has_bias = embedding_width(config), config.mlm_tied, config.heads_have_biases
        dense = partial(Dense, config, (config.hidden_size, E), ("embed", "hidden"), "hidden", role="output")
        has_transform = tied or config.mlm_transform == "gelu"
        self.transform = dense(bias=has_bias, rngs=rngs) if has_transform else None
        self.norm = LayerNorm(config, E) if has_transform else None
        D, S = config.hidden_size, config.mlm_inner_size
        unbiased = partial(Dense, config, names=("embed", "hidden"), bias_name="hidden", bias=False, role="output")
        self.first = unbiased(sizes=(D, S), rngs=rngs) if S else None
        self.second = unbiased(sizes=(S, D), rngs=rngs) if S else None
        self.decoder = None if tied else word_table(config, config.hidden_size, rngs=rngs)
        super().__init__(config)
        self.activation = "gelu" if config.mlm_transform == "gelu" else config.hidden_act

    def transformed(self, hidden_BPD: jax.Array) -> jax.Array:
        """Compute the vectors to multiply with the rows of `table`: [B, P, D] -> [B, P, E]."""
        if self.first is not None and self.second is not None:
            activation = ACTIVATIONS["gelu_tanh"]
            return activation(self.second(activation(self.first(hidden_BPD))))
        if self.transform is None or self.norm is None:
            return hidden_BPD
        return self.norm(ACTIVATIONS[self.activation](self.transform(hidden_BPD)))

    def table(self, word_embeddings_VE: jax.Array) -> jax.Array:
        """The output matrix: the word table, or the head's own."""
        return word_embeddings_VE if self.decoder is None else self.decoder[...]

    def __call__(self, hidden_BPD: jax.Array, word_embeddings_VE: jax.Array) -> jax.Array:
        """Logits over the padded vocabulary, float32 [B, P, V]; padding entries are the lowest finite float."""
        h, table_VE = self.transformed(hidden_BPD), self.table(word_embeddings_VE)
        logits = jnp.einsum("BPE,VE->BPV", h, table_VE.astype(h.dtype), preferred_element_type=jnp.float32)
        logits = logits if self.bias is None else logits + self.bias[...]
        logits = constrain(logits, "act_batch", "act_length", "act_vocab")
        real = jnp.arange(logits.shape[-1]) < self.vocab_size
        return jnp.where(real, logits, jnp.finfo(jnp.float32).min)


class NspHead(Head):
    """Next sentence: two classes of the pooled vector, float32 [B, S, 2]; 0 = B follows A, 1 = B is random."""

    needs_pooler = True

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.dense = Dense(config, (config.hidden_size, 2), ("embed", "classes"), "classes", rngs=rngs)

    def __call__(self, pooled_BSD: jax.Array) -> jax.Array:
        return self.dense(pooled_BSD).astype(jnp.float32)


class Sums(NamedTuple):
    """Sums over the weighted tokens, float32 scalars: negative log-likelihood, and weight of the right predictions."""

    loss: jax.Array
    hits: jax.Array


def vocabulary_cross_entropy(
    hidden_ND: jax.Array,
    table_VD: jax.Array,
    bias_V: jax.Array,
    labels_N: jax.Array,
    weights_N: jax.Array,
    *,
    vocab_size: int,
    chunk: int,
) -> Sums:
    """Sum weighted -log softmax(hidden table^T + bias)[label] over N tokens; differentiable in the first three.

    table [V padded, D] and bias [V padded] are float32, hidden [N, D] has the compute dtype, labels are int32, weights
    float32. D is the width of the table. Entries from vocab_size on are padding and get no probability. Memory holds
    the logits of `chunk` tokens at a time.
    """
    hidden, labels, weights = (in_chunks(x, chunk) for x in (hidden_ND, labels_N, weights_N))
    return _cross_entropy(hidden, table_VD, real_bias(bias_V, vocab_size), labels, weights)


def real_bias(bias_V: jax.Array, vocab_size: int) -> jax.Array:
    """Set the bias of padding entries to the lowest float; called once, outside the loop over chunks."""
    return jnp.where(jnp.arange(bias_V.shape[0]) < vocab_size, bias_V, jnp.finfo(jnp.float32).min)


def in_chunks(x: jax.Array, chunk: int) -> jax.Array:
    """Split into chunks of about equal size, at most `chunk`, padded with zeros: [N, ...] -> [chunks, n, ...]."""
    rows = x.shape[0]
    pieces = -(-rows // min(chunk, rows))
    size = -(-rows // pieces)
    filled = jnp.pad(x, ((0, pieces * size - rows), *[(0, 0)] * (x.ndim - 1)))
    return filled.reshape(pieces, size, *x.shape[1:])


@jax.custom_vjp
def _cross_entropy(hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
    cast = table.astype(hidden.dtype)

    def add(total: Sums, part: tuple[jax.Array, ...]) -> tuple[Sums, None]:
        sums, _ = _chunk(cast, bias, *part)
        return jax.tree.map(jnp.add, total, sums), None

    zero = jnp.zeros((), jnp.float32)
    return jax.lax.scan(add, Sums(zero, zero), (hidden, labels, weights))[0]


def _chunk(
    table: jax.Array, bias: jax.Array, hidden: jax.Array, labels: jax.Array, weights: jax.Array
) -> tuple[Sums, jax.Array]:
    """Compute a chunk's sums, and the gradient of its loss with respect to its logits, [n, V]."""
    logits = jnp.einsum("nD,VD->nV", hidden, table, preferred_element_type=jnp.float32) + bias
    logits = constrain(logits, "act_batch", "act_vocab")
    highest = jnp.max(logits, axis=-1, keepdims=True)
    exponentials = jnp.exp(logits - highest)
    total = jnp.sum(exponentials, axis=-1, keepdims=True)
    picked = jnp.take_along_axis(logits, labels[:, None], axis=1)[:, 0]
    nll = jnp.log(total[:, 0]) + highest[:, 0] - picked
    hits = (picked >= highest[:, 0]).astype(jnp.float32)
    chosen = jax.lax.broadcasted_iota(jnp.int32, logits.shape, 1) == labels[:, None]
    dlogits = exponentials * (weights[:, None] / total) - jnp.where(chosen, weights[:, None], 0.0)
    return Sums(jnp.sum(nll * weights), jnp.sum(hits * weights)), dlogits


def _forward(
    hidden: jax.Array, table: jax.Array, bias: jax.Array, labels: jax.Array, weights: jax.Array
) -> tuple[Sums, tuple[jax.Array, jax.Array, jax.Array]]:
    cast = table.astype(hidden.dtype)

    def add(total: tuple, part: tuple[jax.Array, ...]) -> tuple[tuple, jax.Array]:
        sums, dlogits = _chunk(cast, bias, *part)
        dlogits = dlogits.astype(hidden.dtype)
        dhidden = by_rows(dlogits, cast)
        dtable = over_rows(dlogits, part[0], 1, jnp.float32)
        return jax.tree.map(jnp.add, total, (sums, dtable, column_sums(dlogits))), dhidden

    zero = jnp.zeros((), jnp.float32)
    start = (Sums(zero, zero), jnp.zeros(table.shape, jnp.float32), jnp.zeros(bias.shape, jnp.float32))
    (sums, dtable, dbias), dhidden = jax.lax.scan(add, start, (hidden, labels, weights))
    return sums, (dhidden, dtable.astype(table.dtype), dbias)


def _backward(gradients: tuple[jax.Array, jax.Array, jax.Array], cotangent: Sums) -> tuple:
    dhidden, dtable, dbias = gradients
    scaled = jax.tree.map(lambda g: g * cotangent.loss.astype(g.dtype), (dhidden, dtable, dbias))
    return (*scaled, None, None)  # labels and weights


_cross_entropy.defvjp(_forward, _backward)
