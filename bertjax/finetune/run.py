"""One fine-tuning run: from given weights to fine-tuned ones, their figures, and predictions as files."""

from __future__ import annotations

import functools
import json
import math
import tempfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any, Literal, TypedDict

import jax
import numpy as np

from bertjax.config import FinetuneConfig, ModelConfig, from_dict
from bertjax.families.networks import init_params
from bertjax.finetune.job import DevSets, assemble_task, dev_sets_of, resolved
from bertjax.finetune.kinds.kind import Split, TaskContent, text_of_run
from bertjax.model.attention.sparse import with_copied_projections
from bertjax.model.heads import POOLER_OF_TOKENS
from bertjax.model.network import Params
from bertjax.model.shared_tables import with_own_words
from bertjax.run.callbacks import Callback
from bertjax.run.checkpoint import read_metadata, restore_params
from bertjax.run.checkpoint_metadata import DRAWN
from bertjax.run.compatibility import FINGERPRINTS, check_compatible
from bertjax.run.job import Job
from bertjax.run.run_directory import seal
from bertjax.run.trainer import Say, train
from bertjax.runtime.processes import Processes
from bertjax.storage.files import replace_bytes, replace_text
from bertjax.storage.json_documents import Count, parse_json
from bertjax.storage.remote import AnyPath, path_of
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.teacher import Teacher

RESULTS_FILE = "results.json"
PREDICTIONS = "predictions"

_OF_A_HEAD = ("head", "num_labels", "features", "lstm_size")  # fields of ModelConfig


@dataclass(frozen=True)
class Start:
    """A model to start from, in memory."""

    origin: str
    model: ModelConfig
    tokenizer: Tokenizer
    params: Params  # NumPy float32
    drawn: tuple[str, ...] = ()  # modules that it lacks, whose weights are random
    labels: tuple[str, ...] = ()  # of its head, if it has one of a task
    kind: str = ""  # name of that kind of task


@dataclass(frozen=True)
class Result:
    """The result of a run. `figures` are of the weights that are kept: the last, or with patience the best."""

    directory: str
    step: int
    figures: dict[str, float]
    baselines: dict[str, float]
    seconds: float  # of this process's training
    predictions: tuple[str, ...]  # files, within the directory
    exit_code: int = 0  # not 0: a signal ended it early, and there are no figures
    measured_by: str = ""  # `TaskContent.measured_by`


class _Values(TypedDict):
    """The fields of `Result`."""

    step: Count
    figures: dict[str, float | None]
    baselines: dict[str, float]
    seconds: float
    predictions: list[str]
    exit_code: Literal[0]
    measured_by: str


class _Measured(TypedDict):
    config: dict[str, Any]


class _Results(TypedDict):
    """What `RESULTS_FILE` holds."""

    result: _Values
    metadata: _Measured


def finetune(
    config: FinetuneConfig,
    start: Start,
    content: TaskContent,
    processes: Processes,
    say: Say,
    callbacks: Sequence[Callback] = (),
    teacher: Teacher | None = None,
) -> Result:
    """Train, evaluate, predict and write results, unless that was done before; every process of the run calls this.

    Raises ValueError as `assemble_task` and `train` do, and for results that are not those of the weights.
    """
    config = resolved(config, content)
    job = assemble_task(config, content, start.tokenizer, teacher)
    if not content.kind.network.outputs:  # nothing trains a pooler that no logits are read from
        job = replace(job, metadata=job.metadata | {DRAWN: [name for name in start.drawn if name == "pooler"]})
    directory = path_of(config.directory)
    seconds = 0.0
    if (done := finished(directory, job, processes)) is None:
        outcome = train(job, say, lambda: initial_params(config, start, say), processes, callbacks)
        if outcome.exit_code:
            return Result(config.directory, outcome.step, {}, {}, outcome.seconds, (), outcome.exit_code)
        seconds = outcome.seconds
    elif done.measured_by == content.measured_by:
        say(f"{config.directory}: finished before")
        return replace(done, baselines=dict(content.baselines))
    else:
        if (there := read_metadata(directory)["step"]) != done.step:
            raise ValueError(
                f"run_dir={config.directory}: its results are of step {done.step:,} and its weights of step {there:,}; "
                "finish what went on with it, or name another folder"
            )
        say(f"{config.directory}: finished before, and measured by other data or settings; done again with its weights")
        seconds = done.seconds
    return _measured(job, content, directory, seconds, processes)


