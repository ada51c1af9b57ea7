"""Replay a step of a run from the checkpoint before it: its figures, its gradient by layer, and each row's loss.

The replayed steps use the run's own program, batches and state, so their figures can be compared with the log.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jax.sharding import NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.input.feed import Batch
from bertjax.parallel.mesh import BATCH_AXES, batch_shards
from bertjax.parallel.sharding import to_global
from bertjax.run.job import Job, RunStage
from bertjax.run.metrics import LOSS, TOKENS_SEEN, StepMetrics
from bertjax.run.telemetry import Record, logged_value
from bertjax.training.state import TrainState
from bertjax.training.step import Metrics, batch_weights

_RATES = ("perf/", "time/", "goodput/")


@dataclass(frozen=True)
class RowFigures:
    """The figures of one row of the batch."""

    number: int  # in the batch, from 0
    losses: dict[str, float]  # mean loss of each objective over the row's predictions
    share: float  # contribution to the step's loss, which is the sum over rows
    gradient_norm: float  # of the row's contribution to the step's gradient, before clipping


@dataclass(frozen=True)
class Comparison:
    """Comparison with the log records whose steps were all replayed."""

    compared: tuple[int, ...]  # steps of these records
    different: dict[int, dict[str, tuple[float | None, float | None]]]  # step -> figure -> (logged, replayed)


@dataclass(frozen=True)
class Replayed:
    """A replayed step. As in the log, step N is the one that completes N steps."""

    step: int
    start: int  # the step of the checkpoint to replay from; 0 is the initial state
    rows_read: np.ndarray  # int64 [B]: row numbers in the stage
    batch: Batch
    figures: dict[str, float]  # of the step, by their names in the log without the group
    layers: dict[str, float]  # norms of the gradient before clipping, embeddings first
    rows: tuple[RowFigures, ...]  # in the order of the batch
    comparison: Comparison


def replay(job: Job, state: TrainState, step: int, logged: list[Record], done: Callable[[int], object]) -> Replayed:
    """Continue from a state to step number `step`, and to the end of the log record that contains it, if any.

    Call it under `jax.set_mesh(job.mesh)`. `logged` is the run's log; `done` is called after every step.
    """
    start = int(state.step)
    assert start < step <= job.stages[-1].stop
    records = [record for record in logged if LOSS in record]
    last = max(step, next((record["step"] for record in records if record["step"] >= step), step))
    log = _Log(records, start)
    metrics = StepMetrics(job.peak.flops, log.tokens_before)
    details: dict[str, Any] = {}
    for stage, number, local in _batches(job, start, last):
        batch = to_global(job.mesh, local)
        if number + 1 == step:
            details = _inspect(job, stage, state, batch, local)
        state, step_metrics = stage.train_step(state, batch)
        metrics.add(step_metrics)
        if number + 1 == step:
            details["figures"] = {name: float(value) for name, value in step_metrics.items()}
            details["rows_read"] = _rows_read(stage, number)
        if number + 1 in log.steps:
            metrics.drain()
            log.compare(number + 1, metrics.window(1.0))
        done(number + 1)
    return Replayed(step=step, start=start, comparison=log.comparison, **details)


class _Log:
    """Compares the records of a run's log after step `start`, one by one."""

    def __init__(self, records: list[Record], start: int) -> None:
        self._records = {record["step"]: record for record in records if record["step"] > start}
        before = [record for record in records if record["step"] <= start]
        self.tokens_before = before[-1].get(TOKENS_SEEN, 0.0) if before else 0.0
        # The first record cannot be compared if its window began before the first replayed step.
        self._whole = (before[-1]["step"] if before else 0) == start
        self.steps = self._records.keys()
        self.comparison = Comparison((), {})

    def compare(self, step: int, figures: Mapping[str, float]) -> None:
        """Compare the means over the steps since the last record."""
        whole, self._whole = self._whole, True
        if not whole:
            return
        logged = self._records[step]
        here = {name: logged_value(value) for name, value in figures.items() if not name.startswith(_RATES)}
        differing = {name: (logged[name], value) for name, value in here.items() if logged.get(name, value) != value}
        now = self.comparison
        self.comparison = Comparison((*now.compared, step), now.different | ({step: differing} if differing else {}))


def _batches(job: Job, start: int, stop: int) -> Iterator[tuple[RunStage, int, Batch]]:
    """Yield (stage, step, batch) from step `start` up to `stop`."""
    for stage in job.stages:
        first, last = max(start, stage.start), min(stop, stage.stop)
        if first >= last:
            continue
        with stage.open_feed(job.mesh, first, last) as feed:
            for number, batch in zip(itertools.count(first), feed, strict=False):
                yield stage, number, batch


