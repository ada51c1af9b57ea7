"""Report the progress of a long job: countable work with an ETA, signs of life for other work.

On a terminal there is one live line. Elsewhere (a log file, a pipe) nothing is printed about work that takes less than
ten seconds, and one line a minute about longer work.
"""

from __future__ import annotations

import contextlib
import shutil
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple, TextIO

from bertjax.storage.terminal import three_digits

Progress = Callable[[str, int, int], None]
"""(name of the job, amount done, total). The name may end with a comma and a unit: `counting words, bytes`."""

NOTICEABLE = 10.0  # seconds; without a terminal, shorter work is not reported
LINE_EVERY = 60.0  # seconds between lines without a terminal
_POLL_SECONDS = 0.25
_SILENT = 1.0  # seconds without output before the live line names the current work
_SPINNER = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_SCALES = ((1_000_000_000, "GB"), (1_000_000, "MB"), (1_000, "kB"))


def no_progress(what: str, done: int, total: int) -> None:
    """Report nothing."""


def print_sign(line: str) -> None:
    """Print a line to stdout; stderr is for failures."""
    print(line, flush=True)


def duration(seconds: float) -> str:
    """Format a duration: 48 s, 12 min 05 s, 3 h 20 min, 2 d 4 h, 1.5 years."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
    if seconds < _YEAR:
        return f"{whole // 86_400:,} d {whole % 86_400 // 3600} h"
    return f"{seconds / _YEAR:,.1f} years"


_YEAR = 365.25 * 86_400  # seconds


class LiveLine:
    """The last line of a terminal, which is rewritten in place and erased before anything else is printed."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self._stream: TextIO | None = None  # the terminal that shows the line now
        self._frame = 0

    def show(self, text: str, stream: TextIO) -> None:
        """Replace the line, cut to the width of the terminal."""
        stream = getattr(stream, "wrapped", stream)
        with self._lock:
            self._frame += 1
            line = f"{_SPINNER[self._frame % len(_SPINNER)]} {text}"[: shutil.get_terminal_size().columns - 1]
            stream.write(f"\r\033[K{line}")
            stream.flush()
            self._stream = stream

    def erase(self) -> None:
        """Remove the line, if one is shown."""
        with self._lock:
            if self._stream is not None:
                self._stream.write("\r\033[K")
                self._stream.flush()
                self._stream = None

    @contextlib.contextmanager
    def erased_by_output(self) -> Iterator[None]:
        """Erase the line before anything is written to stdout or stderr, if they are terminals."""
        with contextlib.ExitStack() as stack:
            for name, redirect in (("stdout", contextlib.redirect_stdout), ("stderr", contextlib.redirect_stderr)):
                stream = getattr(sys, name)
                if stream.isatty() and not isinstance(stream, _ErasingStream):
                    stack.enter_context(redirect(_ErasingStream(stream, self)))  # pyright: ignore[reportArgumentType]
            try:
                yield
            finally:
                self.erase()


class _ErasingStream:
    """A terminal's stream that erases a live line before it writes."""

    def __init__(self, stream: TextIO, line: LiveLine) -> None:
        self.wrapped, self._line = stream, line

    def write(self, text: str) -> int:
        self._line.erase()
        return self.wrapped.write(text)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.wrapped, name)


LIVE = LiveLine()  # of this process


class _Output(NamedTuple):
    print_line: Callable[[str], None]
    show: Callable[[str], None] | None  # rewrites the live line of a terminal; None without a terminal