def initial_params(config: FinetuneConfig, start: Start, say: Say) -> Params:
    """Encoder and pooler of a model, with its head if that is of the same task, else with one drawn by the seed.

    If a pooler on every token precedes the heads (ModernBERT), pretraining trained it before the vocabulary projection.
    """
    drawn = jax.jit(lambda key: init_params(config.model, key))(jax.random.key(config.training.seed))
    fresh = jax.device_get(drawn)
    taken = ["encoder", "pooler"]
    if start.model.teacher_width == config.model.teacher_width:
        taken.append("teacher_projection")
    if "head" in start.params and _has_its_head(config, start):
        taken.append("head")
    elif "head" in start.params:
        say(f"{start.origin} has a head for other outputs ({start.kind}); one for these starts at random")
    there = with_own_words(start.params)
    if config.model.pooler == POOLER_OF_TOKENS and "pooler" not in there and "mlm_head" in there:
        there = there | {"pooler": {"dense": there["mlm_head"]["transform"], "norm": there["mlm_head"]["norm"]}}
    found = {name: there[name] if name in taken and name in there else fresh[name] for name in fresh}
    if _has_unused_projections(config, start):
        say("projections of global tokens, which no token used in pretraining, start as the ordinary ones")
        layers = found["encoder"]["layers"]
        layers = layers | {"attention": with_copied_projections(layers["attention"])}
        found["encoder"] = found["encoder"] | {"layers": layers}
    return found


def _has_unused_projections(config: FinetuneConfig, start: Start) -> bool:
    """Whether a model comes from pretraining in which no token was global, with heads of pretraining that say so."""
    model = config.model
    of_pretraining = not start.kind and not start.drawn
    return model.global_projections and model.global_tokens == "marked" and of_pretraining


def _has_its_head(config: FinetuneConfig, start: Start) -> bool:
    """Whether a head has the same shape and meaning: a score is not a logit, though both are one number."""
    same = all(getattr(start.model, name) == getattr(config.model, name) for name in _OF_A_HEAD)
    return same and (start.kind,) == config.training.objectives and start.labels == config.task.labels


def finished(directory: AnyPath, job: Job, processes: Processes) -> Result | None:
    """The result of a run that was completed before, by the same training; None if there is none.

    All processes have it from the first. Raises ValueError, as for a checkpoint, if it is of another run.
    """
    path = directory / RESULTS_FILE
    text = processes.broadcast("results", path.read_text() if processes.first and path.is_file() else "")
    if not text:
        return None
    saved = _parsed(text, path)
    check_compatible(saved["metadata"], job.metadata)
    if from_dict(saved["metadata"]["config"]).training.steps != job.config.training.steps:
        return None  # it goes on
    result = saved["result"]
    figures = {name: math.nan if value is None else value for name, value in result["figures"].items()}
    own = {"directory": job.config.directory, "figures": figures, "predictions": tuple(result["predictions"])}
    known = {field.name for field in fields(Result)}
    return Result(**{name: value for name, value in (result | own).items() if name in known})


def measured_by_of(directory: AnyPath) -> str:
    """By what data and settings a finished run was measured, see `Result`. Raises ValueError if it is not finished."""
    path = directory / RESULTS_FILE
    return _parsed(text_of_run(path), path)["result"]["measured_by"]


