"""Show the progress of a long job: a live line on a terminal, a bar in a notebook, lines with an ETA elsewhere."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, TextIO

from bertjax.storage.progress import LINE_EVERY, LIVE, NOTICEABLE, SIGNS, LineTimer, duration

LONG_RUN_HOURS = 90 * 24  # longer runs get a warning
_REDRAWN_EVERY = 0.1  # seconds between updates of a live line


class Progress:
    """Tracks `total` units of work; a context manager.

    A terminal gets one live line, a notebook a bar. Elsewhere (a log file, a pipe) a line is printed at multiples of
    `every` units, once an update brings the figures for it, and after the first line at most every `every_seconds`.
    Without `every`, a line is printed after ten seconds and then every `every_seconds`. The last line is printed at
    the end. The ETA follows from the mean rate since the first update, or since the first update after `restart`, so
    it does not include start-up and compilation.
    """

    def __init__(
        self,
        total: int | None,
        description: str,
        *,
        unit: str = "step",
        initial: int = 0,
        every: int | None = None,
        every_seconds: float = LINE_EVERY,
        units_left: Callable[[int], float] | None = None,
        pauses_left: Callable[[int], int] | None = None,
        pause_units: float = 0.0,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Start at `initial` of `total` units; without a known total (None) there is no ETA.

        `units_left` maps units done to the work left, measured in units of the current length. `pauses_left` maps units
        done to the number of pauses left (see `pause`); until one is measured, a pause counts as `pause_units` units.
        Nothing is written before the first update.
        """
        self._total, self._done, self._description, self._unit = total, initial, description, unit
        self._every = every
        self._stream = stream or sys.stderr
        self._clock = clock
        self._message, self._printed, self._is_due = "", initial, False
        self._began, self._drawn = clock(), 0.0
        self._timer = LineTimer(self._began, NOTICEABLE if every is None else 0.0, every_seconds)
        self._first: tuple[int, float] | None = None
        self._units_left = units_left or (lambda done: (total or 0) - done)
        self._pauses_left, self._pause_units = pauses_left, pause_units
        self._pauses: list[float] = []  # seconds of each
        self._paused = 0.0  # seconds of pauses since the first update
        self._inside = contextlib.ExitStack()
        self._bar = self._make_bar() if is_notebook(self._stream) else None
        self._is_live = self._bar is None and self._stream.isatty()

    def update(self, n: int = 1, message: str | None = None) -> None:
        """Count `n` more units as done; `message` replaces the figures shown after them."""
        before, self._done = self._done, self._done + n
        self._message = self._message if message is None else message
        self._first = self._first or (self._done, self._clock())
        if self._bar is not None:
            if message is not None:
                self._bar.set_postfix_str(message, refresh=False)
            self._bar.update(n)
            SIGNS.spoke()
        elif self._is_live:
            if self._clock() - self._drawn >= _REDRAWN_EVERY:
                self._draw()
        elif self._is_line_due(before, message):
            self._print_line()

    def restart(self) -> None:
        """Measure a new rate from the next update on, because the next units take a different time."""
        self._first, self._paused = None, 0.0

    @contextlib.contextmanager
    def pause(self) -> Iterator[None]:
        """Time inside counts for the end of the job, but not for the rate of its units."""
        began = self._clock()
        try:
            yield
        finally:
            seconds = self._clock() - began
            self._pauses.append(seconds)
            self._paused += seconds if self._first else 0.0

    def note(self, line: str) -> None:
        """Print a separate line, above the bar if there is one."""
        SIGNS.spoke()
        if self._bar is not None:
            self._bar.write(line, file=self._stream)
        else:
            LIVE.erase()
            print(line, file=self._stream, flush=True)

    def close(self) -> None:
        """Leave the last state on the screen."""
        if self._bar is not None:
            self._bar.close()
        elif self._done != self._printed:
            LIVE.erase()
            if self._timer.is_noticeable(self._clock()):
                self._print_line()

    def __enter__(self) -> Progress:
        self._inside.enter_context(SIGNS.by(self.note, self._draw if self._is_live else None))
        return self

    def __exit__(self, *exception: object) -> None:
        self._inside.close()
        self.close()

    def line(self) -> str:
        """Return the state as one plain line: share done, rate, ETA, message."""
        share = f" ({self._done / self._total:.0%})" if self._total else ""
        of = "" if self._total is None else f" / {self._total:,}"
        parts = [f"{self._description}  {self._done:,}{of} {plural(self._unit)}{share}"]
        rate = self._rate()
        if rate and (self._total is None or self._done < self._total):
            parts.append(f"{rate:,.3g} {self._unit}/s" if rate < 1000 else f"{rate:,.0f} {self._unit}/s")
        if rate and self._total is not None and self._done < self._total:
            parts.append(f"ETA {duration(self._units_left(self._done) / rate + self._pauses_to_come(rate))}")
        return "  ".join([*parts, self._message] if self._message else parts)

    def _rate(self) -> float | None:
        if self._first is None or self._done == self._first[0]:
            return None
        done, since = self._first
        return (self._done - done) / max(self._clock() - since - self._paused, 1e-9)

    def _pauses_to_come(self, rate: float) -> float:
        """Seconds of all pauses left."""
        if self._pauses_left is None:
            return 0.0
        each = sum(self._pauses) / len(self._pauses) if self._pauses else self._pause_units / rate
        return self._pauses_left(self._done) * each

    def _is_line_due(self, before: int, message: str | None) -> bool:
        due = self._timer.is_due(self._clock())
        if self._every is None or not due:
            return due
        overdue, reached = self._is_due, before // self._every != self._done // self._every
        self._is_due = overdue or reached
        return (self._is_due and message is not None) or (overdue and reached)

    def _print_line(self) -> None:
        print(self.line(), file=self._stream, flush=True)
        SIGNS.spoke()
        self._timer.restart(self._clock())
        self._printed, self._is_due = self._done, False

    def _draw(self, work: str = "") -> None:
        """Redraw the live line: `work` that is not the units comes first, as a narrow terminal cuts the end."""
        state = self.line()
        extra = "" if not work or work == state else f"{work}  "
        LIVE.show(f"{extra}{state}  {duration(self._clock() - self._began)} elapsed", self._stream)
        self._drawn = self._clock()
        if not work:
            SIGNS.spoke()

    def _make_bar(self) -> Any:
        from tqdm.auto import tqdm

        return tqdm(
            total=self._total,
            initial=self._done,
            desc=self._description,
            unit=f" {self._unit}",
            unit_scale=(self._total or 0) >= 1_000_000,
            file=self._stream,
            dynamic_ncols=True,
            smoothing=0.05,
        )


def is_notebook(stream: TextIO) -> bool:
    """Whether the output of a stream appears below a notebook cell."""
    return type(stream).__module__.startswith("ipykernel.")


def seconds_between_lines() -> float:
    """Seconds between progress lines where there is no terminal: BERTJAX_LINE_EVERY, or LINE_EVERY.

    Raises ValueError for a value that is not a number of seconds.
    """
    value = os.environ.get("BERTJAX_LINE_EVERY", "")
    if not value:
        return LINE_EVERY
    if not re.fullmatch(r"\d+(\.\d+)?", value):
        raise ValueError(f"BERTJAX_LINE_EVERY={value!r} in the environment: give a number of seconds, such as 10")
    return float(value)


def plural(unit: str) -> str:
    """Plural of a unit: step -> steps, but MB -> MB."""
    return unit if unit.isupper() else f"{unit}s"


def long_run_warning(hours: float, steps: int) -> str:
    """Return a warning with advice for a run that takes months; empty for shorter runs."""
    if hours < LONG_RUN_HOURS:
        return ""
    return (
        f"Warning: training.steps={steps:,} takes {duration(3600 * hours)}; lower training.steps, set "
        "training.budget, train a smaller model (recipe bert_mini or bert_one_gpu), or use a faster machine"
    )
