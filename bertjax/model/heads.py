"""What stands on the encoder for pretraining: the pooler, the MLM head and the NSP head."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.model.embeddings import padded_vocab_size
from bertjax.model.layers import ACTIVATIONS, Dense, LayerNorm
from bertjax.model.parameters import zeros
from bertjax.model.vocabulary_loss import Sums, vocabulary_cross_entropy
from bertjax.parallel.sharding import constrain


def gather_positions(x_BLD: jax.Array, positions_BP: jax.Array) -> jax.Array:
    """The vectors at some positions of each row: [B, L, D], int32 [B, P] -> [B, P, D]."""
    return jnp.take_along_axis(x_BLD, positions_BP[:, :, None], axis=1, mode="clip")


class Pooler(nnx.Module):
    """Dense and tanh on the [CLS] vectors: [B, S, D] -> [B, S, D]."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        D = config.hidden_size
        self.dense = Dense(config, (D, D), ("embed", "hidden"), "hidden", rngs=rngs)

    def __call__(self, cls_BSD: jax.Array) -> jax.Array:
        return jnp.tanh(self.dense(cls_BSD))


class MlmHead(nnx.Module):
    """Dense, activation, LayerNorm, then the word embeddings as the output matrix (run_pretraining.py)."""

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        D = config.hidden_size
        self.transform = Dense(config, (D, D), ("embed", "hidden"), "hidden", rngs=rngs)
        self.norm = LayerNorm(config)
        self.bias = zeros((padded_vocab_size(config),), ("vocab",))
        self.activation = config.hidden_act
        self.vocab_size = config.vocab_size
        self.chunk = execution.logits_chunk

    def transformed(self, hidden_BPD: jax.Array) -> jax.Array:
        """What is compared with the word embeddings: [B, P, D] -> [B, P, D]."""
        return self.norm(ACTIVATIONS[self.activation](self.transform(hidden_BPD)))

    def sums(
        self, hidden_BPD: jax.Array, word_embeddings_VD: jax.Array, labels_BP: jax.Array, weights_BP: jax.Array
    ) -> Sums:
        """Loss and hits over the weighted positions; the logits never exist all at once."""
        return vocabulary_cross_entropy(
            self.transformed(hidden_BPD).reshape(-1, hidden_BPD.shape[-1]),
            word_embeddings_VD,
            self.bias[...],
            labels_BP.reshape(-1),
            weights_BP.reshape(-1),
            vocab_size=self.vocab_size,
            chunk=self.chunk,
        )

    def __call__(self, hidden_BPD: jax.Array, word_embeddings_VD: jax.Array) -> jax.Array:
        """Logits over the padded vocabulary, float32 [B, P, V]; padding entries are the lowest finite float."""
        h = self.transformed(hidden_BPD)
        logits = jnp.einsum("BPD,VD->BPV", h, word_embeddings_VD.astype(h.dtype), preferred_element_type=jnp.float32)
        logits = constrain(logits + self.bias[...], "act_batch", "act_length", "act_vocab")
        real = jnp.arange(logits.shape[-1]) < self.vocab_size
        return jnp.where(real, logits, jnp.finfo(jnp.float32).min)


class NspHead(nnx.Module):
    """Two classes from the pooled vector, float32 [B, S, 2]: 0 = B follows A, 1 = B is random."""

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        self.dense = Dense(config, (config.hidden_size, 2), ("embed", "classes"), "classes", rngs=rngs)

    def __call__(self, pooled_BSD: jax.Array) -> jax.Array:
        return self.dense(pooled_BSD).astype(jnp.float32)
