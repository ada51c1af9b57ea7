"""The encoder: embeddings and the stack of layers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.model.attention.backends import Backend
from bertjax.model.attention.positions import positions_in_sequence, sinusoids
from bertjax.model.attention.relative import RelativePositions
from bertjax.model.attention.sparse import pattern_of
from bertjax.model.dropout import EMBEDDINGS, dropout, fold
from bertjax.model.layers import Dense, LayerNorm
from bertjax.model.parameters import weight, zeros
from bertjax.model.stack import Layer, Step, run_layers, stacked_layers
from bertjax.parallel.sharding import constrain


def padded_vocab_size(config: ModelConfig) -> int:
    """Rows of the word table: the vocabulary rounded up, so that every mesh can split it evenly."""
    return -(-config.vocab_size // config.vocab_pad_multiple) * config.vocab_pad_multiple


def embedding_width(config: ModelConfig) -> int:
    """Columns of the embedding tables (E): `embedding_size`, or `hidden_size` where it is 0."""
    return config.embedding_size or config.hidden_size


def word_table(config: ModelConfig, width: int, *, rngs: nnx.Rngs) -> nnx.Param:
    """A row of so many numbers for every token: [V padded, width]."""
    word = weight(rngs, (config.vocab_size, width), ("vocab", "embed"), config)
    # Padded after drawing, so that the real rows do not depend on the padding.
    padding = padded_vocab_size(config) - config.vocab_size
    word.set_value(jnp.pad(word.get_value(), ((0, padding), (0, 0))))
    return word


class Embeddings(nnx.Module):
    """Word + position + token type, LayerNorm, dropout (modeling.py `embedding_postprocessor`): [B, L] -> [B, L, D].

    With `embedding_size` E the tables and their norm are E wide, and a dense layer maps E to D (ALBERT, section 3.1).
    With `tables` it has theirs and their norm, and its own dense layer (ELECTRA, section 3.2); with gdes it has their
    words alone, and they add a difference that the gradient goes to (DeBERTa v3, section 3.3).
    """

    def __init__(
        self, config: ModelConfig, execution: ExecutionConfig, tables: Embeddings | None = None, *, rngs: nnx.Rngs
    ) -> None:
        E = embedding_width(config)
        of_words = tables is not None and tables.word_difference is not None
        if tables is None or of_words:
            self._draw(config, E, rngs)
        if tables is not None:
            shared = ("word",) if of_words else ("word", "position", "token_type", "task_type", "norm")
            for name in shared:
                setattr(self, name, getattr(tables, name, None))  # a model may lack all but the first
        shape, is_apart = (padded_vocab_size(config), E), config.embedding_sharing == "gdes"
        self.word_difference = zeros(shape, ("vocab", "embed")) if is_apart else None
        if config.embedding_size:
            self.projection = Dense(config, (E, config.hidden_size), ("embed", "hidden"), "hidden", rngs=rngs)
        self.config, self.dtype = config, execution.dtype

    def _draw(self, config: ModelConfig, E: int, rngs: nnx.Rngs) -> None:
        self.word = word_table(config, E, rngs=rngs)
        if config.position_embedding == "learned":
            self.position = weight(rngs, (config.max_position_embeddings, E), ("position", "embed"), config)
        if config.type_vocab_size:
            self.token_type = weight(rngs, (config.type_vocab_size, E), ("token_type", "embed"), config)
        if config.task_type_vocab_size:
            self.task_type = weight(rngs, (config.task_type_vocab_size, E), ("token_type", "embed"), config)
        self.norm = None if config.embedding_norm == "none" else LayerNorm(config, E)

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        sequence_ids: jax.Array,
        keys: jax.Array | None,
        packed: bool,
    ) -> jax.Array:
        x = jnp.take(self.word[...], input_ids, axis=0, mode="clip")
        if self.word_difference is not None:
            x = jax.lax.stop_gradient(x) + jnp.take(self.word_difference[...], input_ids, axis=0, mode="clip")
        x = self._with_token_types(x, token_type_ids)
        if self.config.task_type_vocab_size:
            x += self.task_type[...][0]
        if self.config.position_embedding in ("learned", "sinusoidal"):
            x += self._positions(sequence_ids, packed)
        rate, first = self.config.hidden_dropout_prob, self.config.embedding_norm == "dropout_norm"
        x = dropout(x, keys, EMBEDDINGS, rate) if first else x
        x = x if self.norm is None else self.norm(x)
        x = constrain(x.astype(self.dtype), "act_batch", "act_length", "act_embed")
        x = x if first else dropout(x, keys, EMBEDDINGS, rate)
        if not self.config.embedding_size:
            return x
        return constrain(self.projection(x), "act_batch", "act_length", "act_embed")

    def _positions(self, sequence_ids: jax.Array, packed: bool) -> jax.Array:
        position = self.position[...] if self.config.position_embedding == "learned" else sinusoids(self.config)
        if packed:
            return jnp.take(position, positions_in_sequence(sequence_ids), axis=0, mode="clip")
        return position[: sequence_ids.shape[1]]

    def _with_token_types(self, x: jax.Array, token_type_ids: jax.Array) -> jax.Array:
        if not self.config.type_vocab_size:
            return x
        if self.config.type_vocab_size == 1:  # every token has it, whichever segment it is in (RoBERTa)
            return x + self.token_type[...][0]
        # A product with one-hot rows: its gradient is a product too, not a scatter of every token.
        one_hot = jax.nn.one_hot(token_type_ids, self.config.type_vocab_size, dtype=x.dtype)
        return x + one_hot @ self.token_type[...]


class Encoder(nnx.Module):
    """From token ids to one vector per token; `tables` as `Embeddings` has them."""

    def __init__(
        self, config: ModelConfig, execution: ExecutionConfig, tables: Embeddings | None = None, *, rngs: nnx.Rngs
    ) -> None:
        self.embeddings = Embeddings(config, execution, tables, rngs=rngs)
        self.first_layer, self.layers = stacked_layers(config, rngs=rngs)
        self.final_norm = LayerNorm(config, config.hidden_size) if config.norm_place == "pre" else None
        self.relative = RelativePositions(config, rngs=rngs) if config.position_embedding == "relative" else None
        self.config, self.execution = config, execution

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        sequence_ids: jax.Array,
        dropout_keys: jax.Array | None = None,
        *,
        packed: bool = True,
        attention: Backend = "xla",
        global_positions: jax.Array | None = None,
    ) -> jax.Array:
        """Hidden states of the last layer, [B, L, D] in the compute dtype.

        The three inputs are int32 [B, L]; dropout_keys is uint32 [B], or None to run without dropout. `packed=False`
        means that every row is one sequence that starts at position 0: this saves a gather of the position table.
        `attention` is the back end that `choose_attention` gives for these rows; the default is the reference.
        `global_positions` are as `pattern_of` has them; a model without global tokens does not read them.
        """
        x = self.embeddings(input_ids, token_type_ids, sequence_ids, dropout_keys, packed)
        relative, pattern = self.of_distances(), pattern_of(self.config, sequence_ids, packed, global_positions)

        def step(layer: Layer, number: jax.Array, window: int, x: jax.Array, _: Any) -> tuple[jax.Array, None]:
            keys = None if dropout_keys is None else fold(dropout_keys, number + 1)
            seen = pattern and pattern.of_layer(number)
            return layer(x, sequence_ids, keys, packed, attention, window, relative, pattern=seen), None

        return self.normed(self.through_layers(step, x)[0])

    def hidden_states(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        sequence_ids: jax.Array,
        *,
        packed: bool = True,
        attention: Backend = "xla",
        global_positions: jax.Array | None = None,
    ) -> jax.Array:
        """The input of the first layer and the output of each layer, without dropout: [layers + 1, B, L, D].

        The last one is after the final norm, if there is one.
        """
        first, relative = self.embeddings(input_ids, token_type_ids, sequence_ids, None, packed), self.of_distances()
        pattern = pattern_of(self.config, sequence_ids, packed, global_positions)

        def step(layer: Layer, number: jax.Array, window: int, x: jax.Array, _: Any) -> tuple[jax.Array, jax.Array]:
            seen = pattern and pattern.of_layer(number)
            x = layer(x, sequence_ids, None, packed, attention, window, relative, pattern=seen)
            return x, x

        last, states = self.through_layers(step, first)
        return jnp.concatenate([first[None], states[:-1], self.normed(last)[None]])

    def of_distances(self) -> jax.Array | None:
        """What layers take as `relative`: the vectors of distances, [S, D]; None where there are none."""
        return None if self.relative is None else self.relative().astype(self.execution.dtype)

    def normed(self, x_BLD: jax.Array) -> jax.Array:
        """What heads read, given the output of the last layer."""
        return x_BLD if self.final_norm is None else self.final_norm(x_BLD)

    def through_layers(self, step: Step, x: jax.Array, extras: Any = None) -> tuple[jax.Array, Any]:
        """`run_layers` with this encoder's layers: (output of the last layer, what `step` collects of each)."""
        return run_layers(self.config, self.execution, self.first_layer, self.layers, step, x, extras)
