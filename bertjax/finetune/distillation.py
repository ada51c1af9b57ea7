"""Distillation of a task from a teacher that was fine-tuned for it (Jiao et al. 2020, "TinyBERT", section 3.2).

A student first learns the teacher's layers, as in pretraining (`--distil layers`). A second run starts from the first
and learns the predictions (`--distil predictions`), with the loss of the kind of task. Labels of the training data are
not used. The paper's data augmentation is not implemented.
"""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import FinetuneConfig, ModelConfig, TaskConfig
from bertjax.finetune.encoding.rows import TaskRows
from bertjax.finetune.kinds.kind import Kind
from bertjax.training.objectives import TEACHER, Batch, Forward, Keys, Objective, Sums
from bertjax.training.objectives.distil_layers import DISTIL_LAYERS
from bertjax.training.objectives.objective import TeacherRequirements

PREDICTIONS = "distil_predictions"


def distillation_objective(kind: Kind, task: TaskConfig) -> Objective:
    """The objective of a run with a teacher, by `task.distil`.

    Raises ValueError if the kind of task has no loss to learn predictions with.
    """
    if task.distil == "layers":
        return DISTIL_LAYERS
    if not kind.learns_predictions:
        raise ValueError(
            f"task.distil='predictions': tasks of the kind {kind.name} cannot learn a teacher's predictions; "
            "use --distil layers, or leave the teacher out"
        )

    def sums(forward: Forward, batch: Batch, keys: Keys) -> Sums:
        ours, theirs = kind.logits(forward, batch, keys), kind.logits(forward, batch, None, TEACHER)
        loss = kind.soft_loss(ours, jax.lax.stop_gradient(theirs))
        # Accuracy and other figures compare with the labels.
        return kind.sums(task, forward, batch, keys) | {"loss": jnp.sum(loss * batch["label_weights"])}

    return Objective(PREDICTIONS, "label_weights", sums, figures=kind.figures, teacher=TeacherRequirements())


def with_token_weights(rows: TaskRows, objective: Objective) -> TaskRows:
    """Add a weight for every token if the objective compares tokens with a teacher's."""
    if objective.weight_key != DISTIL_LAYERS.weight_key:
        return rows
    return rows.extended(tokens={DISTIL_LAYERS.weight_key: np.ones(len(rows.tokens["input_ids"]), np.float32)})


def with_projection(config: FinetuneConfig, teacher: ModelConfig | None) -> FinetuneConfig:
    """Add a projection to the teacher's width if layers are compared and widths differ; else remove it.

    A student continues with the projection that it was pretrained with.
    """
    model, width = config.model, 0
    if teacher is not None and config.task.distil == "layers":
        needed = teacher.hidden_size if teacher.hidden_size != model.hidden_size else 0
        width = model.teacher_width or needed
    return replace(config, model=replace(model, teacher_width=width))
