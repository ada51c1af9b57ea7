"""One fine-tuning run: train, evaluate, and write predictions and results."""

from __future__ import annotations

import functools
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

import jax
import numpy as np

from bertjax.config import FinetuneConfig, ModelConfig, from_dict, to_dict
from bertjax.families.networks import init_params
from bertjax.finetune.job import assemble_task, dev_sets, resolved
from bertjax.finetune.kinds.kind import Split, TaskContent, read_run_file
from bertjax.finetune.task_report import render
from bertjax.model.attention.sparse import with_copied_projections
from bertjax.model.heads import TOKEN_POOLER
from bertjax.model.network import Params
from bertjax.model.shared_tables import with_own_words
from bertjax.report.run_report import REPORT_FILE
from bertjax.run.callbacks import Callback, merge_gradient_metrics
from bertjax.run.checkpoint import read_metadata, restore_params
from bertjax.run.checkpoint_metadata import DRAWN
from bertjax.run.compatibility import FINGERPRINTS, check_compatible
from bertjax.run.job import Job
from bertjax.run.run_directory import seal
from bertjax.run.telemetry import METRICS_FILE, curves, read_metrics
from bertjax.run.train_job import Say, train_job
from bertjax.runtime.compilation import environment
from bertjax.runtime.processes import Processes
from bertjax.storage.files import replace_bytes, replace_text
from bertjax.storage.json_documents import Count, parse_json
from bertjax.storage.remote import AnyPath, to_path
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.teacher import Teacher

RESULTS_FILE = "results.json"
PREDICTIONS = "predictions"


@dataclass(frozen=True)
class Start:
    """A model to start from, in memory."""

    origin: str
    model: ModelConfig
    tokenizer: Tokenizer
    params: Params  # NumPy float32
    untrained: tuple[str, ...] = ()  # modules without trained weights, which are random
    labels: tuple[str, ...] = ()  # of the task head, if it has one
    kind: str = ""  # name of the head's kind of task
    plugins: tuple[str, ...] = ()  # recorded by the model's run


@dataclass(frozen=True)
class Result:
    """The result of a run. `figures` belong to the last weights, or with patience to the best."""

    directory: str
    step: int
    figures: dict[str, float]
    baselines: dict[str, float]
    seconds: float  # of this process's training
    predictions: tuple[str, ...]  # files, within the directory
    exit_code: int = 0  # not 0: a signal ended the run early, and there are no figures
    measured_by: str = ""  # `TaskContent.measured_by`


class _Values(TypedDict):
    step: Count
    figures: dict[str, float | None]
    baselines: dict[str, float]
    seconds: float
    predictions: list[str]
    exit_code: Literal[0]
    measured_by: str


class _Metadata(TypedDict):
    config: dict[str, Any]


class _Results(TypedDict):
    """The content of `RESULTS_FILE`."""

    result: _Values
    metadata: _Metadata


