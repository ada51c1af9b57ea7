"""Read the teacher of a run from any source of models, and check it against the student."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np

from bertjax.config import Config, FinetuneConfig, ModelConfig
from bertjax.convert.foreign import ForeignModel, module_label
from bertjax.convert.sources import read_source
from bertjax.families.networks import abstract_network
from bertjax.families.registry import get_family
from bertjax.finetune.distillation import distillation_objective, with_projection
from bertjax.finetune.kinds.kind import Kind
from bertjax.model.encoder import padded_vocab_size
from bertjax.model.network import Params
from bertjax.parallel.sharding import is_names
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.objectives import Objective
from bertjax.training.stages import make_stages
from bertjax.training.teacher import Teacher, objectives_with_teacher

_MOST_SHOWN = 3  # tokens in a message


def read_teacher(config: Config) -> ForeignModel | None:
    """Read the model that `distillation.teacher` names; None if none of the run's objectives needs one.

    Raises ValueError if it cannot be read, or if it cannot process the student's rows.
    """
    distilling = list(objectives_with_teacher(config))
    if not distilling:
        return None
    teacher = read_source(config.distillation.teacher)
    if teacher.kind:
        raise _teacher_error(config, f"it was fine-tuned for {teacher.kind}; name a model that was only pretrained")
    _require_fit(teacher, config, max(stage.data.sequence_length for stage in make_stages(config)))
    for objective in distilling:
        _require_comparable(teacher, config, objective)
    return teacher


def read_task_teacher(config: FinetuneConfig, kind: Kind) -> ForeignModel | None:
    """Read the fine-tuned model that `distillation.teacher` names, for a task of this kind; None if unset.

    Raises ValueError if it cannot be read, or if it cannot process the student's rows.
    """
    if not config.distillation.teacher and config.task.distil == "layers":
        raise ValueError("task.distil='layers' without a teacher; name one (--teacher), or leave it out")
    if not config.distillation.teacher:
        return None
    objective, teacher = distillation_objective(kind, config.task), read_source(config.distillation.teacher)
    if teacher.kind != kind.name:
        was = f"was fine-tuned for {teacher.kind}" if teacher.kind else "was only pretrained"
        raise _teacher_error(config, f"it {was}, and this task is {kind.name}; name a model that was fine-tuned for it")
    _require_fit(teacher, config, config.data.sequence_length)
    _require_comparable(teacher, with_projection(config, teacher.config), objective)
    return teacher


def fit_task_teacher(
    teacher: ForeignModel, config: FinetuneConfig, tokenizer: Tokenizer, kind: Kind, labels: tuple[str, ...]
) -> Teacher:
    """Call `fit_teacher` for a task with these labels. Also raises ValueError if the teacher has other labels."""
    if kind.names_outputs and teacher.labels != labels:
        raise _teacher_error(
            config,
            f"its labels are {', '.join(teacher.labels)}, and the task's are {', '.join(labels)}; name a model that "
            "was fine-tuned for it",
        )
    return fit_teacher(teacher, config, tokenizer)


def _teacher_error(config: Config, problem: str) -> ValueError:
    return ValueError(f"distillation.teacher={config.distillation.teacher!r}: {problem}")


def _require_comparable(teacher: ForeignModel, config: Config, objective: Objective) -> None:
    """Refuse a teacher without a head that the objective needs, or whose arrays do not match the student's."""
    assert objective.teacher is not None, "it needs a teacher"
    for head in objective.teacher.heads:
        if head not in teacher.params or module_label(head) in teacher.untrained:
            raise _teacher_error(
                config,
                f"it has no trained {module_label(head)}, which {objective.name} needs; name another teacher, or leave "
                f"{objective.name} out",
            )
    if unfit := objective.teacher.unfit(config.model, teacher.config):
        raise _teacher_error(
            config,
            f"{unfit.reason}, so {objective.name} cannot compare them; {unfit.advice}, or leave {objective.name} out",
        )


def _require_fit(teacher: ForeignModel, config: Config, longest: int) -> None:
    """Refuse a teacher that cannot process the student's rows of up to `longest` tokens."""
    theirs, ours = teacher.config, config.model
    if theirs.causal != ours.causal:
        raise _teacher_error(
            config,
            f"its model.causal is {theirs.causal} and the student's is {ours.causal}; set model.causal={theirs.causal}",
        )
    if theirs.max_position_embeddings < longest:
        raise _teacher_error(
            config,
            f"it has {theirs.max_position_embeddings} positions, and rows have {longest} tokens; lower "
            "data.sequence_length",
        )
    # Token types may differ: rows carry the student's, and a network without types ignores them.
    if get_family(theirs.family).template.separators != get_family(ours.family).template.separators:
        raise _teacher_error(
            config, f"its family {theirs.family!r} has other special tokens in rows than model.family={ours.family!r}"
        )


def fit_teacher(teacher: ForeignModel, config: Config, tokenizer: Tokenizer) -> Teacher:
    """Convert the teacher for training, with its vocabulary padded like the student's.

    Raises ValueError if its vocabulary is not the run's, token by token.
    """
    theirs, ours = teacher.tokenizer.tokens, tokenizer.tokens
    if theirs != ours:
        pairs = enumerate(zip(theirs, ours, strict=False))
        at = [f"{a!r} is {b!r} here (id {number})" for number, (a, b) in pairs if a != b][:_MOST_SHOWN]
        raise ValueError(
            f"distillation.teacher={config.distillation.teacher!r}: its vocabulary of {len(theirs):,} tokens is not "
            f"the run's of {len(ours):,}{': ' if at else ''}{', '.join(at)}; give its vocabulary as data.vocab"
        )
    model = replace(teacher.config, vocab_pad_multiple=config.model.vocab_pad_multiple)
    return Teacher(model, _padded(teacher.params, model))


def _padded(params: Params, model: ModelConfig) -> Params:
    """Pad the vocabulary's rows in the parameters with zeros."""
    missing = padded_vocab_size(model) - model.vocab_size

    def pad(names: tuple[str, ...], array: np.ndarray) -> np.ndarray:
        if "vocab" not in names:
            return np.asarray(array)
        assert names[0] == "vocab", names
        return np.pad(array[: model.vocab_size], [(0, missing), *[(0, 0)] * (array.ndim - 1)])

    return jax.tree.map(pad, abstract_network(model)[2], params, is_leaf=is_names)
