"""What a long job says while it works: a bar or lines for what can be counted, and a sign of life for the rest."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TextIO

Progress = Callable[[str, int, int], None]  # called with the name of the job, how much is done, and the total

_LINE_EVERY = 10.0  # seconds
_SIGN_EVERY = 4.0  # seconds without a line
_LOOK_EVERY = 0.25  # seconds
_LATER_EVERY = 30.0  # the same, of what takes more than a minute


def no_progress(what: str, done: int, total: int) -> None:
    """Report nothing."""


def print_sign(line: str) -> None:
    """Print a line among those about the stages of the work, in place of a terminal's bar; stderr is for what fails."""
    print(f"\r\033[K{line}" if sys.stdout.isatty() else line, flush=True)


class Signs:
    """Says what is being done whenever nothing was printed for a few seconds, so that no silence looks like a hang.

    Whatever prints calls `spoke`; whatever takes long is done inside `doing`. Nothing is printed outside of `speaking`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._doing: list[_Work] = []
        self._says: list[Callable[[str], None]] = []  # the last one speaks
        self._last = clock()

    def spoke(self) -> None:
        """Something was printed."""
        self._last = self._clock()

    @contextlib.contextmanager
    def doing(self, what: str | Callable[[], str], later_every: float = _LATER_EVERY) -> Iterator[None]:
        """While inside, `what` is printed if it takes long; an inner one replaces an outer one.

        It is printed every few seconds, after a minute every `later_every` seconds. A function returns the whole line;
        to a string the time is added.
        """
        work = _Work(what, self._clock(), later_every)
        self._doing.append(work)
        try:
            yield
        finally:
            self._doing.remove(work)

    @contextlib.contextmanager
    def by(self, say: Callable[[str], None]) -> Iterator[None]:
        """While inside, signs are given by `say`, which must not print into the middle of another line."""
        self._says.append(say)
        try:
            yield
        finally:
            self._says.remove(say)

    @contextlib.contextmanager
    def speaking(self, what: str, say: Callable[[str], None] = print_sign) -> Iterator[None]:
        """While inside, a thread gives signs by `say`; `what` is what is done where nothing else is named."""
        with self.doing(what), self.by(say):
            if len(self._says) > 1:  # a thread speaks already
                yield
                return
            over = threading.Event()
            self.spoke()
            thread = threading.Thread(target=self._speak, args=(over,), name="signs-of-life", daemon=True)
            thread.start()
            try:
                yield
            finally:
                over.set()
                thread.join()

    def due(self) -> str | None:
        """What is to be said now; None while something was said lately, or nothing is done."""
        if not self._doing:
            return None
        work, now = self._doing[-1], self._clock()
        spent = now - work.since
        if now - self._last < (_SIGN_EVERY if spent <= 60 else work.later_every):
            return None
        return f"{work.what} ({spent:.0f} s so far)" if isinstance(work.what, str) else work.what()

    def _speak(self, over: threading.Event) -> None:
        while not over.wait(_LOOK_EVERY):
            if (line := self.due()) is not None:
                self._says[-1](line)
                self.spoke()


@dataclass(frozen=True, eq=False)
class _Work:
    what: str | Callable[[], str]
    since: float
    later_every: float


SIGNS = Signs()  # of this process


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
