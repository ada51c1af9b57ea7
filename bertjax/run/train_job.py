"""Train an assembled job in its directory: restore the state, open the logs, make the hooks, run the loop."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import jax

from bertjax.config.skips import with_skip
from bertjax.model.network import Params
from bertjax.parallel.sharding import put_on_devices
from bertjax.run import checkpoint, checkpoint_metadata
from bertjax.run.callbacks import Callback
from bertjax.run.hooks.early_stopping import EarlyStopping
from bertjax.run.hooks.evaluate import Evaluate
from bertjax.run.hooks.log import Log
from bertjax.run.hooks.nan_guard import NanGuard
from bertjax.run.hooks.profile import DIRECTORY as PROFILE
from bertjax.run.hooks.profile import Profile, steps_to_profile
from bertjax.run.hooks.progress import ShowProgress
from bertjax.run.hooks.redundancy import Redundancy
from bertjax.run.hooks.save import Save
from bertjax.run.hooks.spike_recovery import Spike, SpikeRecovery, SpikeWatch, initial_skips, with_skips
from bertjax.run.hooks.stop_signal import StopSignal
from bertjax.run.hooks.user_callbacks import UserCallbacks
from bertjax.run.job import Job, RunStage
from bertjax.run.loggers import openers
from bertjax.run.loop import Outcome, Run, train
from bertjax.run.progress import Progress, seconds_between_lines
from bertjax.run.run_directory import describe_run, own_directory, require_shared
from bertjax.run.telemetry import Telemetry, logged_until, open_telemetry, summarize_log
from bertjax.run.time_budget import times_due
from bertjax.runtime.processes import Processes
from bertjax.storage.progress import SIGNS
from bertjax.storage.remote import to_path
from bertjax.training.out_of_memory import explain_exhausted_memory
from bertjax.training.state import TrainState, init_state, new_state

_EVALUATION = 1 / 3  # estimated time of an evaluation, which is a forward pass, relative to a step on as many rows

Say = Callable[[str], None]
Initial = Callable[[], Params]


def train_job(
    job: Job,
    processes: Processes,
    say: Say,
    initial: Initial | None = None,
    callbacks: Sequence[Callback] = (),
) -> Outcome:
    """Train from the newest checkpoint, or from step 0, to the last step or until a signal.

    `initial` makes the initial weights; it is called only if there is no checkpoint. `processes` must be entered.
    Raises ValueError if a checkpoint cannot be used, RuntimeError after too many consecutive updates that were not
    finite, and Stopped for a signal before the first step.
    """
    skips, first_skipped = initial_skips(job, processes, say), None
    while True:  # after a loss spike, train again from a checkpoint before it
        try:
            with _open_run(job, skips, first_skipped, processes, say, initial, callbacks) as run:
                return train(run)
        except Spike as spike:
            first_skipped, message = spike.window.first, str(spike)
            skips = with_skip(skips, first_skipped, spike.window.stop)
            spike.__traceback__ = None  # its frames hold the run
        say(f"{message}; skipping these rows from now on (training.skips={skips})")


@contextlib.contextmanager
def _open_run(
    job: Job,
    skips: tuple[str, ...],
    first_skipped: int | None,
    processes: Processes,
    say: Say,
    initial: Initial | None,
    callbacks: Sequence[Callback],
) -> Iterator[Run]:
    """Open everything that the loop needs, to train without the batches in `skips`.

    `first_skipped` is the first step of the last spike; checkpoints after it are set aside.
    """
    directory, training, first = to_path(job.config.directory), job.config.training, job.stages[0]
    skipping_job = with_skips(job, skips)
    with contextlib.ExitStack() as stack:
        # 1. The directory and its checkpoints
        staging = stack.enter_context(own_directory(directory, job.config.data.cache_dir, processes.number))
        require_shared(directory, processes)
        stack.enter_context(jax.set_mesh(job.mesh))
        open_checkpoints = functools.partial(checkpoint.Checkpoints, staging=staging)
        checkpoints = stack.enter_context(
            open_checkpoints(
                directory / checkpoint.DIRECTORY, keep_last=training.keep_last, keep_every=training.keep_every
            )
        )

        # 2. The state
        making = "initializing or restoring the state"
        with (
            explain_exhausted_memory(making, job.config, job.mesh, saved=checkpoints.steps),
            SIGNS.doing(making),
        ):
            if first_skipped is not None:
                checkpoints.leave_out(first_skipped)
            state = starting_state(skipping_job, checkpoints, say, initial)
        if checkpoint_metadata.DRAWN in skipping_job.metadata:  # for the next attempt, which may not find a checkpoint
            job.metadata[checkpoint_metadata.DRAWN] = skipping_job.metadata[checkpoint_metadata.DRAWN]
        start, last_step = int(state.step), skipping_job.stages[-1].stop

        # 3. The logs; after the state, because a refused run must not change the files in the directory
        telemetry, logged = Telemetry([]), []
        if processes.first:
            if notice := describe_run(skipping_job.config, job.tokenizer, staging):
                say(notice)
            with SIGNS.doing("opening the logs"):
                loggers = openers(skipping_job.config)
                telemetry = open_telemetry(directory, start, loggers=loggers, staging=staging)
            logged = logged_until(directory, start)
        stack.enter_context(telemetry)
        stream = sys.stderr if processes.first else stack.enter_context(open(os.devnull, "w"))
        progress = stack.enter_context(
            Progress(
                last_step,
                job.doing,
                initial=start,
                every=training.log_every,
                every_seconds=seconds_between_lines(),
                units_left=functools.partial(steps_left, skipping_job.stages),
                pauses_left=functools.partial(evaluations_left, skipping_job.stages),
                pause_units=first.evaluation.batches * _EVALUATION / first.training.microbatches,
                stream=stream,
            )
        )
        figure = job.patience.figure if job.patience else ""
        past = summarize_log(logged, start, figure, SpikeWatch.lines_needed(training))
        past = json.loads(processes.broadcast("what was logged", json.dumps(past)))

        # 4. The hooks, in the order in which they are called: log before evaluate before save
        hooks: list[Callback] = [StopSignal()]
        if training.verify_every or training.digest_every:
            redundancy = Redundancy(job, processes)
            hooks.append(redundancy)
            skipping_job = replace(skipping_job, stages=tuple(map(redundancy.checked, skipping_job.stages)))
        if job.patience is not None:
            best = stack.enter_context(open_checkpoints(directory / checkpoint.BEST, keep_last=1))
            hooks.append(EarlyStopping(job.patience, best, past["figures"]))
        hooks += [UserCallbacks(callbacks, processes), stack.enter_context(ShowProgress())]
        if traced := steps_to_profile(job.config.profile, last_step):
            hooks.append(stack.enter_context(Profile(traced, directory / PROFILE)))
        hooks += [Log(telemetry), NanGuard()]
        if training.spike_deviations:
            hooks.append(SpikeRecovery(skipping_job.config.training, past["losses"], training.skips))
        hooks += [Evaluate(), Save()]

        run = Run(skipping_job, processes, checkpoints, progress, past, hooks, state)
        del state  # from here on only the run holds it
        try:
            yield run
        finally:  # hooks and callbacks hold references to the run, which would keep its arrays alive
            del run.state
            run.metrics = {}


def starting_state(job: Job, checkpoints: checkpoint.Checkpoints, say: Say, initial: Initial | None) -> TrainState:
    """Restore or initialise the state, in this order of precedence.

    1. The run's own newest checkpoint (`restore=previous`: the newest that verifies), so that the same command resumes.
    2. `initial`: the weights of another model (`init_from`) at step 0, with fresh moments.
    3. Fresh weights from the seed.
    """
    config, blueprint = job.config, job.blueprint
    restored = checkpoints.restore(blueprint.state, job.metadata, config.restore)
    if restored is not None:
        for notice in restored.notices:
            say(notice)
        say(f"resuming {config.directory} at step {restored.step:,}")
        if checkpoint_metadata.DRAWN in restored.metadata:  # the weights the run began with are not read again
            job.metadata[checkpoint_metadata.DRAWN] = restored.metadata[checkpoint_metadata.DRAWN]
        return restored.state
    if initial is not None:
        params = put_on_devices(initial(), blueprint.shardings.params)
        make = jax.jit(lambda params: new_state(params, job.optimizer), out_shardings=blueprint.shardings)
        return make(params)
    return init_state(blueprint, config.model, job.optimizer, config.training.seed)


def steps_left(stages: tuple[RunStage, ...], done: int) -> float:
    """Work left after `done` steps by its FLOPs, measured in steps of the current stage."""
    current = next(stage for stage in stages if done <= stage.stop)
    work = sum(max(0, stage.stop - max(done, stage.start)) * stage.flops_per_step for stage in stages)
    return work / current.flops_per_step


def evaluations_left(stages: tuple[RunStage, ...], done: int) -> int:
    """Number of evaluations left after `done` steps."""
    remaining = [stage for stage in stages if done < stage.stop]
    return sum(
        times_due(stage.training.eval_every, max(done, stage.start), stage.stop, stage.stop) for stage in remaining
    )
