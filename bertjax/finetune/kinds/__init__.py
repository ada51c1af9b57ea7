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

_ALL = (
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
)
# By name, which a fine-tuned model's config has as `training.objectives`.
KINDS = Registry("task_kinds", {kind.name: kind for kind in _ALL}, Kind)
HEADS.own.update({kind.network.name: kind.network for kind in _ALL})  # the package's, also while a plug-in is imported


def get_kind(name: str) -> Kind:
    """Look up a kind by name. Raises ValueError for an unknown name, with the nearest ones."""
    if name not in KINDS:
        raise ValueError(f"kind of task {name!r} is unknown; {suggestion(name, KINDS, count=3)}")
    return KINDS[name]
