"""Running a function on units of text in worker processes, with errors that name the file."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from functools import partial
from typing import Protocol, TypeVar

from bertjax.text.corpus import Unit

Result = TypeVar("Result")


def cores() -> int:
    """How many cores this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def processes(workers: int) -> Runner:
    """The runner of `workers` processes (0 = one per core; 1 = this process)."""
    return partial(run_units, workers=workers)


def run_units(
    function: Callable[[Unit], Result], units: Sequence[Unit], what: str, *, workers: int
) -> Iterator[tuple[Unit, Result]]:
    """As `Runner` says, by `workers` processes; yields results as they come.

    Workers are spawned: forking a process in which JAX or TensorFlow has threads can hang. Raises what `function`
    raises, and RuntimeError naming the files if a worker dies.
    """
    workers = min(workers or cores(), len(units))
    if workers <= 1:
        yield from ((unit, function(unit)) for unit in units)
        return
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(workers, mp_context=context, initializer=_start_worker) as executor:
        waiting = iter(units)
        # No more at a time than there are workers, so that the units of a worker that dies are known.
        running = {executor.submit(function, unit): unit for unit in itertools.islice(waiting, workers)}
        try:
            while running:
                for future in wait(running, return_when=FIRST_COMPLETED).done:
                    result = future.result()
                    unit = running.pop(future)
                    running |= {executor.submit(function, unit): unit for unit in itertools.islice(waiting, 1)}
                    yield unit, result
        except BrokenProcessPool:
            files = ", ".join(file.path for unit in running.values() for file in unit.files)
            raise RuntimeError(
                f"{what}: a worker process died (killed, or out of memory?) at one of: {files}; "
                "run the command again to continue from here, with fewer processes (data.workers) if memory is short"
            ) from None


def _start_worker() -> None:
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the processes are the parallelism
    signal.signal(signal.SIGINT, lambda *_: os._exit(130))  # the parent reports an interruption once
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """A worker whose parent was killed must not keep writing during the next run."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


Result = TypeVar("Result")


class Runner(Protocol):
    """Applies a function to units: in processes, or on a cluster."""

    def __call__(
        self, function: Callable[[Unit], Result], units: Sequence[Unit], what: str
    ) -> Iterator[tuple[Unit, Result]]:
        """Yield (unit, function(unit)) once for every unit, in any order.

        `function` must be a module's or a partial of one, and may be called more than once for a unit; its results are
        JSON values. `what` names the work in messages. Raises ValueError as `function` does, RuntimeError naming files
        or folders for what goes wrong otherwise.
        """
        ...