def _rows_read(stage: RunStage, step: int) -> np.ndarray:
    """Row numbers, within the stage, of a step's batch."""
    size = stage.training.global_batch_size
    return stage.batch_number(step) * size + np.arange(size)


def _inspect(job: Job, stage: RunStage, state: TrainState, batch: Any, local: Batch) -> dict[str, Any]:
    """Compute the gradient of the step by layer, and the contribution of each row."""
    step, parts = stage.train_step, stage.train_step.gradient
    weights = jax.jit(functools.partial(batch_weights, objectives=parts.objectives))(batch)
    keys = jax.jit(parts.keys)(state.step, batch)
    whole = parts.make(stage.training.microbatches)

    @functools.partial(jax.jit, compiler_options=parts.options)
    def by_layer(*arguments: Any) -> dict[str, jax.Array]:
        return _squares_by_layer(whole(*arguments)[0])

    squares = jax.device_get(by_layer(state.params, batch, keys, weights, step.frozen))

    def shard_fn(grads: Any, sums: Metrics) -> tuple[jax.Array, Metrics]:
        return optax.tree.norm(grads)[None], jax.tree.map(lambda x: x[None], sums)

    row_gradient = jax.jit(parts.make_per_device(1, shard_fn, P(BATCH_AXES)), compiler_options=parts.options)
    shards, figures = batch_shards(job.mesh), []
    all_keys = None if keys is None else np.asarray(keys)
    for first in range(0, len(local["input_ids"]), shards):
        some = slice(first, first + shards)
        here = to_global(job.mesh, {name: values[some] for name, values in local.items()})
        row_keys = None if all_keys is None else jax.device_put(all_keys[some], NamedSharding(job.mesh, P(BATCH_AXES)))
        norms, sums = jax.device_get(row_gradient(state.params, here, row_keys, weights, step.frozen))
        for shard, norm in enumerate(norms):
            row_sums = {name: float(values[shard]) for name, values in sums.items()}
            figures.append(_row_figures(first + shard, row_sums, float(norm), local, weights, parts.objectives))
    return {"batch": local, "layers": _norms(squares), "rows": tuple(figures)}


def _row_figures(
    number: int, sums: dict[str, float], norm: float, batch: Batch, weights: Metrics, objectives: Any
) -> RowFigures:
    losses, share = {}, 0.0
    for objective in objectives:
        loss, weight = sums[f"{objective.name}_loss"], float(batch[objective.weight_key][number].sum())
        if weight:
            losses[objective.name] = loss / weight
        share += objective.scale * loss / (float(weights[f"{objective.name}_weight"]) + objective.epsilon)
    return RowFigures(number, losses, share, norm)


def _squares_by_layer(grads: Any) -> dict[str, jax.Array]:
    """Part of the network -> sum of squares of its gradient: float32 [], or [layers] for the stack of layers."""
    squares: dict[str, jax.Array] = {}
    for path, grad in jax.tree_util.tree_leaves_with_path(grads):
        names = [part.key for part in path]
        stacked = "layers" in names
        inside = names.index("encoder") + 2 if "encoder" in names else 1
        name = "/".join(names[:inside])
        square = jnp.sum(jnp.square(grad.astype(jnp.float32)), axis=tuple(range(stacked, grad.ndim)))
        squares[name] = squares.get(name, 0.0) + square
    return squares


def _norms(squares: Mapping[str, np.ndarray]) -> dict[str, float]:
    """Readable names -> norms, in the order of the forward pass: embeddings, layers, the rest."""
    named_norms: dict[str, float] = {}
    for name in sorted(squares, key=lambda name: (_order(name), name)):
        *above, last = name.removeprefix("encoder/").split("/")
        prefix = "".join(f"{part} " for part in above if part != "encoder")
        if last == "layers":
            first = int(f"{name.removesuffix(last)}first_layer" in squares)
            norms = np.sqrt(np.atleast_1d(squares[name])).tolist()
            named_norms |= {f"{prefix}layer {number}": norm for number, norm in enumerate(norms, first)}
        else:
            label = "layer 0" if last == "first_layer" else last.replace("_", " ")
            named_norms[prefix + label] = float(np.sqrt(squares[name]))
    return named_norms


def _order(name: str) -> int:
    """The rank of a part of the network in the forward pass."""
    order = ("embeddings", "first_layer", "layers", "final_norm")
    last = name.rpartition("/")[2]
    return order.index(last) if name.startswith("encoder/") and last in order else len(order)
