"""Reference curves: held-out figures of finished runs by step, as a baseline for runs of the same kind.

Two runs are of the same kind if everything that affects their curves is equal except for the seed: the settings that
identify a run, its length, its text, its tokenizer and its teacher. Other runs are not compared.
"""

from __future__ import annotations

import functools
import hashlib
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, TypedDict

import numpy as np

from bertjax.config import Config, differences, from_dict
from bertjax.config.recipes import RECIPES
from bertjax.config.resume import IDENTITY
from bertjax.run.checkpoint import read_metadata
from bertjax.run.compatibility import FINGERPRINTS, RULES, without_microbatches
from bertjax.run.metrics import ProgressColumn
from bertjax.run.telemetry import METRICS_FILE, curves, read_metrics
from bertjax.storage.files import replace_text
from bertjax.storage.json_documents import Between, Count, Sha256, read_json
from bertjax.storage.remote import AnyPath, to_path

FOLDER = RECIPES / "references"  # in the package
_LEAST_RUNS = 2
_INCLUDED = {
    "training.steps",
    "training.eval_rows",
    "execution.dtype",
}  # a resumed run may change them; curves depend on them
_EXCLUDED = {"training.seed"}  # identifies a run, but not its kind
_NOISE = 0.005  # least spread, as a share of a loss, because two or three runs estimate it badly
_OFF = 3.0  # spreads

Remark = Callable[[int, Mapping[str, float]], str]  # (step, held-out figures) -> comment


class _Curve(TypedDict):
    steps: Annotated[list[Count], Between(1)]
    mean: list[float]
    spread: list[float]


class _Document(TypedDict):
    name: str
    command: str
    digest: Sha256
    seeds: Annotated[list[int], Between(_LEAST_RUNS)]
    versions: dict[str, str]
    device: str
    curves: dict[str, _Curve]


@dataclass(frozen=True)
class Curve:
    """The mean and spread of a figure over runs with different seeds."""

    steps: tuple[int, ...]
    mean: tuple[float, ...]
    spread: tuple[float, ...]  # standard deviation between the runs

    def at(self, step: int) -> tuple[float, float] | None:
        """(mean, spread) at a step, interpolated linearly; None outside the measured steps."""
        if not self.steps[0] <= step <= self.steps[-1]:
            return None
        return float(np.interp(step, self.steps, self.mean)), float(np.interp(step, self.steps, self.spread))


@dataclass(frozen=True)
class Reference:
    """The curves of several runs of one kind, and how to reproduce them."""

    name: str
    command: str
    digest: str  # `run_digest`, which is equal for all runs
    seeds: tuple[int, ...]
    versions: Mapping[str, str]
    device: str
    curves: Mapping[str, Curve]  # by name in the log, such as eval/mlm_loss

    def remark(self, columns: Sequence[ProgressColumn]) -> Remark:
        """Return a function that compares the held-out losses in `columns` with the reference, as text."""
        labels = {f"eval/{name}": label for label, name, _ in columns if name.endswith("loss")}
        names = {name: label for name, label in labels.items() if name in self.curves}

        def comparison(step: int, figures: Mapping[str, float]) -> str:
            parts = [
                _compared(label, figures[name], *point)
                for name, label in names.items()
                if name in figures and (point := self.curves[name].at(step)) is not None
            ]
            return f"  reference {', '.join(parts)}" if parts else ""

        return comparison


def _compared(label: str, value: float, mean: float, spread: float) -> str:
    off = value - mean
    verdict = "on track" if abs(off) <= _OFF * max(spread, _NOISE * mean) else f"off by {off:+.2f}"
    return f"{label} {mean:.2f} ± {spread:.2f} ({verdict})"


def run_digest(metadata: Mapping[str, Any]) -> str:
    """SHA-256 (hex) of everything that affects a run's curves except the seed; "" for a run with `init_from`.

    `metadata` as returned by `run_metadata`. Settings with default values are left out, so that adding a setting does
    not change digests.
    """
    config = from_dict(metadata["config"])
    if config.init_from:
        return ""
    free = {key for key, rule in RULES.items() if rule != IDENTITY} - _INCLUDED | _EXCLUDED
    changed = differences(config, Config())
    values = {key: value for key, (_, value) in sorted(changed.items()) if key not in free}
    if "stages" in values:
        values["stages"] = without_microbatches(values["stages"])
    document = values | {name: metadata.get(name, "") for name in FINGERPRINTS}
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def reference_for(metadata: Mapping[str, Any], folder: Path = FOLDER) -> Reference | None:
    """Find the reference for a run with this metadata. Raises ValueError for a damaged file."""
    digest = run_digest(metadata)
    return next((reference for reference in references_in(folder) if reference.digest == digest), None)


