"""Train within a time budget: measure the machine once, then train as many steps as fit.

1. `measure` times the parts of the run with its compiled programs and a state that is discarded.
2. `fit_steps` finds the largest number of steps for which the whole command ends in time.
The decision is `training.steps` in config.json and in checkpoints. A resumed run reads it in its newest checkpoint
(`keep_decided_length`) and measures nothing.
"""

from __future__ import annotations

import bisect
import itertools
import json
import math
import os
import shutil
import time
from collections.abc import Callable, Collection
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import jax

from bertjax.config import Config, differences, from_dict
from bertjax.config.budget import budget_seconds
from bertjax.config.rescale import nearest_multiple, rescale, with_lengths
from bertjax.model.network import Params
from bertjax.parallel.sharding import to_global
from bertjax.run.checkpoint import DIRECTORY, Checkpoints, read_newest_metadata, saved_steps
from bertjax.run.job import HeldOutText, Job, RunStage, reschedule
from bertjax.run.metrics import StepMetrics
from bertjax.run.progress import duration
from bertjax.run.run_directory import describe_run, own_directory, require_shared
from bertjax.run.telemetry import METRICS_FILE
from bertjax.runtime.compilation import compile_seconds
from bertjax.runtime.host_memory import Temporaries
from bertjax.runtime.processes import Processes
from bertjax.storage.files import replace_text
from bertjax.storage.progress import SIGNS
from bertjax.storage.remote import to_path
from bertjax.training.evaluate import HeldOut
from bertjax.training.stages import make_stages
from bertjax.training.state import TrainState, init_state

AIM = 0.98  # share of the budget after which the command should end; late is worse than early
_MEASURING = 0.05  # share of the budget to spend on measured steps; evaluations get half as much
_LONGEST_MEASUREMENT = 120.0  # seconds
_LEAST_STEPS = 3  # to measure
_QUICK = 5.0  # seconds; quicker work is done twice and the second time measured, because the first is slower
_SIDE_SHARE = 0.1  # share of the budget for all evaluations; the same for all saves
_LEAST_EVAL_ROWS = 256
_MOST_STEPS = 1 << 40
# Assumed for object storage, where saving is not measured.
_BYTES_PER_SECOND, _OVERHEAD = 50e6, 5.0
_FLOATS_PER_WEIGHT = 3  # in the state: the weight and its two moments

_REHEARSAL = "rehearsal"  # folder in the run's directory during measurements
_IMPORTED = time.monotonic()

Clock = Callable[[], float]  # seconds since the command began
Finish = Callable[[Config], object]  # writes the report and the export of the run in the config's directory


class Costs(NamedTuple):
    """Seconds for each part of a run on this machine."""

    step: tuple[float, ...]  # by stage
    evaluation: tuple[float, ...]  # by stage
    save: float
    start: float  # from the decision to the first step
    finish: float  # from the last save to the end of the command


def seconds_of_this_process() -> float:
    """Seconds since this process started, or since this module's import if the system does not report it."""
    try:
        with open("/proc/self/stat", encoding="utf-8") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError):
        return time.monotonic() - _IMPORTED


def keep_decided_length(config: Config, user_keys: Collection[str] = ()) -> Config:
    """Take over the length that was decided when the run in the config's directory began.

    Returns the config unchanged for a new run; `user_keys` keep their values. Raises ValueError if the run began with
    another budget.
    """
    directory = to_path(config.directory)
    saved = read_newest_metadata(directory) if config.training.budget else None
    if saved is None:
        return config
    original = from_dict(saved["config"])
    if original.training.budget != config.training.budget:
        how = f"with {original.training.budget}" if original.training.budget else "without a budget"
        raise ValueError(
            f"training.budget={config.training.budget!r}: the run in {directory} began {how}; continue it as it "
            "began, or give the new run its own directory (--run-dir)"
        )
    decided = ("steps", "log_every", "eval_every", "checkpoint_every", "keep_every", "eval_rows")
    values = {name: getattr(original.training, name) for name in decided if f"training.{name}" not in user_keys}
    # `require_own_run` refuses a run with another number of stages.
    return with_lengths(replace(config, training=replace(config.training, **values)), original, user_keys)


