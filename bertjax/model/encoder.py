"""Embeddings and the stack of layers: from token ids to one vector per token."""

from __future__ import annotations

import math

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.model.attention.backends import Backend
from bertjax.model.dropout import EMBEDDINGS, dropout, fold
from bertjax.model.layers import Layer, LayerNorm
from bertjax.model.parameters import weight
from bertjax.model.product import PRODUCT
from bertjax.parallel.sharding import constrain

REMAT_POLICIES = {
    "dots": jax.checkpoint_policies.save_only_these_names(PRODUCT),
    "full": jax.checkpoint_policies.nothing_saveable,
}


def padded_vocab_size(config: ModelConfig) -> int:
    """Rows of the embedding table: the vocabulary rounded up, so that any mesh can split it evenly."""
    return -(-config.vocab_size // config.vocab_pad_multiple) * config.vocab_pad_multiple


def sinusoids(config: ModelConfig) -> jax.Array:
    """Fixed position vectors (Vaswani et al. 2017, section 3.5), float32 [max positions, D].

    Scaled to the spread that a learned table starts with: beside words of that spread, waves of height 1 would be all
    that the LayerNorm behind them lets through.
    """
    rates = 10_000.0 ** (-jnp.arange(0, config.hidden_size, 2) / config.hidden_size)
    angles = jnp.arange(config.max_position_embeddings)[:, None] * rates
    waves = jnp.stack([jnp.sin(angles), jnp.cos(angles)], axis=-1).reshape(len(angles), -1)[:, : config.hidden_size]
    return waves * (math.sqrt(2) * config.initializer_range)


class Embeddings(nnx.Module):
    """Token + position + segment, LayerNorm, dropout (modeling.py `embedding_postprocessor`)."""

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        D = config.hidden_size
        word = weight(rngs, (config.vocab_size, D), ("vocab", "embed"), config)
        # Padded after drawing, so that the real rows are the same under any padding.
        padding = padded_vocab_size(config) - config.vocab_size
        word.set_value(jnp.pad(word.get_value(), ((0, padding), (0, 0))))
        self.word = word
        if config.position_embedding == "learned":
            self.position = weight(rngs, (config.max_position_embeddings, D), ("position", "embed"), config)
        self.token_type = weight(rngs, (config.type_vocab_size, D), ("token_type", "embed"), config)
        self.norm = LayerNorm(config)
        self.config, self.dtype = config, execution.dtype

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        sequence_ids: jax.Array,
        keys: jax.Array | None,
        packed: bool,
    ) -> jax.Array:
        x = jnp.take(self.word[...], input_ids, axis=0, mode="clip")
        # Two segments: a matmul with one-hot rows, whose gradient is a matmul too and not a scatter of every token.
        x += jax.nn.one_hot(token_type_ids, self.token_type.shape[0], dtype=x.dtype) @ self.token_type[...]
        position = self.position[...] if self.config.position_embedding == "learned" else sinusoids(self.config)
        if packed:
            x += jnp.take(position, positions_in_sequence(sequence_ids), axis=0, mode="clip")
        else:
            x += position[: input_ids.shape[1]]
        x = constrain(self.norm(x).astype(self.dtype), "act_batch", "act_length", "act_embed")
        return dropout(x, keys, EMBEDDINGS, self.config.hidden_dropout_prob)


def positions_in_sequence(sequence_ids: jax.Array) -> jax.Array:
    """Positions that restart where the sequence id changes: int32 [B, L] -> int32 [B, L]."""
    place = jax.lax.broadcasted_iota(jnp.int32, sequence_ids.shape, 1)
    first = jnp.pad(sequence_ids[:, 1:] != sequence_ids[:, :-1], ((0, 0), (1, 0)), constant_values=True)
    return place - jax.lax.cummax(jnp.where(first, place, 0), axis=1)


class Encoder(nnx.Module):
    """Embeddings and layers. The layers' parameters are stacked and run by one scan."""

    def __init__(self, config: ModelConfig, execution: ExecutionConfig, *, rngs: nnx.Rngs) -> None:
        self.embeddings = Embeddings(config, execution, rngs=rngs)
        self.layers = nnx.vmap(lambda r: Layer(config, rngs=r))(rngs.split(config.num_hidden_layers))
        self.num_layers = config.num_hidden_layers
        self.remat = execution.remat
        self.unroll = min(execution.scan_unroll, config.num_hidden_layers)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        sequence_ids: jax.Array,
        dropout_keys: jax.Array | None = None,
        *,
        packed: bool = True,
        attention: Backend = "xla",
    ) -> jax.Array:
        """Hidden states of the last layer, [B, L, D] in the compute dtype.

        The three inputs are int32 [B, L]; dropout_keys is uint32 [B], or None to run without dropout. `packed=False`
        says that every row is one sequence from position 0, which spares a gather of the position table. `attention` is
        what `attention_choice` says of these rows; the reference, if nobody asked it.
        """
        x = self.embeddings(input_ids, token_type_ids, sequence_ids, dropout_keys, packed)
        return self._through_layers(x, sequence_ids, dropout_keys, packed, attention)[0]

    def hidden_states(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        sequence_ids: jax.Array,
        *,
        packed: bool = True,
        attention: Backend = "xla",
    ) -> jax.Array:
        """The embeddings and what each layer makes of them, without dropout: [layers + 1, B, L, D]."""
        x = self.embeddings(input_ids, token_type_ids, sequence_ids, None, packed)
        return jnp.concatenate([x[None], self._through_layers(x, sequence_ids, None, packed, attention, keep=True)[1]])

    def _through_layers(
        self,
        x: jax.Array,
        sequence_ids: jax.Array,
        dropout_keys: jax.Array | None,
        packed: bool,
        attention: Backend,
        *,
        keep: bool = False,
    ) -> tuple[jax.Array, jax.Array | None]:
        """What the last layer makes of x, and with `keep` what each does, stacked."""

        def body(x: jax.Array, layer_and_number: tuple[Layer, jax.Array]) -> tuple[jax.Array, jax.Array | None]:
            layer, number = layer_and_number
            keys = None if dropout_keys is None else fold(dropout_keys, number + 1)
            x = layer(x, sequence_ids, keys, packed, attention)
            return x, x if keep else None

        if self.remat != "none":
            body = jax.checkpoint(body, policy=REMAT_POLICIES[self.remat])
        numbers = jnp.arange(self.num_layers, dtype=jnp.uint32)
        return jax.lax.scan(body, x, (self.layers, numbers), unroll=self.unroll)
