"""What a long job says while it works: a bar or lines for what can be counted, and a sign of life for the rest."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from typing import TextIO

Progress = Callable[[str, int, int], None]  # called with the name of the job, how much is done, and the total

_LINE_EVERY = 4.0  # seconds
_LOOK_EVERY = 0.25  # seconds
_LATER_EVERY = 30.0  # seconds, of what takes more than a minute


def no_progress(what: str, done: int, total: int) -> None:
    """Report nothing."""


class Signs:
    """Says what is being done whenever nothing was printed for a few seconds, so that no silence looks like a hang.

    Whatever prints calls `spoke`; whatever takes long is done inside `doing`. Nothing is said outside of `speaking`,
    so that only the process that speaks for a run does.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._doing: list[tuple[str, float]] = []
        self._last = clock()

    def spoke(self) -> None:
        """Something was printed."""
        self._last = self._clock()

    @contextlib.contextmanager
    def doing(self, what: str) -> Iterator[None]:
        """While inside, `what` is said if it takes long; an inner one is said in its place."""
        entry = (what, self._clock())
        self._doing.append(entry)
        try:
            yield
        finally:
            self._doing.remove(entry)

    @contextlib.contextmanager
    def speaking(self, what: str, say: Callable[[str], None]) -> Iterator[None]:
        """While inside, a thread speaks by `say`; `what` is what is done where nothing else is named."""
        over = threading.Event()
        self.spoke()
        thread = threading.Thread(target=self._speak, args=(say, over), name="signs-of-life", daemon=True)
        with self.doing(what):
            thread.start()
            try:
                yield
            finally:
                over.set()
                thread.join()

    def due(self) -> str | None:
        """What is to be said now; None while something was said lately, or nothing that takes long is done."""
        if not self._doing:
            return None
        what, since = self._doing[-1]
        now = self._clock()
        spent = now - since
        if now - self._last < (_LINE_EVERY if spent <= 60 else _LATER_EVERY):
            return None
        return f"{what} ({spent:.0f} s so far)"

    def _speak(self, say: Callable[[str], None], over: threading.Event) -> None:
        while not over.wait(_LOOK_EVERY):
            if (line := self.due()) is not None:
                say(line)
                self.spoke()


SIGNS = Signs()  # of this process


class ProgressLine:
    """A bar with an ETA on a terminal; elsewhere a line every few seconds."""

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
            SIGNS.spoke()
        elif done >= total or now - self._spoken >= _LINE_EVERY:
            self._spoken = now
            print(self._line(done, total, now), file=self._stream, flush=True)
            SIGNS.spoke()
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
