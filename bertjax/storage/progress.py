"""Progress of a long job: a bar or lines for what can be counted, and signs of life for the rest."""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TextIO

Progress = Callable[[str, int, int], None]  # (name of the job, amount done, total)

_LINE_EVERY = 10.0  # seconds
_SIGN_EVERY = 4.0  # seconds without a line
_LOOK_EVERY = 0.25  # seconds
_LATER_EVERY = 30.0  # the same, after a minute of the same work


def no_progress(what: str, done: int, total: int) -> None:
    """Report nothing."""


def print_sign(line: str) -> None:
    """Print a line to stdout, over a terminal's bar; stderr is for failures."""
    print(f"\r\033[K{line}" if sys.stdout.isatty() else line, flush=True)


class Signs:
    """Prints the current work after a few silent seconds, so that silence never looks like a hang.

    Code that prints calls `spoke`; slow code runs inside `doing`. Nothing is printed outside `speaking`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._doing: list[_Work] = []
        self._says: list[Callable[[str], None]] = []  # the last one is used
        self._last = clock()

    def spoke(self) -> None:
        """Record that something was printed."""
        self._last = self._clock()

    @contextlib.contextmanager
    def doing(self, what: str | Callable[[], str], later_every: float = _LATER_EVERY) -> Iterator[None]:
        """Print `what` while the work inside takes long; an inner one replaces an outer one.

        It is printed every few seconds, after a minute every `later_every` seconds. A function returns the whole line;
        a string gets the time added.
        """
        work = _Work(what, self._clock(), later_every)
        self._doing.append(work)
        try:
            yield
        finally:
            self._doing.remove(work)

    @contextlib.contextmanager
    def by(self, say: Callable[[str], None]) -> Iterator[None]:
        """Print signs by `say`, which must not print into the middle of another line."""
        self._says.append(say)
        try:
            yield
        finally:
            self._says.remove(say)

    @contextlib.contextmanager
    def speaking(self, what: str, say: Callable[[str], None] = print_sign) -> Iterator[None]:
        """Run a thread that prints signs by `say`; `what` is the work where no inner one is named."""
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
        """The line to print now; None if something was printed recently, or nothing is being done."""
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
        self._already = 0  # done before an interruption; does not count for the speed

    def __call__(self, what: str, done: int, total: int) -> None:
        """Report `done` of `total`; a new `what` starts a new bar, `done == total` ends it."""
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
