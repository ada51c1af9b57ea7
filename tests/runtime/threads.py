"""Run functions in threads, and a clock that only a test advances."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence


class Clock:
    """A stand-in for `time.monotonic` that does not depend on the machine's speed."""

    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def run_in_threads(functions: Sequence[Callable[[], object]]) -> list[object]:
    """Run the functions at the same time; returns what each returns or raises."""
    results: list[object] = [None] * len(functions)

    def run(index: int) -> None:
        try:
            results[index] = functions[index]()
        except BaseException as error:
            results[index] = error

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(functions))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return results
