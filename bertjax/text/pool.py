"""Run a function on units of text in worker processes, with errors that name the files."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Protocol, TypeVar

from bertjax.config.plugins import Plugins, activate, active
from bertjax.storage.terminal import first_names
from bertjax.text.corpus import Unit

Result = TypeVar("Result")

LOOK_SECONDS = 5.0  # between two checks of the workers' states
LOOKS = 9  # checks in a row that must see a worker stopped; a single one may follow Ctrl-Z and `fg`


class Runner(Protocol):
    """Applies a function to units: in processes, or on a cluster."""

    def __call__(
        self, function: Callable[[Unit], Result], units: Iterable[Unit], what: str
    ) -> Iterator[tuple[Unit, Result]]:
        """Yield (unit, function(unit)) once for every unit, in any order; units are taken one by one, when needed.

        `function` must be a module-level function or a partial of one, may be called more than once for a unit, and
        returns JSON values. `what` names the work in messages. Raises ValueError like `function`, and RuntimeError
        naming files or folders for other failures.
        """
        ...


class StoppedWorker(RuntimeError):
    """A worker process is stopped, so its units will never finish; running the command again continues from there."""

    exit_code = 75  # as for a run that lost a process


def cores() -> int:
    """The number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processes(workers: int) -> Runner:
    """A runner with `workers` processes (0: one per core; 1: this process)."""
    return partial(run_units, workers=workers)


def run_units(
    function: Callable[[Unit], Result], units: Iterable[Unit], what: str, *, workers: int
) -> Iterator[tuple[Unit, Result]]:
    """A `Runner` with `workers` processes; yields results as they finish.

    Workers are spawned: forking a process in which JAX or TensorFlow has threads can hang. Raises what `function`
    raises, RuntimeError naming the files if a worker dies, and StoppedWorker if one is stopped (detected on Linux
    only).
    """
    waiting = iter(units)
    # Submit at most one unit per worker, so that an error can name the units of a dead worker.
    first = list(itertools.islice(waiting, workers or cores()))
    if len(first) <= 1:
        yield from ((unit, function(unit)) for unit in itertools.chain(first, waiting))
        return
    context, earlier = multiprocessing.get_context("spawn"), set(multiprocessing.active_children())
    starting = partial(_start_worker, active())
    with ProcessPoolExecutor(len(first), mp_context=context, initializer=starting) as executor:
        running = {executor.submit(function, unit): unit for unit in first}
        states = _States([child for child in multiprocessing.active_children() if child not in earlier])
        try:
            while running:
                for future in wait(running, LOOK_SECONDS, return_when=FIRST_COMPLETED).done:
                    result = future.result()
                    unit = running.pop(future)
                    running |= {executor.submit(function, unit): unit for unit in itertools.islice(waiting, 1)}
                    yield unit, result
                if stopped := states.stopped():
                    raise StoppedWorker(
                        f"{what}: worker process {stopped.pid} is stopped (SIGSTOP?) at one of: "
                        f"{file_names(running.values())}; "
                        "run the command again to continue from here"
                    )
        except BrokenProcessPool:
            raise RuntimeError(
                f"{what}: a worker process died (killed, or out of memory?) at one of: "
                f"{file_names(running.values())}; "
                "run the command again to continue from here, with fewer processes (data.workers) if memory is short"
            ) from None
        finally:
            states.kill_stopped()  # the executor waits for the end of every worker


def file_names(units: Iterable[Unit]) -> str:
    """The first files of units, for a message."""
    return first_names(dict.fromkeys(file.path for unit in units for file in unit.files))


class _States:
    """Detects stopped worker processes, by their state in /proc."""

    def __init__(self, workers: Sequence[BaseProcess]) -> None:
        self._stopped_checks = dict.fromkeys(workers, 0)  # worker -> checks in a row that found it stopped
        self._looked = time.monotonic()

    def stopped(self) -> BaseProcess | None:
        """A worker that was stopped at each of the last LOOKS checks; call it often.

        Counts checks, not seconds: a clock runs on while this process and its workers are stopped together.
        """
        if time.monotonic() >= self._looked + LOOK_SECONDS:
            self._looked = time.monotonic()
            self._stopped_checks = {
                worker: looks + 1 if _is_stopped(worker) else 0 for worker, looks in self._stopped_checks.items()
            }
        return next((worker for worker, looks in self._stopped_checks.items() if looks >= LOOKS), None)

    def kill_stopped(self) -> None:
        """Kill the stopped workers, which nothing else ends."""
        for worker in filter(_is_stopped, self._stopped_checks):
            worker.kill()


def _is_stopped(worker: BaseProcess) -> bool:
    try:
        return Path(f"/proc/{worker.pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"
    except OSError:  # the process ended, or this is not Linux
        return False


def _start_worker(plugins: Plugins) -> None:
    activate(plugins)
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # the parent reports an interruption once
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """End this worker with its parent: it must not keep writing during the next run."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)
