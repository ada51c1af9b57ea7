"""The kinds of tasks, one file each, and their registry."""

from __future__ import annotations

from bertjax.config.registry import Registry
from bertjax.config.suggestions import suggestion
from bertjax.finetune.kinds.choice import CHOICE
from bertjax.finetune.kinds.denoising import DENOISING
from bertjax.finetune.kinds.kind import Kind
from bertjax.finetune.kinds.multi_label import MULTI_LABEL
from bertjax.finetune.kinds.regression import REGRESSION
from bertjax.finetune.kinds.relevance import RELEVANCE
from bertjax.finetune.kinds.sequence import SEQUENCE
from bertjax.finetune.kinds.span import SPAN
from bertjax.finetune.kinds.text_vector import TEXT_VECTOR
from bertjax.finetune.kinds.token_numbers import TOKEN_NUMBERS
from bertjax.finetune.kinds.tokens import TOKENS
from bertjax.finetune.kinds.vector import VECTOR
from bertjax.model.network import HEADS

# By name, which a fine-tuned model's config has as `training.objectives`.
KINDS = Registry[Kind]("task_kinds", {}, Kind)


def register(kind: Kind) -> None:
    """Register a kind by its name, and its network as a value of `model.head`."""
    assert kind.name not in KINDS, f"two kinds of task are named {kind.name}"
    assert HEADS.setdefault(kind.network.name, kind.network) is kind.network, f"two heads: {kind.network.name}"
    KINDS[kind.name] = kind


def get_kind(name: str) -> Kind:
    """Look up a kind by name. Raises ValueError for an unknown name, with the nearest ones."""
    if name not in KINDS:
        raise ValueError(f"kind of task {name!r} is unknown; {suggestion(name, KINDS, count=3)}")
    return KINDS[name]


for _kind in (
    SEQUENCE,
    REGRESSION,
    RELEVANCE,
    MULTI_LABEL,
    CHOICE,
    TOKEN_NUMBERS,  # before tokens: an imported model gets the first kind that fits
    TOKENS,
    SPAN,
    VECTOR,
    TEXT_VECTOR,
    DENOISING,
):
    register(_kind)
