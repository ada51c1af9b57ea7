"""Average a run's parameters and write the result as a run, which other verbs can read.

Stochastic weight averaging: Izmailov et al. 2018 (https://arxiv.org/abs/1803.05407); ModernBERT uses it too.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import jax
import numpy as np

from bertjax.config import from_dict, to_dict
from bertjax.model.parameters import named_arrays
from bertjax.run.checkpoint import DIRECTORY, Checkpoints, read_metadata, restore_named, saved_steps
from bertjax.run.run_directory import TrainedModel, describe_run, load_run, own_directory, seal
from bertjax.storage.remote import AnyPath, to_path
from bertjax.training.optimizer import moving_average

AVERAGED = "averaged"  # key of the metadata with the step and the digest of each source
_MOVING = "opt_state/average/"  # prefix of the names of the arrays of a moving average
_COUNT = "opt_state/count"


@dataclass(frozen=True)
class Average:
    """The result of `average`."""

    directory: AnyPath
    steps: tuple[int, ...]  # of the averaged checkpoints


def average(run: str | AnyPath, last: int, output: str | AnyPath = "") -> Average:
    """Write the mean parameters of the `last` newest checkpoints of a run to `output` (default: RUN-average).

    The mean is computed in float64 and written as float32, without moments, at the step of the newest checkpoint.
    Raises ValueError if there are fewer checkpoints, if their rope_theta or causal differs, or if the output is not
    empty, and DamagedCheckpoint.
    """
    run, output = _resolve_paths(run, output)
    steps = _newest_steps(run, last)
    sources = [run / DIRECTORY / str(step) for step in steps]
    records = [{"step": step, "digest": _params_digest(path)} for step, path in zip(steps, sources, strict=True)]
    model = load_run(sources[0])
    first = model.config.model
    total = jax.tree.map(lambda x: np.asarray(x, np.float64), jax.device_get(model.params))
    for source in sources[1:]:
        model = load_run(source)
        now = model.config.model
        for key in (key for key in ("rope_theta", "causal") if getattr(now, key) != getattr(first, key)):
            raise ValueError(
                f"--last {last}: checkpoints {steps[0]} and {model.step} of {run} were trained with {key}="
                f"{getattr(first, key)} and {getattr(now, key)}, so they are different functions; lower --last"
            )
        for mean, x in zip(jax.tree.leaves(total), jax.tree.leaves(jax.device_get(model.params)), strict=True):
            mean += x  # in place, to keep a single copy in float64
    params = jax.device_put(jax.tree.map(lambda x: (x / last).astype(np.float32), total), jax.local_devices()[0])
    _write(output, sources[-1], replace(model, params=params), records)
    return Average(output, tuple(steps))


def write_moving_average(run: str | AnyPath, output: str | AnyPath = "") -> Average:
    """Write the exponential moving average (`optimizer.average_decay`) in the newest checkpoint of a run.

    Raises ValueError if the run has no moving average or if the output is not empty, and DamagedCheckpoint.
    """
    run, output = _resolve_paths(run, output)
    steps = saved_steps(run)
    # The best checkpoint of a run that stopped early has only the weights, not the average.
    model = load_run(run / DIRECTORY / str(steps[-1]) if steps else run)
    decay = model.config.optimizer.average_decay
    if not decay:
        raise ValueError(f"--moving: {run} keeps no moving average; train with --optimizer.average-decay 0.999")
    source = run / DIRECTORY / str(model.step)
    shapes = {name: jax.ShapeDtypeStruct(x.shape, x.dtype) for name, x in named_arrays(model.params).items()}
    moving_shapes = {_MOVING + name: shape for name, shape in shapes.items()}
    count = restore_named(source, {_COUNT: jax.ShapeDtypeStruct((), np.int32)})[_COUNT]
    if not int(count):
        raise ValueError(f"--moving: {run} is at step {model.step}, before its first update; train it further")
    averages = moving_average(restore_named(source, moving_shapes), decay, int(count))
    params = jax.tree.unflatten(jax.tree.structure(model.params), [averages[_MOVING + name] for name in shapes])
    record = {"step": model.step, "digest": _params_digest(source), "decay": decay, "updates": int(count)}
    _write(output, source, replace(model, params=params), [record])
    return Average(output, (model.step,))


def _resolve_paths(run: str | AnyPath, output: str | AnyPath) -> tuple[AnyPath, AnyPath]:
    """Return the paths of the run and of the output. Raises ValueError if the output is not empty."""
    run = to_path(str(run))
    output = to_path(str(output or f"{str(run).rstrip('/')}-average"))
    if output.exists() and any(output.iterdir()):
        raise ValueError(f"output folder {output} is not empty; choose another (--output), or move it away")
    return run, output


def _newest_steps(run: AnyPath, last: int) -> list[int]:
    """The steps to average, ascending. Raises ValueError if there are fewer than `last`."""
    if last < 2:
        raise ValueError(f"--last {last}: an average needs 2 or more checkpoints")
    steps = saved_steps(run)
    if len(steps) < last:
        listing = ", ".join(map(str, steps)) or "none"
        raise ValueError(
            f"--last {last}: {run} keeps {len(steps)} checkpoint(s) ({listing}); give a smaller --last, or train with "
            f"--training.keep-last {last} or --training.keep-every"
        )
    return steps[-last:]


def _params_digest(checkpoint: AnyPath) -> str:
    """SHA-256 of the digests of a checkpoint's parameters; `load_run` verifies the parameters against them."""
    arrays = read_metadata(checkpoint)["arrays"]
    digests = {name: entry["digest"] for name, entry in arrays.items() if name.startswith("params/")}
    return hashlib.sha256(json.dumps(digests, sort_keys=True).encode()).hexdigest()


def _write(output: AnyPath, newest: AnyPath, model: TrainedModel, sources: Sequence[dict[str, Any]]) -> None:
    """Write a run with one checkpoint: the model's parameters, with the metadata of the newest source."""
    metadata = read_metadata(newest)
    config = from_dict(metadata["config"])
    # `load_run` has left out the modules that only training needs.
    network = replace(config.model, head=model.config.model.head)
    config = replace(config, name=f"{config.name}-average", run_dir=str(output), model=network)
    step = metadata["step"]
    base_metadata = {name: value for name, value in metadata.items() if name not in ("arrays", "step")}
    with own_directory(output) as staging:
        describe_run(config, model.tokenizer, staging)
        with Checkpoints(output / DIRECTORY, keep_last=1, staging=staging) as checkpoints:
            checkpoints.save(
                step, {"params": model.params}, base_metadata | {"config": to_dict(config), AVERAGED: list(sources)}
            )
        seal(output)