def finetune(
    config: FinetuneConfig,
    start: Start,
    content: TaskContent,
    processes: Processes,
    say: Say,
    callbacks: Sequence[Callback] = (),
    teacher: Teacher | None = None,
) -> Result:
    """Train, evaluate, predict and write results, unless the run is finished; every process of the run calls this.

    Raises ValueError as `assemble_task` and `train_job` do, and if the checkpoint changed after the results.
    """
    config = resolved(config, content)
    job = assemble_task(config, content, start.tokenizer, teacher, merge_gradient_metrics(callbacks))
    if not content.kind.network.outputs:  # no logits depend on the pooler, so that nothing trains it
        job = replace(job, metadata=job.metadata | {DRAWN: [name for name in start.untrained if name == "pooler"]})
    directory = to_path(config.directory)

    # 1. Train, unless the run is finished
    earlier = read_result(directory, job, processes)
    if earlier is None:
        outcome = train_job(job, processes, say, lambda: initial_params(config, start, say), callbacks)
        if outcome.exit_code:
            return Result(config.directory, outcome.step, {}, {}, outcome.seconds, (), outcome.exit_code)
        seconds = outcome.seconds
    elif earlier.measured_by == content.measured_by:
        say(f"{config.directory}: finished before")
        return replace(earlier, baselines=dict(content.baselines))
    else:
        if (step := read_metadata(directory)["step"]) != earlier.step:
            raise ValueError(
                f"run_dir={config.directory}: its results belong to step {earlier.step:,}, but its weights to step "
                f"{step:,}; finish the training that changed the weights, or name another folder"
            )
        say(f"{config.directory}: finished before, with other evaluation data or settings; evaluating it again")
        seconds = earlier.seconds

    # 2. Evaluate and predict with the weights on disk
    with jax.set_mesh(job.mesh):
        with processes.taking_time():
            params = restore_params(directory, job.blueprint.state.params)
        measured = _measure(job, params, content, functools.partial(processes.begin_unit, doing="evaluation"))
    step = read_metadata(directory)["step"]
    if measured is None:
        return Result(config.directory, step, {}, {}, seconds, (), processes.exit_code)
    figures, outputs = measured

    # 3. Write the predictions, then the results
    files: list[str] = []
    if processes.first:
        splits = {**content.test, **content.dev}
        files = [path for name, array in outputs.items() for path in _write_predictions(splits[name], array, directory)]
    baselines = dict(content.baselines)
    measured_by = content.measured_by
    result = Result(config.directory, step, figures, baselines, seconds, tuple(files), measured_by=measured_by)
    if processes.first:
        # JSON has no NaN.
        finite = {name: value if math.isfinite(value) else None for name, value in figures.items()}
        metadata = {name: job.metadata[name] for name in ("config", *FINGERPRINTS)}
        document = {"result": asdict(result) | {"figures": finite}, "metadata": metadata}
        page = render(
            f"{config.name}: {config.task.name}" if config.name != config.task.name else config.name,
            f"{start.origin}, fine-tuned on {len(content.train):,} rows",
            content,
            figures,
            outputs,
            curves(read_metrics(directory / METRICS_FILE)),
            to_dict(config),
            environment(),
        )
        replace_text(directory / REPORT_FILE, page)
        replace_text(directory / RESULTS_FILE, json.dumps(document, indent=1, allow_nan=False) + "\n")
        seal(directory)
    return result


def initial_params(config: FinetuneConfig, start: Start, say: Say) -> Params:
    """Take encoder and pooler from a model, and its head if it has the same task; initialise the rest at random.

    A pooler on every token (ModernBERT) was pretrained as the transform of the MLM head. The output layer of a decoder
    starts as a copy of the MLM head.
    """
    model = config.model
    drawn = jax.device_get(jax.jit(lambda key: init_params(model, key))(jax.random.key(config.training.seed)))
    names = ["encoder", "pooler"]
    if start.model.teacher_width == model.teacher_width:
        names.append("teacher_projection")
    if "head" in start.params:
        # A regression score is not a logit, although both are one number.
        shapes = [(one.head, one.num_labels, one.features, one.lstm_size) for one in (start.model, model)]
        same_task = (start.kind,) == config.training.objectives and start.labels == config.task.labels
        if same_task and shapes[0] == shapes[1]:
            names.append("head")
        else:
            say(f"{start.origin} has a head for other outputs ({start.kind}); a new head starts at random")
    trained = with_own_words(start.params)
    if model.pooler == TOKEN_POOLER and "pooler" not in trained and "mlm_head" in trained:
        trained = trained | {"pooler": {"dense": trained["mlm_head"]["transform"], "norm": trained["mlm_head"]["norm"]}}
    params = {name: trained[name] if name in names and name in trained else drawn[name] for name in drawn}
    if "decoder" in drawn and (head := _fitting_head(trained, drawn["decoder"]["prediction"])):
        params["decoder"] = drawn["decoder"] | {"prediction": head}
    only_pretrained = not start.kind and not start.untrained
    if model.global_projections and model.global_tokens == "marked" and only_pretrained:
        say("projections of global tokens, which pretraining did not use, start as copies of the ordinary ones")
        layers = params["encoder"]["layers"]
        layers = layers | {"attention": with_copied_projections(layers["attention"])}
        params["encoder"] = params["encoder"] | {"layers": layers}
    return params


