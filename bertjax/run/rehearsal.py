"""A rehearsal of a run: what its parts cost on this machine, with the run's own compiled programs and another state.

Only the times and the compiled programs, which the run uses afterwards, are kept. It costs a few steps, one save and
one export of a model of the same size.
"""

from __future__ import annotations

import itertools
import shutil
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

import jax

from bertjax.config import Config
from bertjax.input.feed import open_feed
from bertjax.model.network import Params
from bertjax.parallel.sharding import local_rows, to_global
from bertjax.run import checkpoint
from bertjax.run.budget import Costs
from bertjax.run.job import HeldOutText, Job, Rows
from bertjax.run.metrics import StepMetrics
from bertjax.run.run_directory import describe_run
from bertjax.run.telemetry import METRICS_FILE
from bertjax.runtime.compilation import compile_seconds
from bertjax.runtime.host_memory import Temporaries
from bertjax.runtime.processes import Processes
from bertjax.storage.files import replace_text
from bertjax.storage.remote import AnyPath
from bertjax.training.evaluate import HeldOut
from bertjax.training.state import TrainState, init_state

DIRECTORY = "rehearsal"  # within the run's directory, while it lasts
Ending = Callable[[Config], None]  # what a command does with a trained run: its report and its export

_LEAST_STEPS = 3
_QUICK = 5.0  # seconds; work below this is run twice, because the first time is slower
# For object storage, where saving is not rehearsed.
_BYTES_PER_SECOND, _OVERHEAD = 50e6, 5.0
_MOMENTS = 3  # float32 arrays of a state for each of the weights


def rehearse(job: Job, directory: AnyPath, seconds: float, processes: Processes, end: Ending) -> Costs:
    """Measure a run's costs, stepping for about `seconds`; every process takes part and gets its own figures.

    `end` is rehearsed on a run of one checkpoint in a folder of its own, which is removed, by the first process.
    """
    paces, evaluations = [], []
    with jax.set_mesh(job.mesh):
        state = init_state(job.blueprint, job.config.model, job.optimizer, job.config.training.seed)
        for rows in job.stages:
            state, pace = _pace(job, rows, state, seconds / len(job.stages), processes)
            paces.append(pace)
            evaluations.append(_evaluation(rows, state.params, seconds / 2 / len(job.stages), processes))
    if not isinstance(directory, Path):
        size = sum(leaf.nbytes for leaf in jax.tree.leaves(job.blueprint.state))
        save = _OVERHEAD + size / _BYTES_PER_SECOND
        ending = 2 * _OVERHEAD + 2 * size / _MOMENTS / _BYTES_PER_SECOND
        return Costs(tuple(paces), tuple(evaluations), save, ending)
    folder = directory / DIRECTORY
    if processes.first:
        shutil.rmtree(folder, ignore_errors=True)  # of a rehearsal that was killed
        folder.mkdir()
    processes.gather("the rehearsal begins")
    with jax.set_mesh(job.mesh):
        save = _save(job, folder, state, processes)
    del state  # the report and export read their own copy
    ending = _ending(job, folder, end) if processes.first else 0.0
    processes.gather("the rehearsal ends")
    if processes.first:
        shutil.rmtree(folder)
    return Costs(tuple(paces), tuple(evaluations), save, ending)


def _pace(job: Job, rows: Rows, state: TrainState, seconds: float, processes: Processes) -> tuple[TrainState, float]:
    """The state after some steps, and how long one takes, once the first has been compiled."""
    training, mesh = rows.stage.training, job.mesh
    metrics, temporaries = StepMetrics(job.peak.flops), Temporaries()
    with open_feed(
        rows.batches,
        start_step=0,
        global_batch_size=training.global_batch_size,
        rows=local_rows(mesh, training.global_batch_size),
        threads=rows.stage.data.threads,
    ) as feed:

        def steps(count: int) -> float:
            nonlocal state
            start = time.perf_counter()
            for batch in itertools.islice(feed, count):
                temporaries.reuse()
                state, figures = rows.train_step(state, to_global(mesh, batch))
                metrics.add(figures)
            metrics.drain()
            return (time.perf_counter() - start) / count

        steps(1)
        # All processes take as many as the first has time for.
        first = _of_first(processes, "seconds of a step", steps(1))
        count = int(seconds / first)
        pace = steps(max(count, _LEAST_STEPS)) if count > 1 else first
    return state, pace


def _evaluation(rows: Rows, params: Params, seconds: float, processes: Processes) -> float:
    """How long an evaluation takes, from as many of its batches as there is time for, once it has been compiled."""
    evaluation = rows.evaluation
    assert isinstance(evaluation, HeldOutText), "pretraining evaluates on held-out text"

    def batches(held_out: HeldOut, count: int) -> float:
        start = time.perf_counter()
        for batch in itertools.islice(held_out, count):
            jax.block_until_ready(evaluation.step(params, batch))
        return (time.perf_counter() - start) / count

    total = 0.0
    for held_out in evaluation.sets:
        batches(held_out, 1)
        one = _of_first(processes, "seconds of a batch", batches(held_out, 1))
        count = min(int(seconds / len(evaluation.sets) / one), held_out.count)
        total += (batches(held_out, count) if count > 1 else one) * held_out.count
    return total


def _save(job: Job, folder: AnyPath, state: TrainState, processes: Processes) -> float:
    """How long a checkpoint, which all processes write together, takes until it is on the disk."""
    steps = itertools.count(1)
    with checkpoint.Checkpoints(folder / checkpoint.DIRECTORY, keep_last=1) as saved:

        def save() -> None:
            saved.save(next(steps), state, job.metadata)
            saved.wait()

        # All processes save again, or none does.
        return _once_warm(save, partial(_of_first, processes, "seconds of a save"))


def _ending(job: Job, folder: AnyPath, end: Ending) -> float:
    """How long the report and the export take."""
    config = replace(job.config, run_dir=str(folder))
    describe_run(config, job.tokenizer)
    replace_text(folder / METRICS_FILE, "")
    return _once_warm(lambda: end(config))


def _of_first(processes: Processes, what: str, seconds: float) -> float:
    """What process 0 has measured: by a clock of its own each would do another number of things together."""
    return float(processes.gather(what, str(seconds))[0])


def _once_warm(work: Callable[[], None], agreed: Callable[[float], float] = float) -> float:
    """Seconds of the work when warm: measured if quick, else without compilation. `agreed` is what all go by."""
    start = time.perf_counter()
    with compile_seconds() as compiling:
        work()
    if (seconds := agreed(time.perf_counter() - start)) > _QUICK:
        return max(seconds - compiling(), seconds / 10)
    start = time.perf_counter()
    work()
    return time.perf_counter() - start
