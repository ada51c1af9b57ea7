"""The declaration of a family: everything that depends on its name, here and in transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from bertjax.config import ModelConfig
from bertjax.families.hf_config import HfConfig, read_fields, write_fields
from bertjax.input.layout import BERT as BERT_TEMPLATE
from bertjax.input.layout import Template

# What to do with a network that transformers lacks.
WITHOUT_CLASS = (
    "export to an executable format (--to onnx, savedmodel, stablehlo, litert, web), or use the run itself (bertjax "
    "embed, fill-mask, evaluate, finetune, predict, search)"
)


@dataclass(frozen=True)
class Family:
    """A family of models: one object in one file, and its entry in the registry."""

    name: str  # value of `ModelConfig.family`
    title: str  # the name in its paper
    presets: Mapping[str, ModelConfig]  # published sizes by name, such as "base"
    heads: tuple[str, ...]  # the heads of pretraining, by their names in the network's parameters
    huggingface: HuggingFace | None  # None: transformers has no such class
    template: Template = BERT_TEMPLATE
    generator: str = ""  # the family of the generator, if its models are trained with one

    @property
    def transformers(self) -> HuggingFace:
        """The family in transformers. Raises ValueError if it has no class there."""
        if self.huggingface is None:
            raise ValueError(f"transformers has no class of {self.title}; {WITHOUT_CLASS}")
        return self.huggingface

    @property
    def objectives(self) -> tuple[str, ...]:
        """Names of the objectives of pretraining: a head is named after its objective."""
        return tuple(head.removesuffix("_head") for head in self.heads if head.endswith("_head"))


@dataclass(frozen=True)
class Tensor:
    """An array's name here and in transformers.

    `theirs` with {} is one array per layer, or per group of layers that share parameters; ours is their stack. Entries
    with the same `theirs` are its successive parts.
    """

    ours: str
    theirs: str
    inputs: int = 0  # leading dims of a kernel that are its inputs; theirs is a matrix [outputs, inputs]
    padded: bool = False  # ours has rows that pad the vocabulary
    positions: bool = False  # theirs may have rows before the first position
    optional: bool = False  # exists only with some options of the model
    first: int = 0  # the first layer of our stack
    part: tuple[int, int] = (0, 1)  # (i, n): ours is the i-th of n equal slices of theirs
    by_head: bool = False  # the slices are interleaved by head
    keeps_dims: bool = False  # theirs keeps the dims of `inputs`: [outputs, *inputs]
    others: tuple[str, ...] = ()  # names of further tensors of equal size whose rows follow `theirs` in ours

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all their tensors."""
        return self.theirs, *self.others

    @property
    def stacked(self) -> bool:
        """Whether ours is a stack of several of theirs."""
        return "{}" in self.theirs


def dense(ours: str, theirs: str, inputs: int = 1) -> tuple[Tensor, Tensor]:
    """Kernel and bias of a dense layer."""
    return Tensor(f"{ours}/kernel", f"{theirs}.weight", inputs), Tensor(f"{ours}/bias", f"{theirs}.bias")


def norm(ours: str, theirs: str) -> tuple[Tensor, Tensor]:
    """Scale and bias of a LayerNorm."""
    return Tensor(f"{ours}/scale", f"{theirs}.weight"), Tensor(f"{ours}/bias", f"{theirs}.bias")


def tables(theirs: str) -> tuple[Tensor, ...]:
    """The three embedding tables and their LayerNorm, with the names that all families share."""
    return (
        Tensor("encoder/embeddings/word", f"{theirs}.word_embeddings.weight", padded=True),
        Tensor("encoder/embeddings/position", f"{theirs}.position_embeddings.weight", positions=True),
        Tensor("encoder/embeddings/token_type", f"{theirs}.token_type_embeddings.weight"),
        *norm("encoder/embeddings/norm", f"{theirs}.LayerNorm"),
    )


@dataclass(frozen=True)
class Class:
    """A class of transformers and its tensors."""

    name: str
    tensors: tuple[Tensor, ...]
    outputs: Mapping[str, str] = field(default_factory=dict)  # our pretraining head -> output with its logits
    bare: bool = False  # the encoder's own class, whose tensors have no prefix


@dataclass(frozen=True)
class HuggingFace:
    """A family in transformers.

    Attributes:
        model_type: Value of this key in `config.json`.
        prefix: Prefix of the encoder's tensors in every class except the encoder's own.
        beginning: First part of its class names; the rest depends on the head.
        encoder: The encoder's tensors, with their names in a class with a head.
        pooler: The pooler's tensors.
        pretraining: The class with all heads of pretraining.
        left_out: Modules of the pretraining network without a class in transformers.
        partial: Classes with fewer heads of pretraining, those with most heads first.
        own_heads: Suffix of a class name -> tensors of its head and pooler, where they differ from other families.
        head_constants: Suffix of a class name -> keys that only this class reads, with the values required on import.
            They are transformers' defaults, so they are not written.
        lacking: Suffixes of classes that other families have and this one lacks.
        tied: Stored tensors that equal another one -> that other one.
        aliases: Prefixes of names in other files -> their replacements.
        ignored: Prefixes of tensors in published files that no class has.
        computed_tensors: Returns the stored tensors that follow from the config, such as rotary frequencies, by name;
            none if its classes compute them when they load a file. `ignored` must have them, except frequencies.
        transformers_only: Prefix of tensors that bertjax lacks and transformers initialises at random -> what they are.
        constants: Keys of `config.json` with the values required on import, if the file has them.
        to_hf_config: Returns the keys of `config.json`, without ids of special tokens.
        from_hf_config: Returns fields of ModelConfig. Raises ValueError for unsupported values.
        positions_from_padding: The position table begins with unused rows, for 0 up to the padding token's id.
        pad_token_id: The padding token's id if `config.json` lacks it.
        fixed_pad_id: transformers' code always pads with `pad_token_id` and ignores `config.json`.
        token_ids: Key of `config.json` -> role of the special token.
    """

    model_type: str
    prefix: str
    beginning: str
    encoder: tuple[Tensor, ...]
    pooler: tuple[Tensor, ...]
    pretraining: Class
    left_out: tuple[str, ...] = ()
    partial: tuple[Class, ...] = ()
    own_heads: Mapping[str, tuple[Tensor, ...]] = field(default_factory=dict)
    head_constants: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    lacking: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    aliases: Mapping[str, str] = field(default_factory=dict)
    ignored: tuple[str, ...] = ()
    computed_tensors: Callable[[ModelConfig], Mapping[str, np.ndarray]] = lambda model: {}
    transformers_only: Mapping[str, str] = field(default_factory=dict)
    constants: Mapping[str, Any] = field(
        default_factory=lambda: {"position_embedding_type": "absolute", "add_cross_attention": False}
    )
    to_hf_config: Callable[[ModelConfig], dict[str, Any]] = write_fields
    from_hf_config: Callable[[HfConfig], dict[str, Any]] = read_fields
    positions_from_padding: bool = False
    pad_token_id: int = 0
    fixed_pad_id: bool = False
    token_ids: Mapping[str, str] = field(default_factory=lambda: {"pad_token_id": "pad"})

    def rows_before_positions(self, pad_id: int) -> int:
        """Rows of the position table before the first position."""
        return pad_id + 1 if self.positions_from_padding else 0