class Signs:
    """Reports the current work when nothing else is printed, so that silence never looks like a hang.

    Code that prints calls `spoke`, and slow code runs inside `doing`. Nothing is printed outside `speaking`.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._doing: list[_Work] = []
        self._outputs: list[_Output] = []  # the last one is used
        self._last = clock()

    def spoke(self) -> None:
        """Record that something was printed."""
        self._last = self._clock()

    @contextlib.contextmanager
    def doing(
        self, what: str | Callable[[], str], first_after: float | None = None, later_every: float = LINE_EVERY
    ) -> Iterator[None]:
        """Report `what` while the work inside takes long; an inner call replaces an outer one.

        Without a terminal it is printed after `first_after` silent seconds (default: ten), then every `later_every`.
        A function returns the whole line; to a string the elapsed time is added.
        """
        work = _Work(what, self._clock(), NOTICEABLE if first_after is None else first_after, later_every)
        self._doing.append(work)
        try:
            yield
        finally:
            self._doing.remove(work)

    @contextlib.contextmanager
    def by(self, say: Callable[[str], None], show: Callable[[str], None] | None = None) -> Iterator[None]:
        """Print signs with `say`, which must not print in the middle of a line, or with `show` on a terminal."""
        self._outputs.append(_Output(say, show))
        try:
            yield
        finally:
            self._outputs.pop()

    @contextlib.contextmanager
    def speaking(self, what: str, say: Callable[[str], None] = print_sign) -> Iterator[None]:
        """Run a thread that prints signs with `say`; `what` names the work unless an inner `doing` does."""
        show = (lambda text: LIVE.show(text, sys.stdout)) if say is print_sign and sys.stdout.isatty() else None
        with self.doing(what), self.by(say, show):
            if len(self._outputs) > 1:  # a thread is running already
                yield
                return
            over = threading.Event()
            self.spoke()
            thread = threading.Thread(target=self._speak, args=(over,), name="signs-of-life", daemon=True)
            with LIVE.erased_by_output():
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
        work = self._doing[-1]
        silent_since = max(self._last, work.since)
        if self._clock() - silent_since < (work.later_every if work.signed else work.first_after):
            return None
        work.signed = True
        return self._line(work)

    def live(self) -> str | None:
        """The text of the live line; None if something was printed recently, or nothing is being done."""
        if not self._doing or self._clock() - self._last < _SILENT:
            return None
        return self._line(self._doing[-1])

    def _line(self, work: _Work) -> str:
        if not isinstance(work.what, str):
            return work.what()
        return f"{work.what[0].upper()}{work.what[1:]}… ({duration(self._clock() - work.since)})"

    def _speak(self, over: threading.Event) -> None:
        while not over.wait(_POLL_SECONDS):
            output = self._outputs[-1]
            if output.show is not None:
                if (text := self.live()) is not None:
                    output.show(text)
            elif (line := self.due()) is not None:
                output.print_line(line)
                self.spoke()


@dataclass(eq=False)
class _Work:
    what: str | Callable[[], str]
    since: float
    first_after: float
    later_every: float
    signed: bool = False  # whether it was reported


SIGNS = Signs()  # of this process


class LineTimer:
    """Schedules lines about a job without a terminal: none in its first ten seconds, then one a minute."""

    def __init__(self, now: float, first_after: float = NOTICEABLE, every: float = LINE_EVERY) -> None:
        self._began, self._first_after, self._every = now, first_after, every
        self._last = now - every + first_after

    def is_due(self, now: float) -> bool:
        """Whether it is time for the next line."""
        return now - self._last >= self._every

    def is_noticeable(self, now: float) -> bool:
        """Whether the job has taken long enough for a line at its end."""
        return now - self._began >= self._first_after

    def restart(self, now: float) -> None:
        """Restart the wait for the next line, because one is printed."""
        self._last = now


class ProgressLine:
    """One live line with an ETA on a terminal; elsewhere a line a minute about work of ten seconds or more."""

    def __init__(self, stream: TextIO | None = None) -> None:
        self._stream = stream or sys.stderr
        self._what, self._started, self._timer = "", 0.0, LineTimer(0.0)
        self._already = 0  # amount done before an interruption, which does not count for the speed

    def __call__(self, what: str, done: int, total: int) -> None:
        """Report `done` of `total`; a new `what` starts a new line, `done == total` ends it."""
        now = time.monotonic()
        if what != self._what:
            self._what, self._started, self._already, self._timer = what, now, done, LineTimer(now)
        is_finished = done >= total
        if self._stream.isatty() and not is_finished:
            LIVE.show(self._line(done, total, now), self._stream)
            SIGNS.spoke()
        elif self._timer.is_noticeable(now) if is_finished else self._timer.is_due(now):
            self._timer.restart(now)
            LIVE.erase()
            print(self._line(done, total, now), file=self._stream, flush=True)
            SIGNS.spoke()
        if is_finished:
            LIVE.erase()
            self._what = ""

    def _line(self, done: int, total: int, now: float) -> str:
        name, _, unit = self._what.rpartition(", ") if ", " in self._what else (self._what, "", "")
        amount = f"{name[:1].upper()}{name[1:]}: {_amount(done, total, unit)}"
        spent = now - self._started
        if done >= total:
            return f"{amount}, {duration(spent)}"
        if done <= self._already:
            return amount
        return f"{amount}, {duration(spent * (total - done) / (done - self._already))} left"


def _amount(done: int, total: int, unit: str) -> str:
    """Format a part of a whole: 35% of 115 MB, or 2,100 of 7,995 entries."""
    if unit == "bytes":
        size, scale = next(((size, scale) for size, scale in _SCALES if total >= size), (1, "bytes"))
        return f"{done / max(total, 1):.0%} of {three_digits(total / size)} {scale}"
    return f"{done:,} of {total:,} {unit}".rstrip()
