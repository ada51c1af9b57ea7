"""Assemble the job of a fine-tuning run: the task provides batches, objective and evaluation."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import optax

from bertjax.config import FinetuneConfig, ModelConfig, validate
from bertjax.families.registry import get_family
from bertjax.finetune.batches import TaskBatches
from bertjax.finetune.distillation import distillation_objective, with_token_weights
from bertjax.finetune.encoding.global_tokens import with_global_tokens
from bertjax.finetune.encoding.rows import TaskRows
from bertjax.finetune.kinds.kind import Kind, Split, TaskContent
from bertjax.finetune.predict import Predictor
from bertjax.model.attention.block_sparse import for_sequences, longest_full
from bertjax.model.encoder import padded_vocab_size
from bertjax.model.network import Params, check_head
from bertjax.model.stack import layers_per_group
from bertjax.parallel.mesh import batch_shards, make_mesh
from bertjax.parallel.sharding import check_divisible
from bertjax.run.checks import check_redundancy
from bertjax.run.hooks.early_stopping import Patience
from bertjax.run.job import Job, RunStage, draw_networks, make_job
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.evaluate import make_predict_step
from bertjax.training.objectives import Objective
from bertjax.training.objectives.objective import GLOBAL_POSITIONS
from bertjax.training.optimizer import make_optimizer
from bertjax.training.stages import make_stages, stage_step
from bertjax.training.step import GradientMetrics
from bertjax.training.teacher import Teacher, flops_of_networks


@dataclass(frozen=True)
class DevSets:
    """Evaluates a run on its development sets. Figures are `eval/FIGURE` for the first set, `eval/SET/FIGURE` else."""

    predictor: Predictor
    objective: Objective
    splits: Mapping[str, Split]
    baselines: dict[str, float]

    @property
    def batches(self) -> int:
        """Number of batches, over all sets."""
        return sum(1 for split in self.splits.values() for _ in self.predictor.batches(split.rows.lengths))

    def __call__(self, params: Params, go_on: Callable[[], bool] = lambda: True) -> dict[str, float]:
        """Evaluate; see `bertjax.training.evaluate.Evaluation`."""
        measured = self.measure(params, go_on)
        return measured[0] if measured else {}

    def measure(
        self, params: Params, go_on: Callable[[], bool] = lambda: True
    ) -> tuple[dict[str, float], dict[str, np.ndarray]] | None:
        """(figures, outputs of the network by set); None once `go_on` is False."""
        figures: dict[str, float] = {}
        outputs: dict[str, np.ndarray] = {}
        loss = f"{self.objective.name}_loss"
        for number, (name, split) in enumerate(self.splits.items()):
            predicted = self.predictor.predict(params, split.rows, self.objective, go_on)
            if predicted is None:
                return None
            assert split.figures is not None, "a development set has labels"
            outputs[name], losses = predicted
            prefix = f"eval/{name}" if number else "eval"
            split_figures = {loss: losses[loss]} | split.figures(outputs[name])
            figures |= {f"{prefix}/{figure}": value for figure, value in split_figures.items()}
        return figures, outputs


def check_before_data(config: FinetuneConfig, kind: Kind) -> None:
    """Check a config before its data is read. Raises ValueError like `validate`.

    Placeholders stand for values that depend on the data (see `resolved`). Encoding checks the length of rows later.
    """
    training, model = config.training, config.model
    if training.grad_accum_steps == "auto":
        raise ValueError(
            "training.grad_accum_steps='auto' requires rows of equal length, which only pretraining has; give the "
            "number of microbatches in a step"
        )
    if (parts := config.mesh.length) != 1:
        raise ValueError(f"mesh.length={parts}: fine-tuning does not split rows; set it to 1")
    headed = kind.headed(model, 1)
    check_head(headed)
    validate(
        replace(
            config,
            model=headed,
            data=replace(config.data, sequence_length=model.max_position_embeddings),
            training=replace(
                training,
                steps=training.steps or config.optimizer.warmup_steps + 1,
                log_every=training.log_every or 1,
                eval_every=training.eval_every or 1,
                checkpoint_every=training.checkpoint_every or 1,
            ),
        )
    )


def resolved(config: FinetuneConfig, content: TaskContent) -> FinetuneConfig:
    """Fill in what depends on the data: labels, the head, steps, warm-up, one evaluation per epoch."""
    task, training, optimizer = config.task, config.training, config.optimizer
    steps_per_epoch = len(content.train) / training.global_batch_size
    steps = training.steps or max(1, int(steps_per_epoch * task.epochs))
    period = training.eval_every or max(1, min(steps, round(steps_per_epoch)))
    return replace(
        config,
        model=content.kind.headed(config.model, len(content.labels)),
        task=replace(task, labels=content.labels),
        training=replace(
            training,
            steps=steps,
            objectives=(content.kind.name,),
            eval_every=period,
            checkpoint_every=training.checkpoint_every or period,
            log_every=training.log_every or max(1, min(50, period)),
        ),
        optimizer=replace(optimizer, warmup_steps=optimizer.warmup_steps or int(steps * task.warmup)),
    )


def assemble_task(
    config: FinetuneConfig,
    content: TaskContent,
    tokenizer: Tokenizer,
    teacher: Teacher | None = None,
    gradient_metrics: GradientMetrics | None = None,
) -> Job:
    """Assemble the job of a `resolved` config; `teacher` is the model to distil from, if any.

    Raises ValueError naming the key, its value and what to do.
    """
    # 1. Networks and optimizer
    length = config.data.sequence_length
    laid_out = replace(config, model=for_sequences(config.model, length))
    (stage,) = make_stages(laid_out)
    mesh = make_mesh(config.mesh)
    check_redundancy(config, mesh)
    check_divisible(mesh, config.model, stage.training, padded_vocab_size(config.model))
    kind = content.kind
    kind.check_run(config, content)
    optimizer = make_optimizer(config.optimizer, scale_by_depth(config.model, config.task.layer_decay))
    if teacher is not None:
        teacher = replace(teacher, model=for_sequences(teacher.model, length))
    blueprint, frozen = draw_networks(laid_out, mesh, optimizer, teacher)

    # 2. Training: objective and batches
    objective = kind.objective(config.task)
    train_objective = objective if teacher is None else distillation_objective(kind, config.task)
    step = stage_step(
        laid_out,
        stage,
        blueprint,
        optimizer,
        objectives=(train_objective,),
        gradient_metrics=gradient_metrics,
    )
    mark_global_tokens = partial(
        with_global_tokens,
        part=kind.global_tokens,
        model=config.model,
        sep_id=tokenizer.sep_id,
        template=get_family(config.model.family).template,
    )
    train = mark_global_tokens(with_token_weights(content.train, train_objective))
    longest = length * train.rows["cls_positions"].shape[1]
    batches = TaskBatches(
        train,
        tokenizer.pad_id,
        longest,
        config.training.seed,
        packed=_can_pack(laid_out, train, teacher) and kind.packed,
        shards=batch_shards(mesh),
        microbatches=config.training.microbatches,
    )

    # 3. Evaluation on the development sets, by their labels, without a teacher
    without_teacher = replace(blueprint, frozen={})
    predictor = Predictor(
        make_predict_step(without_teacher, (objective,), kind.outputs, deterministic=config.deterministic),
        laid_out.model,
        mesh,
        config.training.rows_at_a_time,
        tokenizer.pad_id,
        longest,
        kind.network.per_token,
        mark_global_tokens,
    )
    run_stage = RunStage(
        **vars(stage),
        train_step=replace(step, frozen=frozen),
        batches=batches,
        evaluation=DevSets(predictor, objective, content.dev, content.baselines),
        flops_per_token=flops_of_networks(laid_out.model, None if teacher is None else teacher.model, length),
    )
    losses = dict.fromkeys(f"{one.name}_loss" for one in (train_objective, objective))
    return replace(
        make_job(config, mesh, blueprint, optimizer, tokenizer, content.fingerprint, teacher),
        stages=(run_stage,),
        doing=config.name,
        progress_columns=(
            *(("loss", name, "{:.4f}") for name in losses),
            *((name, name, "{:.4f}") for name in content.metrics),
        ),
        patience=Patience(f"eval/{content.metrics[0]}", config.task.patience) if config.task.patience else None,
    )


def _can_pack(config: FinetuneConfig, rows: TaskRows, teacher: Teacher | None) -> bool:
    """Whether several examples can share a row without changing each other's result.

    Block-sparse attention forbids it, because blocks belong to a row; global tokens allow it if every example has
    exactly one. The models of `config` and `teacher` come from `for_sequences`. Raises ValueError if an example has
    several sequences and attention is block-sparse.
    """
    models = {"model": config.model} | ({} if teacher is None else {"the teacher's model": teacher.model})
    for name, model in models.items():
        if not model.attention_block:
            continue
        if rows.rows["cls_positions"].shape[1] > 1:
            raise ValueError(
                f"data.sequence_length={config.data.sequence_length} with {name}.attention_block="
                f"{model.attention_block}: {config.task.name} has several sequences in a row, which needs full "
                "attention; use at most "
                f"{longest_full(model.attention_block, model.random_blocks)} tokens (--max-length)"
            )
        return False
    return GLOBAL_POSITIONS not in rows.rows or rows.rows[GLOBAL_POSITIONS].shape[1] == 1


def dev_sets(job: Job) -> DevSets:
    """Get the evaluation of a fine-tuning job."""
    evaluation = job.stages[0].evaluation
    assert isinstance(evaluation, DevSets), "a fine-tuning job"
    return evaluation


def scale_by_depth(model: ModelConfig, decay: float) -> optax.GradientTransformation:
    """Scale updates by `decay` to the power of the depth below the head (ULMFiT's discriminative learning rates).

    Head and pooler have depth 0, the last of N layers depth 1, the embeddings depth N + 1. A group of layers that share
    parameters has the depth of its last layer. A frozen encoder (`model.features`) has updates of 0, without weight
    decay.
    """
    below = 0.0 if model.features else decay
    N = model.num_hidden_layers
    # Numbers of the stacked layers, or of the last in each group. A first layer of another type is not stacked.
    ends = np.cumsum(layers_per_group(model)) if model.layer_groups else range(1 + model.first_layer_apart, N + 1)
    layers = below ** (N + 1.0 - jnp.asarray(ends, jnp.float32))

    def scale(path: tuple, update: jax.Array) -> jax.Array:
        names = [part.key for part in path]
        if names[0] != "encoder":
            return update
        if names[1] == "final_norm":
            return update * below
        if names[1] != "layers":
            return update * below ** (N if names[1] == "first_layer" else N + 1)
        # Stacked layers (or groups) have a factor each.
        return update * layers.reshape(-1, *[1] * (update.ndim - 1))

    return optax.stateless(lambda updates, _: jax.tree_util.tree_map_with_path(scale, updates))