def fit_to_budget(
    job: Job,
    user_keys: Collection[str],
    clock: Clock,
    finish: Finish,
    processes: Processes,
    say: Callable[[str], None],
) -> Job:
    """Return the job with the number of steps that fits into `training.budget`; `user_keys` keep their values.

    Every process takes part; the measurements and the clock of process 0 decide. `finish` is rehearsed on an untrained
    run. Raises ValueError if values of `user_keys` do not fit the number of steps.
    """
    newest = str(max(saved_steps(job.config.directory), default=0))
    if int(processes.broadcast("newest checkpoint", newest)):
        say(f"budget: {job.config.training.steps:,} steps were decided when the run began; a resumed run keeps them")
        return job
    budget = budget_seconds(job.config.training.budget)
    say(
        f"budget: {duration(budget)}, {duration(clock())} used so far; measuring a few steps, an evaluation, a "
        "checkpoint and an export, then discarding them"
    )
    with SIGNS.doing("measuring the machine for the budget"):
        costs = measure(job, min(_MEASURING * budget, _LONGEST_MEASUREMENT), processes, finish)
    measurements = json.loads(processes.broadcast("measurements for the budget", json.dumps([clock(), *costs])))
    spent, step, evaluation, *rest = measurements
    config, costs = fit_steps(job.config, Costs(tuple(step), tuple(evaluation), *rest), spent, user_keys)
    needed = seconds_to_end(config, costs, clock())
    changed = differences(config, job.config)
    settings = ", ".join(f"{key} {new}" for key, (_, new) in changed.items() if key != "stages")
    starts = "".join(f", stages.{number}.start {stage.start}" for number, stage in enumerate(config.stages))
    steps = ", then ".join(f"{seconds:.3g} s" for seconds in costs.step)
    late = "; the budget is too short for a shorter run" if needed > budget else ""
    say(
        f"budget: {config.training.steps:,} steps of {steps} each, evaluations of {config.training.eval_rows:,} rows "
        f"in {duration(costs.evaluation[-1])} each, report and export in {duration(costs.finish)}; the command ends "
        f"{duration(needed)} after its start{late}. Equivalent to {settings}{starts}"
    )
    return reschedule(job, config)


def fit_steps(config: Config, costs: Costs, spent: float, user_keys: Collection[str] = ()) -> tuple[Config, Costs]:
    """Scale the recipe to the most steps that end within the budget; returns it with its costs.

    `spent` seconds of the budget are used up. A budget that is too short gets one step for each stage. Raises
    ValueError if values of `user_keys` do not fit the number of steps.
    """
    budget = budget_seconds(config.training.budget)
    config, costs = _with_affordable_evaluation(config, costs, budget, user_keys)

    def scheduled(steps: int) -> Config:
        """The recipe scaled to this many steps, with no more evaluations and saves than their share of time allows."""
        run = rescale(config, steps, user_keys)
        side_costs = {"eval_every": max(costs.evaluation[-1], 1e-9), "checkpoint_every": max(costs.save, 1e-9)}
        periods = {
            name: max(getattr(run.training, name), math.ceil(steps / max(int(_SIDE_SHARE * budget / seconds), 1)))
            for name, seconds in side_costs.items()
            if f"training.{name}" not in user_keys
        }
        training = replace(run.training, **periods)
        if training.keep_every and "training.keep_every" not in user_keys:
            training = replace(training, keep_every=nearest_multiple(training.keep_every, training.checkpoint_every))
        return replace(run, training=training)

    def is_late(steps: int) -> bool:
        try:
            return seconds_to_end(scheduled(steps), costs, spent) > AIM * budget
        except ValueError:  # too few steps for a stage or the warm-up
            return False

    least = len(config.stages) + 1
    steps = least + max(bisect.bisect_left(range(least, _MOST_STEPS), True, key=is_late) - 1, 0)
    run = scheduled(steps)
    make_stages(run)
    return run, costs


def seconds_to_end(config: Config, costs: Costs, spent: float) -> float:
    """Seconds that the whole command takes, given that `spent` have passed and probes use their full share."""
    return (spent + seconds_needed(config, costs)) / (1 - config.probe.time_share)


def seconds_needed(config: Config, costs: Costs) -> float:
    """Seconds from the decision to the end of the command, without probes."""
    total, training = costs.start + costs.finish, config.training
    for stage, step, evaluation in zip(make_stages(config), costs.step, costs.evaluation, strict=True):
        total += (stage.stop - stage.start) * step
        total += times_due(training.eval_every, stage.start, stage.stop, stage.stop) * evaluation
        total += times_due(training.checkpoint_every, stage.start, stage.stop, stage.stop) * costs.save
    return total


def times_due(period: int, first: int, last: int, stop: int) -> int:
    """How often something with this period is due from step `first` to `last` of a stage that ends at `stop`."""
    return last // period - first // period + bool(last == stop and stop % period)