@functools.cache
def references_in(folder: Path) -> tuple[Reference, ...]:
    """Read the references in a folder, sorted by file name. Raises ValueError for a damaged file."""
    return tuple(read_reference(path) for path in sorted(folder.glob("*.json")))


def read_reference(path: Path) -> Reference:
    """Read a reference. Raises ValueError naming the file and the error."""
    document: dict[str, Any] = read_json(path, _Document)
    for name, curve in document["curves"].items():
        lengths = {len(curve[part]) for part in ("steps", "mean", "spread")}
        if len(lengths) > 1 or curve["steps"] != sorted(set(curve["steps"])):
            raise ValueError(
                f"{path}: curves.{name}: steps must increase, each with a mean and a spread; write the file again"
            )
    curve_table = {name: Curve(*(tuple(curve[part]) for part in ("steps", "mean", "spread")))
            for name, curve in document["curves"].items()}  # fmt: skip
    described = {key: document[key] for key in ("name", "command", "digest", "versions", "device")}
    return Reference(**described, seeds=tuple(document["seeds"]), curves=curve_table)


def make_reference(name: str, command: str, runs: Sequence[str | AnyPath]) -> Reference:
    """Make a reference from finished runs. Raises ValueError unless they are of one kind and have different seeds."""
    directories = [to_path(str(run)) for run in runs]
    metadata = [read_metadata(directory) for directory in directories]
    digests = [run_digest(record) for record in metadata]
    for directory, record, digest in zip(directories, metadata, digests, strict=True):
        training = record["config"]["training"]
        end = training["steps"]
        if not digest or digest != digests[0]:
            raise ValueError(
                f"{directory}: not the same kind of run as {directories[0]}; give runs of one recipe and text"
            )
        if record["step"] != end:
            raise ValueError(f"{directory}: the run has {record['step']:,} of {end:,} steps; finish it first")
    seeds = [record["config"]["training"]["seed"] for record in metadata]
    if len(set(seeds)) < max(_LEAST_RUNS, len(seeds)):
        raise ValueError(f"runs with the seeds {seeds}: a spread needs {_LEAST_RUNS} seeds or more, each once")
    logged = [curves(read_metrics(directory / METRICS_FILE)) for directory in directories]
    names = [name for name in logged[0] if name.startswith("eval/") and name.count("/") == 1]
    return Reference(
        name,
        command,
        digests[0],
        tuple(seeds),
        metadata[0]["versions"],
        metadata[0]["device_kind"],
        {name: _curve([log[name] for log in logged]) for name in names if all(name in log for log in logged)},
    )


def _curve(runs: Sequence[tuple[list[int], list[float]]]) -> Curve:
    """Mean and spread of a figure at the steps that all runs have in common."""
    steps = sorted(set.intersection(*(set(steps) for steps, _ in runs)))
    values = np.array([[dict(zip(*run, strict=True))[step] for step in steps] for run in runs])
    mean, spread = values.mean(axis=0), values.std(axis=0, ddof=1)
    return Curve(tuple(steps), *(tuple(_rounded(value) for value in part) for part in (mean, spread)))


def _rounded(value: float) -> float:
    return float(f"{value:.6g}") if math.isfinite(value) else value


def write_reference(path: Path, reference: Reference) -> None:
    """Write a reference as JSON, with each list of a curve on one line."""
    parts = {
        name: {"steps": list(curve.steps), "mean": list(curve.mean), "spread": list(curve.spread)}
        for name, curve in reference.curves.items()
    }
    lines = [
        f'  "{key}": {json.dumps(getattr(reference, key))}'
        for key in ("name", "command", "digest", "seeds", "versions", "device")
    ]
    blocks = []
    for name, part in parts.items():
        lists = ",\n".join(f'      "{key}": {json.dumps(value)}' for key, value in part.items())
        blocks.append(f'    "{name}": {{\n{lists}\n    }}')
    text = "{\n" + ",\n".join([*lines, '  "curves": {\n' + ",\n".join(blocks) + "\n  }"]) + "\n}\n"
    replace_text(path, text)
