"""Progress of a long job, as a bar or as lines."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import TextIO

Progress = Callable[[str, int, int], None]  # called with the name of the job, how much is done, and the total

_LINE_EVERY = 10.0  # seconds


def no_progress(what: str, done: int, total: int) -> None:
    """Report nothing."""


class ProgressLine:
    """A bar with an ETA on a terminal; elsewhere a line every ten seconds."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._what = ""
        self._started = self._spoken = 0.0
        self._already = 0  # done by an earlier, interrupted job; does not count for the speed

    def __call__(self, what: str, done: int, total: int) -> None:
        """Report that `done` of `total` is done; a new `what` starts a new bar, `done == total` ends it."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._started, self._spoken, self._already = what, now, now, done
        if self._stream.isatty():
            self._stream.write(f"\r\033[K{self._line(done, total, now)}" + ("\n" if done >= total else ""))
            self._stream.flush()
        elif done >= total or now - self._spoken >= _LINE_EVERY:
            self._spoken = now
            print(self._line(done, total, now), file=self._stream, flush=True)
        if done >= total:
            self._what = ""

    def _line(self, done: int, total: int, now: float) -> str:
        spent, share = now - self._started, done / max(total, 1)
        amount = f"{self._what}: {share:4.0%} of {total:,}"
        if done >= total:
            return f"{amount}, {spent:.0f} s"
        if done <= self._already:
            return amount
        return f"{amount}, {spent * (total - done) / (done - self._already):.0f} s left"
