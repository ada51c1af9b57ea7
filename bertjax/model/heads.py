"""The heads of pretraining: what stands on the encoder for the objectives, and their registry."""

from __future__ import annotations

from typing import ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ModelConfig
from bertjax.model.dropout import HEAD, dropout
from bertjax.model.embeddings import embedding_width, padded_vocab_size
from bertjax.model.layers import ACTIVATIONS, Dense, LayerNorm, zeros
from bertjax.model.vocabulary_loss import Sums, vocabulary_cross_entropy
from bertjax.parallel.sharding import constrain


def gather_positions(x_BLD: jax.Array, positions_BP: jax.Array) -> jax.Array:
    """The vectors at some positions of each row: [B, L, D], int32 [B, P] -> [B, P, D]."""
    return jnp.take_along_axis(x_BLD, positions_BP[:, :, None], axis=1, mode="clip")


class Head(nnx.Module):
    """A module on the encoder in pretraining; constructed as `Head(config, rngs=rngs)`."""

    needs_pooler: ClassVar[bool] = False


class Pooler(Head):
    """Dense and tanh on the [CLS] vectors: [B, S, D] -> [B, S, D]."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        D = config.hidden_size
        self.dense = Dense(config, (D, D), ("embed", "hidden"), "hidden", rngs=rngs)

    def __call__(self, cls_BSD: jax.Array) -> jax.Array:
        return jnp.tanh(self.dense(cls_BSD))


class MlmHead(Head):
    """Dense D -> E, activation, LayerNorm, then the word table as the output matrix (run_pretraining.py).

    E is the width of the table: D in BERT, less in ALBERT (google-research/albert `get_masked_lm_output`).
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        E = embedding_width(config)
        self.transform = Dense(config, (config.hidden_size, E), ("embed", "hidden"), "hidden", rngs=rngs)
        self.norm = LayerNorm(config, E)
        self.bias = zeros((padded_vocab_size(config),), ("vocab",))
        self.activation = config.hidden_act
        self.vocab_size = config.vocab_size

    def transformed(self, hidden_BPD: jax.Array) -> jax.Array:
        """What is compared with the word embeddings: [B, P, D] -> [B, P, E]."""
        return self.norm(ACTIVATIONS[self.activation](self.transform(hidden_BPD)))

    def sums(
        self,
        hidden_BPD: jax.Array,
        word_embeddings_VE: jax.Array,
        labels_BP: jax.Array,
        weights_BP: jax.Array,
        chunk: int,
    ) -> Sums:
        """Loss and hits over the weighted positions; the logits of `chunk` positions exist at a time."""
        h_BPE = self.transformed(hidden_BPD)
        return vocabulary_cross_entropy(
            h_BPE.reshape(-1, h_BPE.shape[-1]),
            word_embeddings_VE,
            self.bias[...],
            labels_BP.reshape(-1),
            weights_BP.reshape(-1),
            vocab_size=self.vocab_size,
            chunk=chunk,
        )

    def __call__(self, hidden_BPD: jax.Array, word_embeddings_VE: jax.Array) -> jax.Array:
        """Logits over the padded vocabulary, float32 [B, P, V]; padding entries are the lowest finite float."""
        h = self.transformed(hidden_BPD)
        logits = jnp.einsum("BPE,VE->BPV", h, word_embeddings_VE.astype(h.dtype), preferred_element_type=jnp.float32)
        logits = constrain(logits + self.bias[...], "act_batch", "act_length", "act_vocab")
        real = jnp.arange(logits.shape[-1]) < self.vocab_size
        return jnp.where(real, logits, jnp.finfo(jnp.float32).min)


class NspHead(Head):
    """Next sentence: two classes of the pooled vector, float32 [B, S, 2]; 0 = B follows A, 1 = B is random."""

    needs_pooler = True

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.dense = Dense(config, (config.hidden_size, 2), ("embed", "classes"), "classes", rngs=rngs)

    def __call__(self, pooled_BSD: jax.Array) -> jax.Array:
        return self.dense(pooled_BSD).astype(jnp.float32)


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


HEADS: dict[str, type[Head]] = {
    "pooler": Pooler,
    "mlm_head": MlmHead,
    "nsp_head": NspHead,
    "sop_head": SopHead,
}


def pretraining_heads(config: ModelConfig, names: tuple[str, ...]) -> dict[str, type[Head]]:
    """The classes of a family's heads by name, in its order; without the pooler where `model.pooler` is none.

    Raises ValueError for a head that needs the pooler where there is none.
    """
    if config.pooler != "none":
        return {name: HEADS[name] for name in names}
    needing = [name for name in names if HEADS[name].needs_pooler]
    if needing:
        raise ValueError(
            f"model.pooler='none' with model.family={config.family!r}: its {needing[0]} reads the pooled vector; "
            "set model.pooler='tanh' or choose a family without that head"
        )
    return {name: HEADS[name] for name in names if name != "pooler"}
