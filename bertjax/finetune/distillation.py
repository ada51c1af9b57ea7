"""What a run of a task learns from a teacher that was fine-tuned for it (Jiao et al. 2020, "TinyBERT", section 3.2).

First a student learns the teacher's layers, as in pretraining (`--distil layers`), then, in a run that starts from the
first, its predictions (`--distil predictions`). The kind of task says what the second loss is. Labels of the training
data are not learned; development sets are measured as in any run of the task. The paper's augmentation of the training
data is not part of this.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import FinetuneConfig, ModelConfig, TaskConfig
from bertjax.finetune.encoding.rows import TaskRows
from bertjax.finetune.kinds.kind import Kind
from bertjax.training.objectives import TEACHER, Batch, Forward, Keys, Objective, Sums
from bertjax.training.objectives.distil_layers import DISTIL_LAYERS
from bertjax.training.objectives.objective import OfTeacher

PREDICTIONS = "distil_predictions"


def taught_objective(kind: Kind, task: TaskConfig) -> Objective:
    """The objective of a run with a teacher: `task.distil` of it.

    Raises ValueError for predictions of a kind of task that has no loss for them.
    """
    if task.distil == "layers":
        return DISTIL_LAYERS
    if not kind.learns_predictions:
        raise ValueError(
            f"task.distil='predictions': predictions of a teacher cannot be learned in tasks of the kind {kind.name}; "
            "use --distil layers, or leave the teacher out"
        )
    sums = partial(_sums, kind, task)
    return Objective(PREDICTIONS, "label_weights", sums, figures=kind.figures, teacher=OfTeacher())


def _sums(kind: Kind, task: TaskConfig, forward: Forward, batch: Batch, keys: Keys) -> Sums:
    ours, theirs = kind.logits(forward, batch, keys), kind.logits(forward, batch, None, TEACHER)
    loss = kind.soft_loss(ours, jax.lax.stop_gradient(theirs))
    # What else there is, such as accuracy, is of the labels.
    return kind.sums(task, forward, batch, keys) | {"loss": jnp.sum(loss * batch["label_weights"])}


def taught_rows(rows: TaskRows, objective: Objective) -> TaskRows:
    """The training examples, with a weight for every token where the objective compares tokens."""
    if objective.weight_key != DISTIL_LAYERS.weight_key:
        return rows
    return rows.extended(tokens={DISTIL_LAYERS.weight_key: np.ones(len(rows.tokens["input_ids"]), np.float32)})


def with_projection(config: FinetuneConfig, teacher: ModelConfig | None) -> FinetuneConfig:
    """The config, with a projection to the teacher's width where layers are compared, and without one elsewhere.

    A student continues with the projection that it was pretrained with; it needs none for vectors as wide as its own.
    """
    model, width = config.model, 0
    if teacher is not None and config.task.distil == "layers":
        needed = teacher.hidden_size if teacher.hidden_size != model.hidden_size else 0
        width = model.teacher_width or needed
    return replace(config, model=replace(model, teacher_width=width))
