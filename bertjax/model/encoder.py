"""The encoder: embeddings and the stack of layers."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.model.attention.backends import Backend
from bertjax.model.attention.positions import positions_in_sequence, sequence_sums, sinusoids
from bertjax.model.attention.relative import RelativePositions
from bertjax.model.attention.score_bias import ScoreBias
from bertjax.model.attention.self_attention import LayerInputs
from bertjax.model.attention.sparse import make_pattern
from bertjax.model.dropout import EMBEDDINGS, dropout
from bertjax.model.layers import Dense, LayerNorm
from bertjax.model.parameters import weight, zeros
from bertjax.model.stack import Layer, Stack, stacked_layers
from bertjax.parallel.sharding import constrain

if TYPE_CHECKING:
    from bertjax.model.heads import Pooler


def padded_vocab_size(config: ModelConfig) -> int:
    """Rows of the word table: the vocabulary rounded up, so that every mesh can split it evenly."""
    return -(-config.vocab_size // config.vocab_pad_multiple) * config.vocab_pad_multiple


def embedding_width(config: ModelConfig) -> int:
    """Columns of the embedding tables (E): `embedding_size`, or `hidden_size` if it is 0."""
    return config.embedding_size or config.hidden_size


def word_table(config: ModelConfig, width: int, *, rngs: nnx.Rngs) -> nnx.Param:
    """The embedding table of tokens: [V padded, width]."""
    word = weight(rngs, (config.vocab_size, width), ("vocab", "embed"), config)
    # Pad after drawing, so that the real rows do not depend on the padding.
    padding = padded_vocab_size(config) - config.vocab_size
    word.set_value(jnp.pad(word.get_value(), ((0, padding), (0, 0))))
    return word


class Embeddings(nnx.Module):
    """Word + position + token type, LayerNorm, dropout (modeling.py `embedding_postprocessor`): [B, L] -> [B, L, D].

    With `embedding_size` E the tables and their norm are E wide, and a dense layer maps E to D (ALBERT, section 3.1).
    `tables` shares the tables and the norm of another network (ELECTRA, section 3.2). With gdes only the word table is
    shared: its owner adds a learned difference to it, and only the difference gets the owner's gradient (DeBERTa v3,
    section 3.3).
    """

    def __init__(
        self, config: ModelConfig, execution: ExecutionConfig, tables: Embeddings | None = None, *, rngs: nnx.Rngs
    ) -> None:
        E = embedding_width(config)
        self.word = word_table(config, E, rngs=rngs) if tables is None else tables.word
        if tables is None or tables.word_difference is not None:
            types, tasks = config.type_vocab_size, config.task_type_vocab_size
            positions = config.max_position_embeddings if config.position_embedding == "learned" else 0
            self.position = weight(rngs, (positions, E), ("position", "embed"), config) if positions else None
            self.token_type = weight(rngs, (types, E), ("token_type", "embed"), config) if types else None
            self.task_type = weight(rngs, (tasks, E), ("token_type", "embed"), config) if tasks else None
            self.norm = None if config.embedding_norm == "none" else LayerNorm(config, E)
        else:
            self.position, self.token_type, self.task_type = tables.position, tables.token_type, tables.task_type
            self.norm = tables.norm
        gdes, shape = config.embedding_sharing == "gdes", (padded_vocab_size(config), E)
        self.word_difference = zeros(shape, ("vocab", "embed")) if gdes else None
        narrow, sizes = config.embedding_size > 0, (E, config.hidden_size)
        self.projection = Dense(config, sizes, ("embed", "hidden"), "hidden", rngs=rngs) if narrow else None
        self.config, self.dtype = config, execution.dtype

    def __call__(
        self,
        input_ids: jax.Array,
        token_type_ids: jax.Array,
        sequence_ids: jax.Array,
        dropout_keys: jax.Array | None = None,
        packed: bool = True,
    ) -> jax.Array:
        x = jnp.take(self.word[...], input_ids, axis=0, mode="clip")
        if self.word_difference is not None:
            x = jax.lax.stop_gradient(x) + jnp.take(self.word_difference[...], input_ids, axis=0, mode="clip")
        if self.config.token_dropout:
            x = self._without_masks(x, input_ids, sequence_ids, packed)
        if self.token_type is not None:
            x = self._with_token_types(x, self.token_type[...], token_type_ids)
        if self.task_type is not None:
            x += self.task_type[...][0]
        if (positions := self._positions()) is not None:
            if packed:
                x += jnp.take(positions, positions_in_sequence(sequence_ids), axis=0, mode="clip")
            else:
                x += positions[: sequence_ids.shape[1]]
        rate, drop_first = self.config.hidden_dropout_prob, self.config.embedding_norm == "dropout_norm"
        x = dropout(x, dropout_keys, EMBEDDINGS, rate) if drop_first else x
        x = x if self.norm is None else self.norm(x)
        x = constrain(x.astype(self.dtype), "act_batch", "act_length", "act_embed")
        x = x if drop_first else dropout(x, dropout_keys, EMBEDDINGS, rate)
        if self.projection is None:
            return x
        return constrain(self.projection(x), "act_batch", "act_length", "act_embed")

    def _without_masks(self, x: jax.Array, input_ids: jax.Array, sequence_ids: jax.Array, packed: bool) -> jax.Array:
        """Token dropout: zero the vectors of [MASK], and scale the sequence's other vectors up to make up for them.

        Source: transformers' `EsmEmbeddings`, which computes the masked share of a row of one sequence.
        """
        masked = input_ids == self.config.mask_token_id
        tokens = sequence_ids > 0
        shares = sequence_sums(masked & tokens, sequence_ids, packed) / jnp.maximum(
            sequence_sums(tokens, sequence_ids, packed), 1
        )
        # Every sequence contains [CLS], so its masked share is below 1.
        scale = (1.0 - self.config.token_dropout) / jnp.maximum(1.0 - shares, 1e-6)
        return jnp.where(masked[..., None], 0.0, x) * scale[..., None]

    def _positions(self) -> jax.Array | None:
        """A vector for each position, float32 [max positions, E]."""
        if self.position is not None:
            return self.position[...]
        return sinusoids(self.config) if self.config.position_embedding == "sinusoidal" else None

    def _with_token_types(self, x: jax.Array, table: jax.Array, token_type_ids: jax.Array) -> jax.Array:
        if len(table) == 1:  # every token has this type, whatever its segment (RoBERTa)
            return x + table[0]
        # A product with one-hot rows: its gradient is a product too, not a scatter over tokens.
        return x + jax.nn.one_hot(token_type_ids, len(table), dtype=x.dtype) @ table


class Encoder(nnx.Module):
    """From token ids to one vector per token; `tables` as in `Embeddings`."""

    def __init__(
        self, config: ModelConfig, execution: ExecutionConfig, tables: Embeddings | None = None, *, rngs: nnx.Rngs
    ) -> None:
        self.embeddings = Embeddings(config, execution, tables, rngs=rngs)
        self.first_layer, self.layers = stacked_layers(config, rngs=rngs)
        has_final_norm, has_bias = config.norm_place == "pre", config.final_norm_bias
        self.final_norm = LayerNorm(config, config.hidden_size, has_bias) if has_final_norm else None
        self.relative = RelativePositions(config, rngs=rngs) if config.position_embedding == "relative" else None
        self.score_bias = ScoreBias(config, rngs=rngs) if config.score_bias_buckets else None
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
        """Compute the hidden states of the last layer, [B, L, D] in the compute dtype.

        The three inputs are int32 [B, L]; dropout_keys is uint32 [B], or None to run without dropout. `packed=False`
        means that every row is one sequence that starts at position 0: this saves a gather of the position table.
        `attention` is the backend from `choose_attention`; the default is the reference. `global_positions` is
        described in `make_pattern`; a model without global tokens ignores it.
        """
        x = self.embeddings(input_ids, token_type_ids, sequence_ids, dropout_keys, packed)
        inputs = self.layer_inputs(sequence_ids, dropout_keys, packed, attention, global_positions)

        def step(layer: Layer, inputs: LayerInputs, x: jax.Array, _: None) -> tuple[jax.Array, None]:
            return layer(x, inputs), None

        return self.normed(self.stack.run(step, x, inputs)[0])

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
        """Compute the input of the first layer and the output of each layer, without dropout: [layers + 1, B, L, D].

        The last one is after the final norm, if the model has one.
        """
        first = self.embeddings(input_ids, token_type_ids, sequence_ids, None, packed)
        inputs = self.layer_inputs(sequence_ids, None, packed, attention, global_positions)

        def step(layer: Layer, inputs: LayerInputs, x: jax.Array, _: None) -> tuple[jax.Array, jax.Array]:
            x = layer(x, inputs)
            return x, x

        last, states = self.stack.run(step, first, inputs)
        return jnp.concatenate([first[None], states[:-1], self.normed(last)[None]])

    def layer_inputs(
        self,
        sequence_ids: jax.Array,
        dropout_keys: jax.Array | None = None,
        packed: bool = True,
        attention: Backend = "xla",
        global_positions: jax.Array | None = None,
    ) -> LayerInputs:
        """The inputs that all layers share; arguments as in `__call__`."""
        has_pattern = self.config.attention_block > 0 or self.config.global_tokens != "none"
        return LayerInputs(
            sequence_ids,
            dropout_keys,
            packed,
            attention,
            distances=None if self.relative is None else self.relative().astype(self.execution.dtype),
            pattern=make_pattern(self.config, sequence_ids, packed, global_positions) if has_pattern else None,
            score_bias=None if self.score_bias is None else self.score_bias(sequence_ids.shape[1]),
        )

    @property
    def stack(self) -> Stack:
        """The layers and how they are executed."""
        return Stack(self.config, self.execution, self.first_layer, self.layers)

    def normed(self, x_BLD: jax.Array) -> jax.Array:
        """Apply the final norm, if the model has one, to the output of the last layer."""
        return x_BLD if self.final_norm is None else self.final_norm(x_BLD)


class TaskNetwork(nnx.Module):
    """The encoder below any head. With `model.features` it is frozen, and the head reads several layers.

    `model.teacher_width` adds a projection that only distillation of layers uses.

    Class attributes:
        name: `model.head` of a config
        transformers: suffix of the name of transformers' class, after the family's name
        transformers_head: transformers' name of the dense layer `head/dense`; "" if there is none
        outputs: names of the logits in transformers; empty if the network only computes vectors
        of_task: False for the pretraining network
        labelled: the head has `model.num_labels` outputs, 1 or more
        pooled: the network has a pooler
        per_token: the logits are per token, [B, L, ...]
        feature_based: `model.features` and `model.lstm_size` may be set
        served: `model.head` with which a finished run is loaded, to drop modules that only training needs; "" if they
            are the same
        heads: names of the pretraining heads (instance attribute)
        decodes: the MLM head reads the output of an enhanced decoder (instance attribute)
    """

    name: ClassVar[str]
    transformers: ClassVar[str]
    transformers_head: ClassVar[str] = "classifier"
    outputs: ClassVar[tuple[str, ...]] = ("logits",)
    of_task: ClassVar[bool] = True
    labelled: ClassVar[bool] = False
    pooled: ClassVar[bool] = False
    per_token: ClassVar[bool] = False
    feature_based: ClassVar[bool] = False
    served: ClassVar[str] = ""
    heads: tuple[str, ...] = ()
    decodes: bool = False
    pooler: Pooler | None

    def __init__(
        self, config: ModelConfig, execution: ExecutionConfig, tables: Embeddings | None = None, *, rngs: nnx.Rngs
    ) -> None:
        self.encoder = Encoder(config, execution, tables, rngs=rngs)
        if config.teacher_width:
            sizes = config.hidden_size, config.teacher_width
            self.teacher_projection = Dense(config, sizes, ("embed", "hidden"), "hidden", rngs=rngs)
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
        global_positions: jax.Array | None = None,
    ) -> jax.Array:
        """Compute the encoder's last layer, [B, L, D], or the layers in `features` side by side, [B, L, D features].

        With `features` the encoder is frozen: it has neither gradient nor dropout.
        """
        inputs = (input_ids, token_type_ids, sequence_ids)
        options = {"packed": packed, "attention": attention, "global_positions": global_positions}
        if not self.features:
            return self.encoder(*inputs, keys, **options)
        states = jax.lax.stop_gradient(self.encoder.hidden_states(*inputs, **options))
        return jnp.concatenate([states[layer] for layer in self.features], axis=-1)

    def companions(self) -> dict[str, TaskNetwork]:
        """Modules that are trained as separate networks, by the names that objectives use."""
        return {}

    def row_logits(self, hidden_BLD: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        """Compute the logits of rows with one sequence each: [B, classes], or [B, L, classes] if `per_token`.

        A row of multiple choice holds one choice here and gives one logit: [B, 1].
        """
        raise NotImplementedError(f"the network {self.name!r} has no logits")