def _parsed(text: str, path: AnyPath) -> dict[str, Any]:
    return parse_json(text, str(path), _Results, remedy="remove the file, and it is made again")


def _measured(job: Job, content: TaskContent, directory: AnyPath, seconds: float, processes: Processes) -> Result:
    """Evaluate the weights that are kept, as they are on disk, and write the results; `seconds` of training."""
    with jax.set_mesh(job.mesh):
        with processes.taking_time():
            params = restore_params(directory, job.blueprint.state.params)
        go_on = functools.partial(processes.go_on, doing="evaluation")
        measured = _predicted(dev_sets_of(job), params, content, go_on)
    step = read_metadata(directory)["step"]
    if measured is None:
        return Result(job.config.directory, step, {}, {}, seconds, (), processes.exit_code)
    figures, predicted = measured
    files = [path for each in predicted for path in _write(*each, directory)] if processes.first else []
    result = Result(
        job.config.directory,
        step,
        figures,
        dict(content.baselines),
        seconds,
        tuple(files),
        measured_by=content.measured_by,
    )
    if processes.first:
        replace_text(directory / RESULTS_FILE, _document(result, job))
        seal(directory)
    return result


def _document(result: Result, job: Job) -> str:
    """The text of results.json; NaN is written as null, since JSON has no NaN."""
    figures = {name: value if math.isfinite(value) else None for name, value in result.figures.items()}
    metadata = {name: job.metadata[name] for name in ("config", *FINGERPRINTS)}
    document: dict[str, Any] = {"result": asdict(result) | {"figures": figures}, "metadata": metadata}
    return json.dumps(document, indent=1, allow_nan=False) + "\n"


def _predicted(
    dev_sets: DevSets, params: Params, content: TaskContent, go_on: Callable[[], bool]
) -> tuple[dict[str, float], list[tuple[Split, np.ndarray]]] | None:
    """(figures of the sets with labels, outputs for each set); None once `go_on` is False."""
    measured = dev_sets.measure(params, go_on)
    if measured is None:
        return None
    figures, outputs = measured
    predicted = [(split, outputs[name]) for name, split in content.dev.items()]
    for name, split in content.test.items():
        found = dev_sets.predictor.predict(params, split.rows, dev_sets.objective, go_on)
        if found is None:
            return None
        if split.figures is not None:
            figures |= {f"{name}/{figure}": value for figure, value in split.figures(found[0]).items()}
        predicted.append((split, found[0]))
    if content.averaged:
        figures |= by_set_and_mean(figures, content)
    return figures, predicted


def by_set_and_mean(figures: Mapping[str, float], content: TaskContent) -> dict[str, float]:
    """Of sets that are one in several languages: the first metric of the first set under its name, and the means.

    A single set, as a named file is, needs neither.
    """
    metric, first = content.metrics[0], next(iter(content.dev))
    dev = {f"eval/{name}/{metric}": figures[f"eval/{metric}" if name == first else f"eval/{name}/{metric}"]
           for name in content.dev}  # fmt: skip
    test = [figures[f"{name}/{metric}"] for name, split in content.test.items() if split.figures is not None]
    means = {f"test/mean_{metric}": math.fsum(test) / len(test)} if len(test) > 1 else {}
    return (dev | {f"eval/mean_{metric}": math.fsum(dev.values()) / len(dev)} if len(dev) > 1 else {}) | means


def _write(split: Split, outputs: np.ndarray, directory: AnyPath) -> list[str]:
    """Write the predictions; returns the files' paths within the run's directory."""
    paths = []
    with tempfile.TemporaryDirectory(prefix="bertjax-predictions-") as folder:
        for path in split.write(Path(folder), outputs):
            paths.append(f"{PREDICTIONS}/{path.relative_to(folder)}")
            target = directory / paths[-1]
            if isinstance(target, Path):
                target.parent.mkdir(parents=True, exist_ok=True)
            replace_bytes(target, path.read_bytes())
    return paths
