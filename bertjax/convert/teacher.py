"""The teacher of a run, read from wherever a model may come from, and checked against the student."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from bertjax.config import Config, ModelConfig
from bertjax.convert.foreign import ForeignModel, module_label
from bertjax.convert.sources import read_source
from bertjax.model.encoder import padded_vocab_size
from bertjax.model.families.registry import family_of
from bertjax.model.network import Params, abstract_network
from bertjax.parallel.sharding import is_names
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.stages import stages_of
from bertjax.training.teacher import Teacher, objectives_that_ask

_SHOWN = 3  # tokens in a message


def read_teacher(config: Config) -> ForeignModel | None:
    """The model that `distillation.teacher` names; None if none of the run's objectives asks one.

    Raises ValueError if it cannot be read, or if the objectives cannot ask it about the student's rows.
    """
    asking = list(objectives_that_ask(config))
    if not asking:
        return None
    found = read_source(config.distillation.teacher)
    for wrong in _unfit(found, config):
        raise ValueError(f"distillation.teacher={config.distillation.teacher!r}: {wrong}")
    for objective in asking:
        assert objective.teacher is not None, "only those that ask a teacher were chosen"
        for head in objective.teacher.heads:
            if head not in found.params or module_label(head) in found.drawn:
                raise ValueError(
                    f"distillation.teacher={config.distillation.teacher!r}: it has no trained {module_label(head)}, "
                    f"which {objective.name} asks; name another teacher, or leave {objective.name} out"
                )
        if unfit := objective.teacher.unfit(config.model, found.config):
            raise ValueError(
                f"distillation.teacher={config.distillation.teacher!r}: {unfit.reason}, so {objective.name} cannot "
                f"compare them; {unfit.advice}, or leave {objective.name} out"
            )
    return found


def _unfit(found: ForeignModel, config: Config) -> list[str]:
    """Why the teacher cannot be asked about the student's rows, whatever the objective."""
    longest = max(stage.data.sequence_length for stage in stages_of(config))
    theirs, ours = found.config, config.model
    wrong = []
    if found.kind:
        wrong.append(f"it was fine-tuned for {found.kind}; name a model that was only pretrained")
    if theirs.causal != ours.causal:
        wrong.append(f"its model.causal is {theirs.causal} and the student's {ours.causal}; set it as it is there")
    if theirs.max_position_embeddings < longest:
        wrong.append(
            f"it has {theirs.max_position_embeddings} positions, and rows have {longest} tokens; lower "
            "data.sequence_length"
        )
    # Token types may differ: those of the rows are the student's, and a network without types ignores them.
    if family_of(theirs.family).template.separators != family_of(ours.family).template.separators:
        wrong.append(
            f"rows of its family {theirs.family!r} have other special tokens than those of model.family={ours.family!r}"
        )
    return wrong


def fit_teacher(found: ForeignModel, config: Config, tokenizer: Tokenizer) -> Teacher:
    """The teacher, with its table of tokens padded as the student's is.

    Raises ValueError if its vocabulary is not the run's, token by token.
    """
    theirs, ours = found.tokenizer.tokens, tokenizer.tokens
    if theirs != ours:
        pairs = enumerate(zip(theirs, ours, strict=False))
        at = [f"{a!r} is {b!r} here (id {number})" for number, (a, b) in pairs if a != b][:_SHOWN]
        raise ValueError(
            f"distillation.teacher={config.distillation.teacher!r}: its vocabulary of {len(theirs):,} tokens is not "
            f"the run's of {len(ours):,}{': ' if at else ''}{', '.join(at)}; give its vocabulary as data.vocab"
        )
    model = replace(found.config, vocab_pad_multiple=config.model.vocab_pad_multiple)
    return Teacher(model, _padded(found.params, model))


def _padded(params: Params, model: ModelConfig) -> Params:
    """The parameters with the rows of the padded vocabulary, those beyond the real ones zero."""
    missing = padded_vocab_size(model) - model.vocab_size

    def padded(names: tuple[str, ...], array: np.ndarray) -> np.ndarray:
        if "vocab" not in names:
            return np.asarray(array)
        assert names[0] == "vocab", names
        return np.pad(array[: model.vocab_size], [(0, missing), *[(0, 0)] * (array.ndim - 1)])

    return jax.tree.map(padded, abstract_network(model)[2], params, is_leaf=is_names)
