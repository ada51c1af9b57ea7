"""A run within a time budget: measure the machine once, then train as many steps as fit.

1. `measure` times the parts of the run, with its own compiled programs and a state that is discarded.
2. `fitted` finds the largest number of steps with which the whole command ends in time.
The decision is a config like any other, with its `training.steps`. A resumed run reads it from config.json (`as_begun`)
and measures nothing.
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
from bertjax.input.feed import open_feed
from bertjax.model.network import Params
from bertjax.parallel.sharding import local_rows, to_global
from bertjax.run.checkpoint import DIRECTORY, Checkpoints, saved_steps
from bertjax.run.job import HeldOutText, Job, RunStage, rescheduled
from bertjax.run.metrics import StepMetrics
from bertjax.run.progress import duration
from bertjax.run.run_directory import CONFIG_FILE, describe_run, own_directory, require_shared
from bertjax.run.telemetry import METRICS_FILE
from bertjax.runtime.compilation import compile_seconds
from bertjax.runtime.host_memory import Temporaries
from bertjax.runtime.processes import Processes
from bertjax.storage.files import replace_text
from bertjax.storage.json_documents import read_json
from bertjax.storage.progress import SIGNS
from bertjax.storage.remote import to_path
from bertjax.training.evaluate import HeldOut
from bertjax.training.stages import make_stages
from bertjax.training.state import TrainState, init_state

AIM = 0.98  # share of the budget after which the command should end: late is worse than early
_MEASURING = 0.05  # share of the budget for the steps that are measured, and for evaluations half as much
_LONGEST_MEASUREMENT = 120.0  # seconds
_LEAST_STEPS = 3  # to measure
_QUICK = 5.0  # seconds; work below this is measured the second time, because the first is slower
_SIDE_SHARE = 0.1  # share of the budget that all evaluations may take, and likewise all saves
_LEAST_EVAL_ROWS = 256
_MOST_STEPS = 1 << 40
# Object storage, where saving is not measured.
_BYTES_PER_SECOND, _OVERHEAD = 50e6, 5.0
_FLOATS_PER_WEIGHT = 3  # of a state: the weight and its two moments

_REHEARSAL = "rehearsal"  # folder in the run's directory, while measuring
_IMPORTED = time.monotonic()

Clock = Callable[[], float]  # seconds since the command began
Finish = Callable[[Config], object]  # write the report and the export of the run in the config's directory


class Costs(NamedTuple):
    """Seconds that the parts of a run take on this machine."""

    step: tuple[float, ...]  # by stage
    evaluation: tuple[float, ...]  # by stage
    save: float
    start: float  # from the decision to the first step
    finish: float  # from the last save to the end of the command


def seconds_of_this_process() -> float:
    """Seconds since this process was started, or where the system does not report it, since this module's import."""
    try:
        with open("/proc/self/stat", encoding="utf-8") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError):
        return time.monotonic() - _IMPORTED


def as_begun(config: Config, user_keys: Collection[str] = ()) -> Config:
    """The config with the length that was decided when the run in its directory began; unchanged for a new run.

    The values of `user_keys` stay. Raises ValueError if the run began without this budget.
    """
    directory = to_path(config.directory)
    if not config.training.budget or not saved_steps(directory):
        return config
    begun = from_dict(read_json(directory / CONFIG_FILE))
    if begun.training.budget != config.training.budget:
        how = f"with {begun.training.budget}" if begun.training.budget else "without a budget"
        raise ValueError(
            f"training.budget={config.training.budget!r}: the run in {directory} was begun {how}; continue it as it "
            "was begun, or give the new run a directory of its own (--run-dir)"
        )
    decided = ("steps", "log_every", "eval_every", "checkpoint_every", "keep_every", "eval_rows")
    values = {name: getattr(begun.training, name) for name in decided if f"training.{name}" not in user_keys}
    # `require_own_run` refuses a run with another number of stages.
    return with_lengths(replace(config, training=replace(config.training, **values)), begun, user_keys)


def fit_to_budget(
    job: Job,
    user_keys: Collection[str],
    clock: Clock,
    finish: Finish,
    processes: Processes,
    say: Callable[[str], None],
) -> Job:
    """The job with the number of steps that fit into `training.budget`, but for the values of `user_keys`.

    Every process takes part; the first one's measurements and clock decide. `finish` is rehearsed on an untrained run.
    Raises ValueError if values that the user gave do not fit the number of steps.
    """
    newest = str(max(saved_steps(job.config.directory), default=0))
    if int(processes.broadcast("newest checkpoint", newest)):
        say(f"budget: {job.config.training.steps:,} steps were decided when the run began; a resumed run keeps them")
        return job
    budget = budget_seconds(job.config.training.budget)
    say(
        f"budget: {duration(budget)}, {duration(clock())} used so far; measuring a few steps, an evaluation, a "
        "checkpoint and an export, which are discarded"
    )
    with SIGNS.doing("measuring the machine for the budget"):
        costs = measure(job, min(_MEASURING * budget, _LONGEST_MEASUREMENT), processes, finish)
    measured = json.loads(processes.broadcast("measurements for the budget", json.dumps([clock(), *costs])))
    spent, step, evaluation, *rest = measured
    config, costs = fitted(job.config, Costs(tuple(step), tuple(evaluation), *rest), spent, user_keys)
    needed = seconds_to_end(config, costs, clock())
    changed = differences(config, job.config)
    settings = ", ".join(f"{key} {new}" for key, (_, new) in changed.items() if key != "stages")
    starts = "".join(f", stages.{number}.start {stage.start}" for number, stage in enumerate(config.stages))
    steps = ", then ".join(f"{seconds:.3g} s" for seconds in costs.step)
    late = "; the budget is too short for a shorter run" if needed > budget else ""
    say(
        f"budget: {config.training.steps:,} steps of {steps} each, evaluations of {config.training.eval_rows:,} rows "
        f"in {duration(costs.evaluation[-1])} each, report and export in {duration(costs.finish)}; the command ends "
        f"{duration(needed)} after its start{late}. As with {settings}{starts}"
    )
    return rescheduled(job, config)


