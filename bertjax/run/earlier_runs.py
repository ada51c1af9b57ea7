"""Finished runs in the same folder as a run, and the held-out loss to expect from them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.run.checkpoint import read_metadata, saved_steps
from bertjax.run.telemetry import METRICS_FILE, read_metrics
from bertjax.storage.remote import AnyPath
from bertjax.training.course import parse_replan

# Keys that have to be the same, besides the model and the rows of stages: other runs cannot predict this one.
_SAME = {
    "data": ("sequence_length", "rows", "packing", "predict", "masking", "mask_probability", "max_predictions"),
    "training": ("global_batch_size", "objectives"),
    "optimizer": ("name", "learning_rate", "schedule"),
}
_FINGERPRINTS = ("data_fingerprint", "tokenizer_fingerprint")
_BEYOND = 4.0  # factor beyond the steps of the longest and the shortest run up to which a fit is used
_NEAR = 1.1  # range of steps in which a single run is used


@dataclass(frozen=True)
class Finished:
    """A run that was trained to its end."""

    steps: int
    loss: float  # held out, at its end


@dataclass(frozen=True)
class Expectation:
    """A held-out loss, and the runs that it follows from."""

    loss: float
    runs: tuple[Finished, ...]

    def __str__(self) -> str:
        steps = sorted({run.steps for run in self.runs})
        length = f"{steps[0]:,}" if len(steps) == 1 else f"{steps[0]:,} to {steps[-1]:,}"
        count = "a run" if len(self.runs) == 1 else f"{len(self.runs)} runs"
        return f"about {self.loss:.2f}, from {count} of this model on this text with {length} steps"


def expected_loss(metadata: Mapping[str, Any], steps: int, directory: AnyPath) -> Expectation | None:
    """The held-out loss of a run of `steps` steps, from finished ones in its parent folder; None without.

    `metadata` are the run's, as `run_metadata` makes them. The loss is fitted as a straight line over the
    logarithm of the number of steps, where there are runs of several lengths.
    """
    if not isinstance(directory, Path):
        return None
    others = sorted(path for path in directory.absolute().parent.glob("*/") if path != directory.absolute())
    runs = tuple(run for path in others if (run := _finished(path, metadata)) is not None)
    if not runs:
        return None
    shortest, longest = min(run.steps for run in runs), max(run.steps for run in runs)
    far = _NEAR if shortest == longest else _BEYOND
    if not shortest / far <= steps <= longest * far:
        return None
    if shortest == longest:
        return Expectation(float(np.mean([run.loss for run in runs])), runs)
    slope, level = np.polyfit([math.log(run.steps) for run in runs], [run.loss for run in runs], 1)
    return Expectation(float(level + slope * math.log(steps)), runs)


def loss_name(config: Mapping[str, Any]) -> str:
    """The figure that is expected, by its name in the log: the loss of the first objective."""
    return f"eval/{config['training']['objectives'][0]}_loss"


def _finished(directory: Path, like: Mapping[str, Any]) -> Finished | None:
    """The result of a finished run that differs only in length; None otherwise."""
    try:
        if not saved_steps(directory):
            return None
        metadata, records = read_metadata(directory), read_metrics(directory / METRICS_FILE)
    except (OSError, ValueError):  # damaged, or no run: it is ignored
        return None
    if not _alike(metadata, like):
        return None
    training, name = metadata["config"]["training"], loss_name(like["config"])
    end = parse_replan(training["replans"][-1])[1] if training.get("replans") else training["steps"]
    losses = [record[name] for record in records if record["step"] == end and record.get(name) is not None]
    return Finished(end, losses[-1]) if losses and metadata["step"] == end else None


def _alike(metadata: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    mine, theirs = metadata["config"], other["config"]
    return (
        all(metadata[key] == other[key] for key in _FINGERPRINTS)
        # The first step of a stage depends on the length of the run.
        and _without_starts(mine) == _without_starts(theirs)
        and all(mine[part].get(key) == theirs[part].get(key) for part, keys in _SAME.items() for key in keys)
    )


def _without_starts(config: Mapping[str, Any]) -> list[Any]:
    # A key that is None may be younger than the run.
    moving = ("start", "warmup_steps")
    stages = [
        {key: value for key, value in stage.items() if key not in moving and value is not None}
        for stage in config["stages"]
    ]
    return [config["model"], stages]
