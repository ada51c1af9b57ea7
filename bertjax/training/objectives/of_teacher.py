"""What an objective needs of the frozen teacher that it asks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from bertjax.config import ModelConfig


class Unfit(NamedTuple):
    """Why a teacher of some architecture cannot be asked."""

    reason: str  # "its vectors are 768 wide and those of the model 312"
    advice: str  # "set model.hidden_size to 768"


@dataclass(frozen=True)
class OfTeacher:
    """What an objective needs of the frozen teacher that it asks."""

    heads: tuple[str, ...] = ()  # modules of the teacher that it uses
    # (config of the student, config of the teacher) -> why this one cannot be asked; None where it can
    unfit: Callable[[ModelConfig, ModelConfig], Unfit | None] = lambda student, teacher: None
