"""Several runs on the same examples: held-out figures of pretraining, or a task's metrics, and their differences."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import jax
import numpy as np

from bertjax.config import FinetuneConfig, MeshConfig
from bertjax.finetune.kinds import kind_of
from bertjax.finetune.kinds.kind import Task
from bertjax.finetune.kinds.texts import WITHOUT_TABS, TextKind
from bertjax.finetune.load import labels_of, read_splits
from bertjax.finetune.metrics.classification import figures_of
from bertjax.finetune.run import PREDICTIONS
from bertjax.finetune.tasks import task_for
from bertjax.interpret.paired_bootstrap import RESAMPLES, Difference, Statistic, paired_bootstrap, ratio_of_sums
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import put_on_devices
from bertjax.storage.progress import Progress
from bertjax.storage.remote import path_of
from bertjax.training.checkpoint import read_metadata
from bertjax.training.evaluate import HeldOut, make_eval_step
from bertjax.training.job import HELD_OUT_SEED
from bertjax.training.objectives import choose, measures_of
from bertjax.training.optimizer import make_optimizer
from bertjax.training.run_directory import TrainedModel, load_run
from bertjax.training.stages import open_data, rows_are_packed, stage_at, stages_of
from bertjax.training.state import draw_blueprint

_TASK_RESAMPLES = 2_000  # of metrics that are computed one resample at a time
_FETCHED_EVERY = 32  # rows


@dataclass(frozen=True)
class Compared:
    """A figure of all runs, the first of which is compared with each other one."""

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
    examples: str  # what was drawn: "2,048 held-out rows of 64 tokens"
    figures: tuple[Compared, ...]


def compare_runs(paths: Sequence[str], rows: int, progress: Progress) -> Comparison:
    """Compare runs: those of pretraining on `rows` held-out rows of the first (0: as many as it evaluates), those of a
    task by the predictions that they wrote for its development set.

    Raises ValueError for runs that have no examples in common.
    """
    if len({str(path_of(path)) for path in paths}) < max(2, len(paths)):
        raise ValueError(f"{' '.join(paths)}: give two runs or more, each once")
    models = [load_run(path) for path in paths]
    kinds = [model.kind for model in models]
    if len(set(kinds)) > 1:
        named = ", ".join(f"{path} ({kind or 'pretraining'})" for path, kind in zip(paths, kinds, strict=True))
        raise ValueError(f"runs of several kinds: {named}; compare pretrained runs, or runs of one task")
    names = tuple(path.rstrip("/") for path in paths)
    steps = tuple(model.step for model in models)
    examples, figures = _of_task(models) if kinds[0] else _held_out(paths, models, rows, progress)
    return Comparison(names, steps, examples, tuple(figures))


# -- held-out rows


def _held_out(
    paths: Sequence[str], models: Sequence[TrainedModel], rows: int, progress: Progress
) -> tuple[str, list[Compared]]:
    metadata = [read_metadata(path_of(path)) for path in paths]
    for key, what in (("tokenizer_fingerprint", "vocabulary"), ("data_fingerprint", "text")):
        others = [path for path, one in zip(paths, metadata, strict=True) if one[key] != metadata[0][key]]
        if others:
            raise ValueError(
                f"{others[0]} has another {what} than {paths[0]}: their losses are over different tokens; compare runs "
                "of the same token store (score --pairs compares any models)"
            )
    first = models[0].config
    shared = [name for name in first.training.objectives if all(name in m.config.training.objectives for m in models)]
    objectives = tuple(one for one in choose(shared) if not one.teacher) if shared else ()
    if not objectives:
        raise ValueError(f"{' '.join(paths)}: they have no objective in common (training.objectives)")
    stage = stage_at(stages_of(first), models[0].step)
    for path, model in zip(paths, models, strict=True):
        if model.config.model.max_position_embeddings < stage.data.sequence_length:
            raise ValueError(
                f"{path}: model.max_position_embeddings={model.config.model.max_position_embeddings}, and the rows of "
                f"{paths[0]} have {stage.data.sequence_length} tokens; name the run with the shorter rows first"
            )
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    batches = open_data(first, progress).held_out(stage.data, HELD_OUT_SEED)["eval"]
    held_out = HeldOut(batches, mesh, rows or stage.training.eval_rows, 1)
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
            [ratio_of_sums(one[name], one[f"{objective}_weight"]) for one in sums],
            held_out.rows,
            less_is_better=measure.is_loss,
            form=".4f" if measure.is_loss else ".2%",
        )
        for name, measure in measures_of(objectives)
        if name in sums[0] and f"{(objective := name.rpartition('_')[0])}_weight" in sums[0]
    ]
    return f"{held_out.rows:,} held-out rows of {stage.data.sequence_length} tokens", figures


def _row_sums(step: Callable, params: dict, held_out: HeldOut, path: str, progress: Progress) -> dict[str, np.ndarray]:
    """The sums and weights of each row by itself: float64 [rows] each."""
    found = []
    for number, batch in enumerate(held_out, 1):
        found.append(step(params, batch))
        if number % _FETCHED_EVERY == 0 or number == held_out.count:
            found[-_FETCHED_EVERY:] = jax.device_get(found[-_FETCHED_EVERY:])
            progress(f"measuring {path}", number, held_out.count)
    return {name: np.array([float(one[name]) for one in found]) for name in found[0]}


# -- tasks


def _of_task(models: Sequence[TrainedModel]) -> tuple[str, list[Compared]]:
    configs = [model.config for model in models]
    assert all(isinstance(config, FinetuneConfig) for config in configs), "a kind is of a task"
    if not isinstance(kind_of(models[0].kind), TextKind):
        raise ValueError(
            f"{models[0].directory}: a task of the kind {models[0].kind}; only tasks with one label or number for each "
            "example are compared"
        )
    dev = [DevSet.of(config) for config in configs]
    predicted = []
    for model, own in zip(models, dev, strict=True):
        if own.ids != dev[0].ids or not np.array_equal(own.answers, dev[0].answers):
            raise ValueError(
                f"{model.directory}: its development set is not that of {models[0].directory}; compare runs of one task"
            )
        predicted.append(own.predictions(model))
    figures = [
        _compared(
            metric,
            [_of_metric(metric, one, dev[0].answers) for one in predicted],
            len(dev[0].ids),
            less_is_better=False,
            form=".4f",
            resamples=_TASK_RESAMPLES,
        )
        for metric in dev[0].task.metrics
    ]
    return f"{len(dev[0].ids):,} examples of {dev[0].name} of {configs[0].task.name}", figures


@dataclass(frozen=True)
class DevSet:
    """The development set that a fine-tuned run was chosen by."""

    task: Task
    name: str
    ids: list[str]
    answers: np.ndarray  # what predictions are measured by

    @classmethod
    def of(cls, config: FinetuneConfig) -> DevSet:
        """Of a run's config. Raises ValueError naming file and line, as `read_splits` does."""
        task = task_for(config.task)
        splits = read_splits(task, config)
        task = replace(task, labels=labels_of(task, splits.train))
        name, examples = next(iter(splits.dev.items()))
        assert isinstance(task.kind, TextKind), "checked before"
        return cls(task, name, [one.id for one in examples], task.kind.targets(examples, task.labels))

    def predictions(self, model: TrainedModel) -> np.ndarray:
        """What a run predicted, in the form of the answers. Raises ValueError for a missing file, or one of others."""
        path = model.directory / PREDICTIONS / f"{self.name}.tsv"
        if not path.is_file():
            raise ValueError(f"{path}: no such file; fine-tune to the end, which writes it")
        head, *lines = [line.split("\t") for line in path.read_text(encoding="utf-8").removesuffix("\n").split("\n")]
        ids = [one.translate(WITHOUT_TABS) for one in self.ids]
        if head[:2] != ["id", "prediction"] or [line[0] for line in lines] != ids:
            raise ValueError(f"{path}: it holds no prediction for each example of the task; fine-tune again")
        words, kind = [line[1] for line in lines], self.task.kind
        assert isinstance(kind, TextKind), "checked before"
        try:
            if kind.numeric:
                return kind.predictions(np.array(words, np.float32)[:, None])
            numbers = {label.translate(WITHOUT_TABS): number for number, label in enumerate(self.task.labels)}
            return np.array([numbers[word] for word in words], np.int32)
        except (KeyError, ValueError) as error:
            raise ValueError(f"{path}: a prediction is none of the task ({error}); fine-tune again") from None


def _of_metric(metric: str, predicted: np.ndarray, answers: np.ndarray) -> Statistic:
    """The metric of each resample, one at a time."""
    return lambda drawn: np.array([figures_of([metric], predicted[one], answers[one])[metric] for one in drawn])


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
    values = (differences[0].first, *(one.second for one in differences))
    return Compared(name, values, differences, less_is_better, form)
