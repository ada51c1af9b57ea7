"""The declaration of a family: what depends on its name and not on the model's options, here and in transformers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.hf_config import HfConfig, read_fields, write_fields
from bertjax.input.layout import BERT as BERT_TEMPLATE
from bertjax.input.layout import Template


@dataclass(frozen=True)
class Family:
    """A member of BERT's family: one object in one file, one line in the registry."""

    name: str  # value of `ModelConfig.family`
    title: str  # the name as its paper spells it
    presets: Mapping[str, ModelConfig]  # published sizes by name, such as "base"
    heads: tuple[str, ...]  # modules on the encoder in pretraining, by their names in the network's parameters
    huggingface: HuggingFace | None  # None: transformers has no class of it
    template: Template = BERT_TEMPLATE
    generator: str = ""  # the family of the generators that its models are trained with, if any are

    @property
    def transformers(self) -> HuggingFace:
        """The family in transformers. Raises ValueError if it has no class there."""
        if self.huggingface is None:
            raise ValueError(
                f"transformers has no class of {self.title}: export to a format that is executed (--to onnx, "
                "savedmodel, stablehlo, litert, web), or use the run itself (bertjax embed, fill-mask, evaluate, "
                "finetune, predict, search)"
            )
        return self.huggingface

    @property
    def objectives(self) -> tuple[str, ...]:
        """The objectives of pretraining, by name: a head is named after its objective."""
        return tuple(head.removesuffix("_head") for head in self.heads if head.endswith("_head"))


@dataclass(frozen=True)
class Tensor:
    """One array under both names.

    `theirs` with {} is one array per layer, or per group of layers that share their parameters; ours is their
    stack. Several entries of one `theirs` are its parts, one below the other.
    """

    ours: str
    theirs: str
    inputs: int = 0  # leading dims of a kernel that are multiplied; theirs is a matrix [outputs, inputs]
    padded: bool = False  # ours has the rows that pad the vocabulary
    positions: bool = False  # theirs may have rows before that of the first position
    optional: bool = False  # exists only with some options of the model
    first: int = 0  # the layer that our stack begins with
    part: tuple[int, int] = (0, 1)  # (i, n): ours is the i-th of n equal slices of theirs
    by_head: bool = False  # the parts are stacked within each head, and the heads stacked
    kept: bool = False  # theirs has the dims of `inputs` one by one: [outputs, *inputs]

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
    """The three embedding tables and their LayerNorm, which all families name alike."""
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
    outputs: Mapping[str, str] = field(default_factory=dict)  # pretraining head of ours -> output that has its logits
    bare: bool = False  # the encoder's own class, whose tensors have no prefix


@dataclass(frozen=True)
class HuggingFace:
    """A family in transformers.

    Attributes:
        model_type: The key of that name in `config.json`.
        prefix: In front of the encoder's tensors in every class but the encoder's own.
        beginning: Of the names of its classes; the rest depends on the network's head.
        encoder: The encoder's tensors, as they are named in a class with a head.
        pooler: Those of the pooler.
        pretraining: The class with all heads of pretraining.
        left_out: Modules of the network of pretraining that no class of transformers has.
        partial: Classes with fewer heads of pretraining, those with most of them first.
        own_heads: What follows in a class's name -> tensors of its head and pooler, where other families name them
            otherwise.
        head_constants: What follows in a class's name -> keys that this class alone reads, and the value that they have
            where a folder is read; they are not written, for these are transformers' defaults.
        lacking: What follows in the names of classes that other families have and this one has not.
        tied: Tensors that may be stored though they are another one -> that other.
        aliases: Beginnings of names in other files -> what replaces them in the names of these tensors.
        ignored: Beginnings of tensors in published files that none of the classes has.
        to_hf_config: The keys of `config.json` for a model, without ids of special tokens.
        from_hf_config: Fields of ModelConfig for a `config.json`. Raises ValueError for what bertjax lacks.
        positions_from_padding: The position table has rows for 0 up to the padding token's id, which no token uses.
        pad_token_id: The padding token's id where `config.json` does not name it.
        token_ids: Key -> role of the special token whose id it is.
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
    to_hf_config: Callable[[ModelConfig], dict[str, Any]] = write_fields
    from_hf_config: Callable[[HfConfig], dict[str, Any]] = read_fields
    positions_from_padding: bool = False
    pad_token_id: int = 0
    token_ids: Mapping[str, str] = field(default_factory=lambda: {"pad_token_id": "pad"})

    def rows_before_positions(self, pad_id: int) -> int:
        """Rows of the position table in front of that of the first position."""
        return pad_id + 1 if self.positions_from_padding else 0