def _fitting_head(trained: Params, prediction: Params) -> Params | None:
    """The trained MLM head if its arrays have the shapes of a decoder's output layer, else None."""
    head = trained.get("mlm_head")
    shapes = [jax.tree.map(np.shape, one) for one in (head, prediction)]
    return head if shapes[0] == shapes[1] else None


def read_result(directory: AnyPath, job: Job, processes: Processes) -> Result | None:
    """Read the result of a finished run, or None. The first process reads it and broadcasts it.

    Raises ValueError if the result belongs to another run.
    """
    path = directory / RESULTS_FILE
    text = processes.broadcast("results", path.read_text() if processes.first and path.is_file() else "")
    if not text:
        return None
    results = _parse_results(text, path)
    check_compatible(dict(results["metadata"]), job.metadata)
    if from_dict(results["metadata"]["config"]).training.steps != job.config.training.steps:
        return None  # the run continues
    values: dict[str, Any] = {**results["result"], "directory": job.config.directory}
    values["figures"] = {name: math.nan if value is None else value for name, value in values["figures"].items()}
    values["predictions"] = tuple(values["predictions"])
    return Result(**values)


def read_measured_by(directory: AnyPath) -> str:
    """Read `Result.measured_by` of a finished run. Raises ValueError if the run is not finished."""
    path = directory / RESULTS_FILE
    return _parse_results(read_run_file(path), path)["result"]["measured_by"]


def _parse_results(text: str, path: AnyPath) -> _Results:
    return parse_json(text, str(path), _Results, remedy="remove the file; the same command writes it again")


def _measure(
    job: Job, params: Params, content: TaskContent, go_on: Callable[[], bool]
) -> tuple[dict[str, float], dict[str, np.ndarray]] | None:
    """Compute (figures of the sets with labels, outputs by set); None once `go_on` returns False."""
    evaluation = dev_sets(job)
    measured = evaluation.measure(params, go_on)
    if measured is None:
        return None
    figures, outputs = measured
    for name, split in content.test.items():
        predicted = evaluation.predictor.predict(params, split.rows, evaluation.objective, go_on)
        if predicted is None:
            return None
        outputs[name] = predicted[0]
        if split.figures is not None:
            figures |= {f"{name}/{figure}": value for figure, value in split.figures(predicted[0]).items()}
    if content.averaged:
        figures |= by_set_and_mean(figures, content)
    return figures, outputs


def by_set_and_mean(figures: Mapping[str, float], content: TaskContent) -> dict[str, float]:
    """Compute a multilingual task's figures: the first metric of each development set, and means over the sets.

    A single set, such as the user's file, adds none.
    """
    metric, first = content.metrics[0], next(iter(content.dev))
    dev = {
        f"eval/{name}/{metric}": figures[f"eval/{metric}" if name == first else f"eval/{name}/{metric}"]
        for name in content.dev
    }
    test = [figures[f"{name}/{metric}"] for name, split in content.test.items() if split.figures is not None]
    added: dict[str, float] = {}
    if len(dev) > 1:
        added = dev | {f"eval/mean_{metric}": math.fsum(dev.values()) / len(dev)}
    if len(test) > 1:
        added[f"test/mean_{metric}"] = math.fsum(test) / len(test)
    return added


def _write_predictions(split: Split, outputs: np.ndarray, directory: AnyPath) -> list[str]:
    """Write predictions; returns the paths of the files within the run's directory."""
    paths = []
    with tempfile.TemporaryDirectory(prefix="bertjax-predictions-") as folder:
        for path in split.write(Path(folder), outputs):
            paths.append(f"{PREDICTIONS}/{path.relative_to(folder)}")
            target = directory / paths[-1]
            if isinstance(target, Path):
                target.parent.mkdir(parents=True, exist_ok=True)
            replace_bytes(target, path.read_bytes())
    return paths
