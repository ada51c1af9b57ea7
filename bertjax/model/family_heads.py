"""Pretraining heads of other models in BERT's family, and the registry of all pretraining heads."""

from __future__ import annotations

import math
from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import SPAN_POSITIONS, ModelConfig
from bertjax.model.attention.positions import positions_in_sequence
from bertjax.model.dropout import HEAD, dropout, random_bits
from bertjax.model.encoder import embedding_width
from bertjax.model.heads import Head, MlmHead, NspHead, Pooler, VocabularyHead, gather_positions, in_chunks, real_bias
from bertjax.model.layers import ACTIVATIONS, Dense, LayerNorm
from bertjax.model.parameters import weight
from bertjax.parallel.sharding import constrain

BLOCK = 128  # vocabulary entries among which `sampled_tokens` draws in its second step


class SopHead(Head):
    """Sentence order: dropout, then two classes of the pooled vector, float32 [B, S, 2]; 1 = the segments are swapped.

    Source: transformers' `AlbertSOPHead`.
    """

    needs_pooler = True

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.dense = Dense(config, (config.hidden_size, 2), ("embed", "classes"), "classes", rngs=rngs)
        self.dropout_rate = config.hidden_dropout_prob

    def __call__(self, pooled_BSD: jax.Array, keys: jax.Array | None) -> jax.Array:
        return self.dense(dropout(pooled_BSD, keys, HEAD, self.dropout_rate)).astype(jnp.float32)


class SboHead(VocabularyHead):
    """Span boundaries: two times dense, activation and LayerNorm, then the word table as the output matrix.

    Source: SpanBERT (Joshi et al. 2020, section 3.2). A token of a span is predicted from the vectors at the span's
    boundaries and a learned vector of its position in the span, of width `WIDTH`.
    """

    POSITIONS: ClassVar[int] = SPAN_POSITIONS
    WIDTH: ClassVar[int] = 200

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        D, E = config.hidden_size, embedding_width(config)
        self.place = weight(rngs, (self.POSITIONS, self.WIDTH), ("position", "hidden"), config)
        self.first = Dense(config, (2 * D + self.WIDTH, D), ("hidden", "embed"), "hidden", rngs=rngs)
        self.first_norm = LayerNorm(config, D)
        self.second = Dense(config, (D, E), ("embed", "hidden"), "hidden", rngs=rngs)
        self.norm = LayerNorm(config, E)
        super().__init__(config)

    def transformed(self, left_BPD: jax.Array, right_BPD: jax.Array, positions_BP: jax.Array) -> jax.Array:
        """Compute the vectors to multiply with the word table, [B, P, E]; int32 positions in the span count from 0."""
        position = jnp.take(self.place[...].astype(left_BPD.dtype), positions_BP, axis=0, mode="clip")
        x = jnp.concatenate([left_BPD, right_BPD, position], axis=-1)
        activation = ACTIVATIONS[self.activation]
        return self.norm(activation(self.second(self.first_norm(activation(self.first(x))))))


class RtdHead(Head):
    """Replaced tokens: dense, activation, dense to one logit per token, float32 [..., 1]; above 0 = replaced.

    Source: transformers' `ElectraDiscriminatorPredictions`. With `rtd_context` it reads LayerNorm(h + h_CLS), [CLS] the
    first token of the sequence (microsoft/DeBERTa, `apps/models/replaced_token_detection_model.py`).
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        D = config.hidden_size
        self.norm = LayerNorm(config, D) if config.rtd_context else None
        self.dense = Dense(config, (D, D), ("embed", "hidden"), "hidden", rngs=rngs)
        self.prediction = Dense(config, (D, 1), ("embed", "classes"), "classes", rngs=rngs)
        self.activation = config.hidden_act

    def in_context(self, hidden_BLD: jax.Array, sequence_ids: jax.Array | None) -> jax.Array:
        """Compute the first dense layer's input; without `sequence_ids`, int32 [B, L], each row is one sequence."""
        if self.norm is None:
            return hidden_BLD
        if sequence_ids is None:
            return self.norm(hidden_BLD + hidden_BLD[:, :1])
        first = jnp.arange(hidden_BLD.shape[1], dtype=jnp.int32) - positions_in_sequence(sequence_ids)
        return self.norm(hidden_BLD + gather_positions(hidden_BLD, first))

    def __call__(self, x_BPD: jax.Array) -> jax.Array:
        return self.prediction(ACTIVATIONS[self.activation](self.dense(x_BPD))).astype(jnp.float32)


