"""The network of denoising (TSDAE, Wang et al. 2021): an encoder, and a decoder that only sees its vector of a text."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.model.attention.self_attention import LayerInputs, SelfAttention
from bertjax.model.heads import MlmHead, Sums
from bertjax.model.layers import Dense, FeedForward, LayerNorm
from bertjax.model.task_heads import VectorNetwork


class TextDecoder(nnx.Module):
    """One transformer decoder layer and its output layer; cross-attention reads a single vector.

    The softmax over a single key is 1, so cross-attention is a linear map of the vector. The layer is BERT's, whatever
    the encoder is, without dropout. Its self-attention is causal and adds no positions. The output matrix is the
    encoder's word table.
    """

    def __init__(self, config: ModelConfig, *, rngs: nnx.Rngs) -> None:
        D = config.hidden_size
        plain = ModelConfig(
            vocab_size=config.vocab_size,
            vocab_pad_multiple=config.vocab_pad_multiple,
            hidden_size=D,
            embedding_size=config.embedding_size,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=config.intermediate_size,
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            initializer_range=config.initializer_range,
            position_embedding="none",
            causal=True,
        )
        self.attention, self.attention_norm = SelfAttention(plain, rngs=rngs), LayerNorm(plain, D)
        self.vector = Dense(plain, (D, D), ("embed", "hidden"), "hidden", rngs=rngs)
        self.vector_norm = LayerNorm(plain, D)
        self.mlp, self.mlp_norm = FeedForward(plain, rngs=rngs), LayerNorm(plain, D)
        self.prediction = MlmHead(plain, rngs=rngs)

    def __call__(self, x_BLD: jax.Array, vector_BD: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        """Compute the vectors to multiply with the word table: [B, L, E]."""
        x = self.attention_norm(x_BLD + self.attention(x_BLD, LayerInputs(sequence_ids)))
        x = self.vector_norm(x + self.vector(vector_BD.astype(x.dtype))[:, None])
        return self.prediction.transformed(self.mlp_norm(x + self.mlp(x)))


class DenoisingNetwork(VectorNetwork):
    """An encoder trained through a decoder that reads its vectors; the `served` network drops the decoder."""

    name, served = "denoising", VectorNetwork.name

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        super().__init__(config, execution, rngs=rngs)
        self.decoder, self.logits_chunk = TextDecoder(config, rngs=rngs), execution.logits_chunk

    def second_text_sums(
        self,
        hidden_BLD: jax.Array,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        sequence_ids: jax.Array,
        weights_B: jax.Array,
    ) -> Sums:
        """Predict each token of a row's second sequence from those before it and the vector of the first sequence.

        The three inputs are int32 [B, L]; `hidden_BLD` is the encoder's output for them. The loss of a text is the mean
        over its tokens except [CLS], times its weight.
        """
        vector = self.vectors(hidden_BLD, sequence_ids, 1)[:, 0] * math.sqrt(hidden_BLD.shape[-1])
        x = self.encoder.embeddings(input_ids, token_type_ids, sequence_ids)
        next_ids, next_sequence = (jnp.roll(x, -1, axis=1) for x in (input_ids, sequence_ids))
        predicts = ((sequence_ids == 2) & (next_sequence == 2)).astype(jnp.float32)
        shares = predicts / jnp.maximum(predicts.sum(axis=1, keepdims=True), 1.0)
        return self.decoder.prediction.sums(
            self.decoder(x, vector, sequence_ids),
            self.encoder.embeddings.word[...],
            next_ids,
            shares * weights_B[:, None],
            self.logits_chunk,
        )
