"""The mean of a run's last checkpoints, as a run that other verbs read (Izmailov et al. 2018; ModernBERT)."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from bertjax.config import from_dict, to_dict
from bertjax.run.checkpoint import DIRECTORY, Checkpoints, read_metadata, saved_steps
from bertjax.run.run_directory import TrainedModel, describe_run, load_run, own_directory, seal
from bertjax.storage.remote import AnyPath, path_of

AVERAGED = "averaged"  # the key of a checkpoint's metadata: the step and the digest of each source


@dataclass(frozen=True)
class Average:
    """The result of `average`."""

    directory: AnyPath
    steps: tuple[int, ...]  # of the checkpoints that it is the mean of


def average(run: str | AnyPath, last: int, output: str | AnyPath = "") -> Average:
    """Write the mean of the parameters of the `last` newest checkpoints of a run; `output` is RUN-average unless given.

    Means are taken in float64 and written as float32, without moments, at the step of the newest. Raises ValueError
    if there are fewer, or their rope_theta or causal differs, or if the output is not empty, and DamagedCheckpoint.
    """
    run = path_of(str(run))
    output = path_of(str(output or f"{str(run).rstrip('/')}-average"))
    steps = _newest(run, last)
    if output.exists() and any(output.iterdir()):
        raise ValueError(f"average to {output}: it is not empty; choose another (--output), or move it away")
    sources = [run / DIRECTORY / str(step) for step in steps]
    records = [{"step": step, "digest": _digest_of(path)} for step, path in zip(steps, sources, strict=True)]
    model = load_run(sources[0])
    first = model.config.model
    total = jax.tree.map(lambda x: np.asarray(x, np.float64), jax.device_get(model.params))
    for source in sources[1:]:
        model = load_run(source)
        now = model.config.model
        for key in (key for key in ("rope_theta", "causal") if getattr(now, key) != getattr(first, key)):
            raise ValueError(
                f"--last {last}: checkpoints {steps[0]} and {model.step} of {run} are of stages with {key}="
                f"{getattr(first, key)} and {getattr(now, key)}, which are different functions of the weights; average "
                "fewer"
            )
        for mean, x in zip(jax.tree.leaves(total), jax.tree.leaves(jax.device_get(model.params)), strict=True):
            mean += x  # in place, so that one copy in float64 exists
    params = jax.device_put(jax.tree.map(lambda x: (x / last).astype(np.float32), total), jax.local_devices()[0])
    _write(output, sources[-1], replace(model, params=params), records)
    return Average(output, tuple(steps))


def _newest(run: AnyPath, last: int) -> list[int]:
    """The steps to average, ascending."""
    if last < 2:
        raise ValueError(f"--last {last}: a mean takes 2 checkpoints or more")
    steps = saved_steps(run)
    if len(steps) < last:
        kept = ", ".join(map(str, steps)) or "none"
        raise ValueError(
            f"--last {last}: {run} keeps {len(steps)} checkpoint(s) ({kept}); give a smaller --last, or train with "
            f"--training.keep-last {last} or --training.keep-every"
        )
    return steps[-last:]


def _digest_of(checkpoint: AnyPath) -> str:
    """SHA-256 of the digests of a checkpoint's parameters, which `load_run` verifies."""
    arrays = read_metadata(checkpoint)["arrays"]
    digests = {name: about["digest"] for name, about in arrays.items() if name.startswith("params/")}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def _write(output: AnyPath, newest: AnyPath, model: TrainedModel, sources: Sequence[dict[str, Any]]) -> None:
    """Write a run whose only checkpoint has the metadata of the newest source, without its moments."""
    metadata = read_metadata(newest)
    config = from_dict(metadata["config"])
    config = replace(config, name=f"{config.name}-average", run_dir=str(output))
    step = metadata["step"]
    kept = {name: value for name, value in metadata.items() if name not in ("arrays", "step")}
    with own_directory(output) as staging:
        describe_run(config, model.tokenizer, staging)
        with Checkpoints(output / DIRECTORY, keep_last=1, staging=staging) as saved:
            saved.save(step, {"params": model.params}, kept | {"config": to_dict(config), AVERAGED: list(sources)})
        seal(output)