def sampled_tokens(
    hidden_BPE: jax.Array,
    table_VE: jax.Array,
    bias_V: jax.Array,
    draws_BP: jax.Array,
    *,
    vocab_size: int,
    chunk: int,
) -> jax.Array:
    """Draw a token for each vector from softmax(hidden table^T + bias): int32 [B, P], without a gradient.

    The tokens depend on the probabilities and `draws`, uint32 [B, P], only. Other arguments are as in
    `vocabulary_cross_entropy`. One random number selects a block of the vocabulary, and another a token of the block:
    noise for every logit (Gumbel) takes five times as long, and a single number has too few digits.
    """
    hidden_BPE, table_VE, bias_V = jax.lax.stop_gradient((hidden_BPE, table_VE, bias_V))
    bias, table = real_bias(bias_V, vocab_size), table_VE.astype(hidden_BPE.dtype)
    width = math.gcd(len(bias), BLOCK)

    def draw(_: None, part: tuple[jax.Array, jax.Array]) -> tuple[None, jax.Array]:
        hidden, draws = part
        logits = jnp.einsum("nD,VD->nV", hidden, table, preferred_element_type=jnp.float32) + bias
        shares = jnp.exp(constrain(logits - jnp.max(logits, axis=1, keepdims=True), "act_batch", "act_vocab"))
        blocks = shares.reshape(len(shares), -1, width)
        uniform = ((random_bits(draws, 2) >> 9).astype(jnp.float32) + 0.5) * 2.0**-23
        block = _sample_indices(jnp.sum(blocks, axis=2), uniform[:, 0])
        inside = jnp.take_along_axis(blocks, block[:, None, None], axis=1)[:, 0]
        return None, block * width + _sample_indices(inside, uniform[:, 1])

    parts = in_chunks(hidden_BPE.reshape(-1, hidden_BPE.shape[-1]), chunk), in_chunks(draws_BP.reshape(-1), chunk)
    return jax.lax.scan(draw, None, parts)[1].reshape(-1)[: draws_BP.size].reshape(draws_BP.shape)


def _sample_indices(shares_NK: jax.Array, uniform_N: jax.Array) -> jax.Array:
    """Sample indices in proportion to the shares, which need not sum to 1, from numbers in (0, 1): int32 [N]."""
    sums = jnp.cumsum(shares_NK, axis=1)
    # A product that rounds up to the total would select an index beyond the last nonzero share.
    limit = sums[:, -1:] * (1 - 2.0**-23)
    return jnp.sum(sums <= jnp.minimum(uniform_N[:, None] * sums[:, -1:], limit), axis=1, dtype=jnp.int32)


HEADS: dict[str, type[Head]] = {
    "pooler": Pooler,
    "mlm_head": MlmHead,
    "nsp_head": NspHead,
    "sop_head": SopHead,
    "sbo_head": SboHead,
    "rtd_head": RtdHead,
}


def heads_with_input(config: ModelConfig, names: tuple[str, ...]) -> tuple[str, ...]:
    """Return the names of a family's heads, without the pooler if `model.pooler` is none.

    Raises ValueError if a head needs the missing pooler.
    """
    if config.pooler != "none":
        return names
    dependents = [name for name in names if HEADS[name].needs_pooler]
    if dependents:
        raise ValueError(
            f"model.pooler='none' with model.family={config.family!r}: its {dependents[0]} reads the pooled vector; "
            "set model.pooler='tanh' or choose a family without that head"
        )
    return tuple(name for name in names if name != "pooler")