def _with_affordable_evaluation(
    config: Config, costs: Costs, budget: float, user_keys: Collection[str]
) -> tuple[Config, Costs]:
    """Evaluate on fewer rows if the final evaluation alone would take too long."""
    rows, batch = config.training.eval_rows, config.training.global_batch_size
    share = _SIDE_SHARE * budget / max(costs.evaluation[-1], 1e-9)
    if share >= 1 or "training.eval_rows" in user_keys:
        return config, costs
    fewer = min(rows, max(int(rows * share) // batch * batch, batch, _LEAST_EVAL_ROWS))
    less = tuple(seconds * fewer / rows for seconds in costs.evaluation)
    training = replace(config.training, eval_rows=fewer)
    return replace(config, training=training), costs._replace(evaluation=less)


def measure(job: Job, seconds: float, processes: Processes, finish: Finish) -> Costs:
    """Time the parts of a run, with about `seconds` of steps; every process takes part and returns its own figures.

    Process 0 rehearses `finish` on a run with one checkpoint in a temporary folder.
    """
    directory = to_path(job.config.directory)
    steps, evaluations = [], []
    with jax.set_mesh(job.mesh):
        began = time.perf_counter()
        state = init_state(job.blueprint, job.config.model, job.optimizer, job.config.training.seed)
        jax.block_until_ready(state)
        start = time.perf_counter() - began
        for stage in job.stages:
            state, opening, step = _measure_steps(job, stage, state, seconds / len(job.stages), processes)
            start += opening
            steps.append(step)
            evaluations.append(_measure_evaluation(stage, state.params, seconds / 2 / len(job.stages), processes))
    if not isinstance(directory, Path):
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(job.blueprint.state))
        save = _OVERHEAD + size / _BYTES_PER_SECOND
        finishing = 2 * _OVERHEAD + 2 * size / _FLOATS_PER_WEIGHT / _BYTES_PER_SECOND
        return Costs(tuple(steps), tuple(evaluations), save, start, finishing)
    with own_directory(directory, process=processes.number):
        require_shared(directory, processes)
        folder = directory / _REHEARSAL
        if processes.first:
            shutil.rmtree(folder, ignore_errors=True)  # left by a rehearsal that was killed
            folder.mkdir()
        processes.gather("the rehearsal begins")
        save = _measure_save(job, folder, state, processes)
        del state  # the report and export read their own copy
        finishing = 0.0
        if processes.first:
            config = replace(job.config, run_dir=str(folder))
            describe_run(config, job.tokenizer)
            replace_text(folder / METRICS_FILE, "")
            finishing = seconds_warm(lambda: finish(config), None)
        processes.gather("the rehearsal ends")
        if processes.first:
            shutil.rmtree(folder)
    return Costs(tuple(steps), tuple(evaluations), save, start, finishing)


def _measure_steps(
    job: Job, stage: RunStage, state: TrainState, seconds: float, processes: Processes
) -> tuple[TrainState, float, float]:
    """Return the state after some steps, the seconds until the first batch, and the seconds of a compiled step."""
    metrics, temporaries = StepMetrics(job.peak.flops), Temporaries()
    opened = time.perf_counter()
    with stage.open_feed(job.mesh, stage.start) as feed:
        first = next(feed)
        opening = time.perf_counter() - opened

        def take(count: int) -> float:
            nonlocal state
            began = time.perf_counter()
            for batch in itertools.islice(itertools.chain((first,), feed), count):
                temporaries.reuse()
                state, figures = stage.train_step(state, to_global(job.mesh, batch))
                metrics.add(figures)
            metrics.drain()
            return (time.perf_counter() - began) / count

        take(1)
        step_seconds = _agreed(take(2), processes)
        step = take(max(int(seconds / step_seconds), _LEAST_STEPS))
        return state, opening, step


def _measure_save(job: Job, folder: Path, state: TrainState, processes: Processes) -> float:
    """Seconds until a checkpoint, which all processes write together, is on disk."""
    numbers = itertools.count(1)
    with jax.set_mesh(job.mesh), Checkpoints(folder / DIRECTORY, keep_last=1) as checkpoints:

        def save() -> None:
            checkpoints.save(next(numbers), state, job.metadata)
            checkpoints.wait()

        return seconds_warm(save, processes)


def _measure_evaluation(stage: RunStage, params: Params, seconds: float, processes: Processes) -> float:
    """Seconds of an evaluation without compilation, extrapolated from the batches that fit into `seconds`."""
    evaluation, total = stage.evaluation, 0.0
    assert isinstance(evaluation, HeldOutText), "pretraining evaluates on held-out text"
    for held_out in evaluation.sets:

        def read(count: int, held_out: HeldOut = held_out) -> float:
            began = time.perf_counter()
            for batch in itertools.islice(held_out, count):
                jax.block_until_ready(evaluation.step(params, batch))
            return (time.perf_counter() - began) / count

        read(1)
        batch_seconds = _agreed(read(1), processes)
        count = min(int(seconds / len(evaluation.sets) / batch_seconds), held_out.count)
        total += (read(count) if count > 1 else batch_seconds) * held_out.count
    return total


def seconds_warm(work: Callable[[], object], processes: Processes | None) -> float:
    """Seconds of warm work: quick work is done twice and the second time counts; otherwise compilation is subtracted.

    If `processes` work together, all of them repeat the work or none does.
    """
    began = time.perf_counter()
    with compile_seconds() as compiling:
        work()
    seconds = time.perf_counter() - began
    if (seconds if processes is None else _agreed(seconds, processes)) > _QUICK:
        return max(seconds - compiling(), seconds / 10)
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def _agreed(seconds: float, processes: Processes) -> float:
    """The seconds that process 0 measured, so that all processes take the same number of steps."""
    return float(processes.broadcast("seconds that were measured", str(seconds)))