def fitted(config: Config, costs: Costs, spent: float, user_keys: Collection[str] = ()) -> tuple[Config, Costs]:
    """The recipe with the most steps that end within the budget, of which `spent` seconds are gone, and its costs.

    A budget that is too short gets a step for each stage. Raises ValueError if values that the user gave do not fit
    that number of steps.
    """
    budget = budget_seconds(config.training.budget)
    config, costs = _with_affordable_evaluation(config, costs, budget, user_keys)

    def scheduled(steps: int) -> Config:
        """The recipe's shape of run, with as many evaluations and saves as their share of the time allows."""
        run = rescale(config, steps, user_keys)
        most = {"eval_every": max(costs.evaluation[-1], 1e-9), "checkpoint_every": max(costs.save, 1e-9)}
        periods = {
            name: max(getattr(run.training, name), math.ceil(steps / max(int(_SIDE_SHARE * budget / seconds), 1)))
            for name, seconds in most.items()
            if f"training.{name}" not in user_keys
        }
        training = replace(run.training, **periods)
        if training.keep_every and "training.keep_every" not in user_keys:
            training = replace(training, keep_every=nearest_multiple(training.keep_every, training.checkpoint_every))
        return replace(run, training=training)

    def is_late(steps: int) -> bool:
        try:
            return seconds_to_end(scheduled(steps), costs, spent) > AIM * budget
        except ValueError:  # a stage or a warm-up has no room
            return False

    least = len(config.stages) + 1
    steps = least + max(bisect.bisect_left(range(least, _MOST_STEPS), True, key=is_late) - 1, 0)
    run = scheduled(steps)
    make_stages(run)
    return run, costs


def seconds_to_end(config: Config, costs: Costs, spent: float) -> float:
    """Seconds that the whole command takes if `spent` have passed and probes take their whole share."""
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
    """How often a period is due after the steps from `first` to `last` of a stage that ends at `stop`."""
    return last // period - first // period + bool(last == stop and stop % period)


def _with_affordable_evaluation(
    config: Config, costs: Costs, budget: float, user_keys: Collection[str]
) -> tuple[Config, Costs]:
    """With fewer rows in an evaluation, if the one at the end alone would take too long."""
    rows, batch, share = (
        config.training.eval_rows,
        config.training.global_batch_size,
        _SIDE_SHARE * budget / max(costs.evaluation[-1], 1e-9),
    )
    if share >= 1 or "training.eval_rows" in user_keys:
        return config, costs
    fewer = min(rows, max(int(rows * share) // batch * batch, batch, _LEAST_EVAL_ROWS))
    less = tuple(seconds * fewer / rows for seconds in costs.evaluation)
    training = replace(config.training, eval_rows=fewer)
    return replace(config, training=training), costs._replace(evaluation=less)


def measure(job: Job, seconds: float, processes: Processes, finish: Finish) -> Costs:
    """Time the parts of a run, stepping for about `seconds`; every process takes part and gets its own figures.

    The first process rehearses `finish` on a run of one checkpoint in a folder of its own, which is removed.
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
            shutil.rmtree(folder, ignore_errors=True)  # of a rehearsal that was killed
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
    """The state after some steps, the seconds until the first batch, and those of a step that is compiled."""
    training = stage.training
    metrics, temporaries = StepMetrics(job.peak.flops), Temporaries()
    opened = time.perf_counter()
    with open_feed(
        stage.batches,
        start_step=0,
        global_batch_size=training.global_batch_size,
        rows=local_rows(job.mesh, training.global_batch_size),
        threads=stage.data.threads,
    ) as feed:
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
    """The seconds until a checkpoint, which all processes write together, is on the disk."""
    numbers = itertools.count(1)
    with jax.set_mesh(job.mesh), Checkpoints(folder / DIRECTORY, keep_last=1) as checkpoints:

        def save() -> None:
            checkpoints.save(next(numbers), state, job.metadata)
            checkpoints.wait()

        return seconds_warm(save, processes)


def _measure_evaluation(stage: RunStage, params: Params, seconds: float, processes: Processes) -> float:
    """The seconds of an evaluation, from as many of its batches as there is time for, once it has been compiled."""
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
    """Seconds of the work when warm: of a second time if it is quick, else of the first without compilation.

    Processes that do it together all do it again, or none does.
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
    """What process 0 measured, so that all take as many steps."""
    return float(processes.broadcast("seconds that were measured", str(seconds)))
