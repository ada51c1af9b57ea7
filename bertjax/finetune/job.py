"""A fine-tuning run put together, for the same trainer that pretrains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import numpy as np
import optax

from bertjax.config import FinetuneConfig, ModelConfig, to_dict
from bertjax.finetune.batches import TaskBatches
from bertjax.finetune.content import Split, TaskContent
from bertjax.finetune.learning_rates import scale_by_depth
from bertjax.finetune.objectives import OUTPUTS, PER_TOKEN, objective_of
from bertjax.finetune.packing import PACKED
from bertjax.finetune.predicting import Predictor
from bertjax.model.bert import Params
from bertjax.model.encoder import padded_vocab_size
from bertjax.parallel.mesh import batch_shards, make_mesh
from bertjax.parallel.sharding import check_divisible
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.best import Patience
from bertjax.training.checkpoint import run_metadata
from bertjax.training.flops import device_peak, train_flops_per_token
from bertjax.training.job import Job, Rows
from bertjax.training.metrics import Shown
from bertjax.training.objectives import Objective
from bertjax.training.optimizer import make_optimizer
from bertjax.training.stages import stage_step, stages_of
from bertjax.training.state import draw_blueprint
from bertjax.training.step import make_predict_step, several_sequences

# The head of a kind of task, where the kind is not its name.
_HEADS = {"regression": "sequence", "relevance": "sequence"}
_LABELLED = ("sequence", "tokens")


@dataclass(frozen=True)
class DevSets:
    """What a run is measured by: the figures of each development set, of the first as `eval/...`."""

    predictor: Predictor
    objective: Objective
    splits: Mapping[str, Split]
    baselines: dict[str, float]

    def __call__(self, params: Params, go_on: Callable[[], bool] = lambda: True) -> dict[str, float]:
        """As `bertjax.training.evaluate.Evaluation` has it."""
        measured = self.measure(params, go_on)
        return measured[0] if measured else {}

    def measure(
        self, params: Params, go_on: Callable[[], bool] = lambda: True
    ) -> tuple[dict[str, float], dict[str, np.ndarray]] | None:
        """(figures, the outputs for each set by its name); None after a no of `go_on`."""
        figures: dict[str, float] = {}
        outputs: dict[str, np.ndarray] = {}
        for number, (name, split) in enumerate(self.splits.items()):
            found = self.predictor.predict(params, split.rows, self.objective, go_on)
            if found is None:
                return None
            assert split.figures is not None, "a development set has its answers"
            outputs[name], losses = found
            prefix = f"eval/{name}" if number else "eval"
            loss = losses[f"{self.objective.name}_loss"]
            of_it = {f"{self.objective.name}_loss": loss} | split.figures(outputs[name])
            figures |= {f"{prefix}/{figure}": value for figure, value in of_it.items()}
        return figures, outputs


def headed(
    model: ModelConfig, kind: str, labels: int, features: tuple[int, ...] = (), lstm_size: int = 0
) -> ModelConfig:
    """The network of a kind of task on the encoder of another."""
    head = _HEADS.get(kind, kind)
    one = 1 if kind in _HEADS else 0
    return replace(
        model, head=head, num_labels=one or (labels if head in _LABELLED else 0), features=features, lstm_size=lstm_size
    )


def resolved(config: FinetuneConfig, content: TaskContent) -> FinetuneConfig:
    """The config with what follows from the data: labels, the head, steps, warm-up, one evaluation an epoch."""
    task, training, optimizer = config.task, config.training, config.optimizer
    an_epoch = len(content.train) / training.global_batch_size
    steps = training.steps or max(1, int(an_epoch * task.epochs))
    period = training.eval_every or max(1, min(steps, round(an_epoch)))
    return replace(
        config,
        model=headed(config.model, content.kind, len(content.labels), config.model.features, config.model.lstm_size),
        task=replace(task, labels=content.labels),
        training=replace(
            training,
            steps=steps,
            objectives=(content.kind,),
            eval_every=period,
            checkpoint_every=training.checkpoint_every or period,
            log_every=training.log_every or max(1, min(50, period)),
        ),
        optimizer=replace(optimizer, warmup_steps=optimizer.warmup_steps or int(steps * task.warmup)),
    )


def assemble_task(config: FinetuneConfig, content: TaskContent, tokenizer: Tokenizer) -> Job:
    """Put a run of a `resolved` config together. Raises ValueError naming the key, its value and what to do."""
    (stage,) = stages_of(config)
    mesh = make_mesh(config.mesh)
    check_divisible(mesh, config.model, stage.training, padded_vocab_size(config.model))
    _check_negatives(config, content)
    _check_patience(config, content)
    optimizer = optax.chain(make_optimizer(config.optimizer), scale_by_depth(config.model, config.task.layer_decay))
    blueprint = draw_blueprint(config.model, optimizer, mesh, config.execution)
    objective = objective_of(content.kind, config.task.temperature)
    sequences = content.train.rows["cls_positions"].shape[1]
    longest = config.data.sequence_length * sequences
    batches = TaskBatches(
        content.train,
        tokenizer.pad_id,
        longest,
        config.training.seed,
        packed=content.kind in PACKED,
        shards=batch_shards(mesh),
        microbatches=config.training.grad_accum_steps,
    )
    predictor = Predictor(
        make_predict_step(blueprint, (objective,), OUTPUTS[content.kind], deterministic=config.deterministic),
        mesh,
        config.training.global_batch_size // config.training.grad_accum_steps,
        tokenizer.pad_id,
        longest,
        content.kind in PER_TOKEN,
    )
    rows = Rows(
        stage,
        stage_step(config, stage, blueprint, optimizer, objectives=(objective,), packed=several_sequences),
        batches,
        DevSets(predictor, objective, content.dev, content.baselines),
        train_flops_per_token(config.model, config.data.sequence_length, 0),
    )
    return Job(
        config=config,
        mesh=mesh,
        blueprint=blueprint,
        optimizer=optimizer,
        stages=(rows,),
        tokenizer=tokenizer,
        metadata=run_metadata(
            to_dict(config),
            tokenizer_fingerprint=tokenizer.fingerprint,
            data_fingerprint=content.fingerprint,
            mesh=mesh,
        ),
        peak=device_peak(mesh.devices.flat[0]),
        doing=config.name,
        shown=_shown(objective, content.metrics),
        patience=Patience(f"eval/{content.metrics[0]}", config.task.patience) if config.task.patience else None,
    )


def dev_sets_of(job: Job) -> DevSets:
    """What measures a job of a task, and has what predicts other rows of the task."""
    evaluation = job.stages[0].evaluation
    assert isinstance(evaluation, DevSets), "a job of a task"
    return evaluation


def _shown(objective: Objective, metrics: tuple[str, ...]) -> tuple[Shown, ...]:
    return (("loss", f"{objective.name}_loss", "{:.4f}"), *((name, name, "{:.4f}") for name in metrics))


def _check_negatives(config: FinetuneConfig, content: TaskContent) -> None:
    """In-batch negatives are those of a microbatch: to split a batch would silently make the task easier."""
    if content.kind == "vector" and config.training.grad_accum_steps > 1:
        raise ValueError(
            f"training.grad_accum_steps={config.training.grad_accum_steps}: pairs are told apart within a batch, which "
            "microbatches would split; use 1 and a smaller training.global_batch_size"
        )


def _check_patience(config: FinetuneConfig, content: TaskContent) -> None:
    """The correlation with numbers that are all one is not defined, so that no evaluation would be better."""
    if config.task.patience and content.kind == "regression":
        numbers = next(iter(content.dev.values())).rows.rows["labels"]
        if (numbers == numbers[0]).all():
            raise ValueError(
                f"task.patience={config.task.patience}: all {len(numbers):,} numbers of the development set are "
                f"{float(numbers[0, 0]):g}, with which nothing correlates; name another (--dev), or leave it out"
            )
