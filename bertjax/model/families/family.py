"""What a member of the family is: all that is told by its name, and nothing that follows from the model's options."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from bertjax.config import ModelConfig


@dataclass(frozen=True)
class Family:
    """A member: one object in one file, one line in the registry."""

    name: str  # as `ModelConfig.family` has it
    presets: Mapping[str, ModelConfig]  # published sizes by name, such as "base"
    heads: tuple[str, ...]  # modules on the encoder in pretraining, by their names in the network's parameters
