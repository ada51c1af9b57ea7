"""Comparison of runs on the same examples: held-out figures of pretraining, or a task's metrics."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from bertjax.config import Config, FinetuneConfig, MeshConfig
from bertjax.finetune.kinds.kind import Task
from bertjax.finetune.load import measured_by, read_splits, task_labels
from bertjax.finetune.run import PREDICTIONS, read_measured_by
from bertjax.finetune.tasks import make_task
from bertjax.interpret.paired_bootstrap import RESAMPLES, Difference, Statistic, paired_bootstrap, ratio_of_sums
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import put_on_devices
from bertjax.run.checkpoint import read_metadata
from bertjax.run.job import HELD_OUT_SEED
from bertjax.run.run_directory import TrainedModel, load_run, open_run_data
from bertjax.storage.progress import Progress
from bertjax.storage.remote import to_path
from bertjax.training.evaluate import HeldOut, make_eval_step
from bertjax.training.objectives import choose, list_measures
from bertjax.training.optimizer import make_optimizer
from bertjax.training.stages import make_stages, rows_are_packed, stage_at
from bertjax.training.state import draw_blueprint

_TASK_RESAMPLES = 2_000  # of metrics that are computed one resample at a time
_FETCHED_EVERY = 32  # rows


@dataclass(frozen=True)
class Compared:
    """A figure of all runs; each other run is compared with the first."""

    name: str  # "MLM loss (nats)"
    values: tuple[float, ...]  # of each run
    differences: tuple[Difference, ...]  # each other run minus the first
    less_is_better: bool
    form: str  # of a value


@dataclass(frozen=True)
class Comparison:
    """Figures of runs on the same examples."""

    runs: tuple[str, ...]
    steps: tuple[int, ...]
    examples: str  # such as "2,048 held-out rows of 64 tokens"
    figures: tuple[Compared, ...]


def compare_runs(paths: Sequence[str], rows: int, progress: Progress) -> Comparison:
    """Compare runs on the same examples. Raises ValueError for runs without common examples.

    Pretraining runs are compared on `rows` held-out rows of the first run (0: as many as it evaluates), runs of a task
    by their predictions for its development set.
    """
    if len({str(to_path(path)) for path in paths}) < max(2, len(paths)):
        raise ValueError(f"{' '.join(paths)}: give two runs or more, each once")
    models = [load_run(path) for path in paths]
    kinds = [model.kind for model in models]
    if len(set(kinds)) > 1:
        listing = ", ".join(f"{path} ({kind or 'pretraining'})" for path, kind in zip(paths, kinds, strict=True))
        raise ValueError(f"runs of several kinds: {listing}; compare pretrained runs, or runs of one task")
    names = tuple(path.rstrip("/") for path in paths)
    steps = tuple(model.step for model in models)
    examples, figures = _compare_tasks(models) if kinds[0] else _compare_held_out(paths, models, rows, progress)
    return Comparison(names, steps, examples, tuple(figures))


# -- held-out rows


def _compare_held_out(
    paths: Sequence[str], models: Sequence[TrainedModel], rows: int, progress: Progress
) -> tuple[str, list[Compared]]:
    metadata = [read_metadata(to_path(path)) for path in paths]
    for key, what in (("tokenizer_fingerprint", "vocabulary"), ("data_fingerprint", "text")):
        others = [path for path, record in zip(paths, metadata, strict=True) if record[key] != metadata[0][key]]
        if others:
            raise ValueError(
                f"{others[0]} has another {what} than {paths[0]}, so that losses cannot be compared; give runs of the "
                "same token store (evaluate --pairs compares any models)"
            )
    first = models[0].config
    shared = [name for name in first.training.objectives if all(name in m.config.training.objectives for m in models)]
    objectives = tuple(objective for objective in choose(shared) if not objective.teacher) if shared else ()
    if not objectives:
        raise ValueError(f"{' '.join(paths)}: no common objective (training.objectives); compare runs that share one")
    stage = stage_at(make_stages(first), models[0].step)
    for path, model in zip(paths, models, strict=True):
        if model.config.model.max_position_embeddings < stage.data.sequence_length:
            raise ValueError(
                f"{path}: model.max_position_embeddings={model.config.model.max_position_embeddings}, and the rows of "
                f"{paths[0]} have {stage.data.sequence_length} tokens; name the run with the shorter rows first"
            )
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    batches = open_run_data(paths[0], first, progress).held_out(stage.data, HELD_OUT_SEED, shared)["eval"]
    available = batches.rows_per_epoch  # more rows would repeat the text
    if rows > available:
        raise ValueError(f"--rows {rows}: {paths[0]} has {available:,} held-out rows; give at most that many")
    held_out = HeldOut(batches, mesh, rows or min(stage.training.eval_rows, available), 1)
    packed = rows_are_packed(stage.data)
    sums = []
    with jax.set_mesh(mesh):
        for path, model in zip(paths, models, strict=True):
            blueprint = draw_blueprint(model.config.model, make_optimizer(first.optimizer), mesh)
            step = make_eval_step(blueprint, objectives, packed=packed)
            sums.append(
                _row_sums(step, put_on_devices(model.params, blueprint.shardings.params), held_out, path, progress)
            )
    figures = [
        _compared(
            measure.title,
            [ratio_of_sums(row_sums[name], row_sums[f"{objective}_weight"]) for row_sums in sums],
            held_out.rows,
            less_is_better=measure.is_loss,
            form=".4f" if measure.is_loss else ".2%",
        )
        for name, measure in list_measures(objectives)
        if name in sums[0] and f"{(objective := name.rpartition('_')[0])}_weight" in sums[0]
    ]
    return f"{held_out.rows:,} held-out rows of {stage.data.sequence_length} tokens", figures


def _row_sums(step: Callable, params: dict, held_out: HeldOut, path: str, progress: Progress) -> dict[str, np.ndarray]:
    """The sums and weights of each row alone: float64 [rows] each."""
    rows = []
    for number, batch in enumerate(held_out, 1):
        rows.append(step(params, batch))
        if number % _FETCHED_EVERY == 0 or number == held_out.count:
            rows[-_FETCHED_EVERY:] = jax.device_get(rows[-_FETCHED_EVERY:])
            progress(f"measuring {path}", number, held_out.count)
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


# -- tasks


def _compare_tasks(models: Sequence[TrainedModel]) -> tuple[str, list[Compared]]:
    dev = [DevSet.of(model.config) for model in models]
    first, measures = dev[0], []
    for model, own in zip(models, dev, strict=True):
        if own.answers != first.answers:
            raise ValueError(
                f"{model.directory}: its development set differs from that of {models[0].directory}; compare runs of "
                "one task"
            )
        folder = model.directory / PREDICTIONS
        measures.append(first.task.kind.load_measures(first.task, own.name, own.examples, folder))
        if read_measured_by(model.directory) != own.measured_by:
            raise ValueError(
                f"{model.directory}: its data files have changed since it predicted; run its finetune command again, "
                "which predicts again without training"
            )
    figures = [
        _compared(
            metric,
            [
                lambda drawn, measure=by_metric[metric]: np.array([measure(example) for example in drawn])
                for by_metric in measures
            ],
            len(first.examples),
            less_is_better=False,
            form=".4f",
            resamples=_TASK_RESAMPLES,
        )
        for metric in first.task.metrics
    ]
    return f"{len(first.examples):,} examples of {first.name} of {first.task_name}", figures


@dataclass(frozen=True)
class DevSet:
    """The development set by which a fine-tuned run was chosen."""

    task_name: str
    task: Task
    name: str
    examples: Sequence[Any]
    measured_by: str  # like `Result.measured_by`, for the present files

    @classmethod
    def of(cls, config: Config | FinetuneConfig) -> DevSet:
        """Read the development set of a run's config. Raises ValueError as `read_splits` does."""
        assert isinstance(config, FinetuneConfig), "not a fine-tuned run"
        task = make_task(config.task)
        splits = read_splits(task, config)
        name, examples = next(iter(splits.dev.items()))
        labelled = replace(task, labels=task_labels(task, splits.train))
        return cls(config.task.name, labelled, name, examples, measured_by(config.task, splits))

    @property
    def answers(self) -> list[Any]:
        """(id, the answer to measure predictions by) of each example."""
        return [(example.id, self.task.kind.expected_answer(example)) for example in self.examples]


def _compared(
    name: str,
    statistics: Sequence[Statistic],
    examples: int,
    *,
    less_is_better: bool,
    form: str,
    resamples: int = RESAMPLES,
) -> Compared:
    first, *others = statistics
    differences = tuple(paired_bootstrap(first, other, examples, resamples) for other in others)
    values = (differences[0].first, *(difference.second for difference in differences))
    return Compared(name, values, differences, less_is_better, form)
