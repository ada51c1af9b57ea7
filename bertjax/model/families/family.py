"""What a member of the family is: everything that depends on its name and does not follow from the model's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bertjax.config import ModelConfig
from bertjax.input.layout import BERT as BERT_TEMPLATE
from bertjax.input.layout import Template
from bertjax.model.families.huggingface import HuggingFace


@dataclass(frozen=True)
class Family:
    """A member: one object in one file, one line in the registry."""

    name: str  # value of `ModelConfig.family`
    presets: Mapping[str, ModelConfig]  # published sizes by name, such as "base"
    heads: tuple[str, ...]  # modules on the encoder in pretraining, by their names in the network's parameters
    huggingface: HuggingFace
    template: Template = BERT_TEMPLATE

    @property
    def objectives(self) -> tuple[str, ...]:
        """The objectives of pretraining, by name: a head is named after its objective."""
        return tuple(head.removesuffix("_head") for head in self.heads if head.endswith("_head"))
