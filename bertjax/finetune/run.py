"""One fine-tuning run: from given weights to measured ones, with its predictions as files."""

from __future__ import annotations

import json
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.config import FinetuneConfig, ModelConfig
from bertjax.finetune.content import Split, TaskContent
from bertjax.finetune.job import DevSets, assemble_task, dev_sets_of, resolved
from bertjax.model.bert import Params, init_params
from bertjax.parallel.processes import Processes
from bertjax.text.remote import Place, place_of
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.checkpoint import read_metadata, restore_params
from bertjax.training.compatibility import check_compatible
from bertjax.training.files import replace_text
from bertjax.training.job import Job
from bertjax.training.trainer import Outcome, Say, train

RESULTS_FILE = "results.json"
PREDICTIONS = "predictions"


@dataclass(frozen=True)
class Start:
    """A model to start from, read whole."""

    origin: str
    model: ModelConfig
    tokenizer: Tokenizer
    params: Params  # NumPy float32
    drawn: tuple[str, ...] = ()  # modules that it lacks and that are random
    labels: tuple[str, ...] = ()  # of its head, if it has one of a task


@dataclass(frozen=True)
class Result:
    """What a run came to. `figures` are of the weights that are kept: the last, or with patience the best."""

    directory: str
    step: int
    figures: dict[str, float]
    baselines: dict[str, float]
    seconds: float  # of this process's training
    predictions: tuple[str, ...]  # files, within the directory
    exit_code: int = 0  # not 0: a signal ended it early, and there are no figures


def finetune(config: FinetuneConfig, start: Start, content: TaskContent, processes: Processes, say: Say) -> Result:
    """Train, measure, predict and write down, whatever of that is missing; every process of the run does this.

    Raises ValueError as `assemble_task` and `train` do.
    """
    config = resolved(config, content)
    job = assemble_task(config, content, start.tokenizer)
    directory = place_of(config.directory)
    if (done := finished(directory, job)) is not None:
        say(f"{config.directory}: finished before")
        return done
    outcome = train(job, say, lambda: initial_params(config, start), processes)
    if outcome.exit_code:
        return Result(config.directory, outcome.step, {}, {}, outcome.seconds, (), outcome.exit_code)
    return _measured(job, content, directory, outcome, processes)


def initial_params(config: FinetuneConfig, start: Start) -> Params:
    """Encoder and pooler of a model, and a head drawn by the seed; its own if it is one of the same task."""
    drawn = jax.jit(lambda key: init_params(config.model, key))(jax.random.key(config.training.seed))
    fresh = jax.device_get(drawn)
    taken = ["encoder", "pooler"]
    if start.model.head == config.model.head and start.labels == config.task.labels:
        taken.append("head")
    return {name: start.params[name] if name in taken and name in start.params else fresh[name] for name in fresh}


def finished(directory: Place, job: Job) -> Result | None:
    """The result of a run that was completed before, by the same settings and data; None if there is none.

    Raises ValueError if it was of another run, as a checkpoint would be refused.
    """
    path = directory / RESULTS_FILE
    if not path.is_file():
        return None
    saved = json.loads(path.read_text())
    check_compatible(saved["metadata"], job.metadata)
    if saved["metadata"]["config"]["training"]["steps"] != job.config.training.steps:
        return None  # it goes on
    return Result(
        **{**saved["result"], "directory": job.config.directory, "predictions": tuple(saved["result"]["predictions"])}
    )


def _measured(job: Job, content: TaskContent, directory: Place, outcome: Outcome, processes: Processes) -> Result:
    """Measure the weights that are kept, as they are on the disk, and write the results."""
    with jax.set_mesh(job.mesh):
        params = restore_params(directory, job.blueprint.state.params)
        figures, predicted = _predicted(dev_sets_of(job), params, content)
    files = [path for each in predicted for path in _write(*each, directory)] if processes.first else []
    result = Result(
        job.config.directory,
        read_metadata(directory)["step"],
        figures,
        dict(content.baselines),
        outcome.seconds,
        tuple(files),
    )
    if processes.first:
        metadata = {name: job.metadata[name] for name in ("config", "tokenizer_fingerprint", "data_fingerprint")}
        document: dict[str, Any] = {"result": asdict(result), "metadata": metadata}
        replace_text(directory / RESULTS_FILE, json.dumps(document, indent=1) + "\n")
    return result


def _predicted(
    dev_sets: DevSets, params: Params, content: TaskContent
) -> tuple[dict[str, float], list[tuple[Split, np.ndarray]]]:
    """(figures of the development sets, the outputs for each of them and each test set)."""
    measured = dev_sets.measure(params)
    assert measured is not None, "nobody said no"
    figures, outputs = measured
    predicted = [(split, outputs[name]) for name, split in content.dev.items()]
    for split in content.test.values():
        found = dev_sets.predictor.predict(params, split.rows, dev_sets.objective)
        assert found is not None, "nobody said no"
        predicted.append((split, found[0]))
    return figures, predicted


def _write(split: Split, outputs: np.ndarray, directory: Place) -> list[str]:
    """Write what was predicted; gives the files' paths within the run's directory."""
    paths = []
    with tempfile.TemporaryDirectory(prefix="bertjax-predictions-") as folder:
        for path in split.write(Path(folder), outputs):
            paths.append(f"{PREDICTIONS}/{path.relative_to(folder)}")
            place = directory / paths[-1]
            if isinstance(place, Path):
                place.parent.mkdir(parents=True, exist_ok=True)
            replace_text(place, path.read_text(encoding="utf-8"))
    return paths
