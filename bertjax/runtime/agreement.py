"""Where all processes stop: the protocol by which a signal to one of them stops all at the same unit of work.

Collective work is a sequence of units (a training step, a batch of an evaluation), the same in every process, and no
process can finish a unit that another has not begun. A process calls `go_on` before every unit. After a
signal each process reports how many units it has begun, and begins no other until it receives the last one: the
largest of these numbers. No process waits for a device, and none has to stop at a unit that it has already begun.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LONGEST_UNIT = 60.0  # seconds; a shorter unit is never taken for a hang
# The limit where no usual duration is known: the first units of a stage, a batch of an evaluation, which may have to be
# compiled, and the next rows, for which a new epoch may have to be planned.
LONGEST_OTHER = 1800.0
_TIMES = 20  # multiple of the usual duration of a unit from which on it is taken for a hang
_REMEMBERED = 99  # units of which the usual duration is the median


@dataclass(frozen=True)
class Status:
    """The progress of a process. `resting`: nothing that it has done since the last save would be lost now."""

    units: int
    resting: bool
    doing: str  # "unit", "input", "evaluation", or "" for work without a time limit
    idle: float  # seconds since it began its current activity
    limit: float  # seconds after which that activity is taken for a hang


class Agreement:
    """The state of one process in the protocol; used by its working thread and by its listening thread."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._units = 0
        self._stop_requested = False
        self._last: int | None = None
        self._resting = True
        self._compiling = False
        self._doing, self._since = "", time.monotonic()
        self._usual: deque[float] = deque(maxlen=_REMEMBERED)
        self.over = False  # `go_on` has returned False

    def rest(self) -> None:
        """Record that no work is in progress and none would be lost."""
        with self._changed:
            self._resting = True
            self._do("")

    def go_on(self, *, first: bool = False, doing: str = "unit") -> bool:
        """Whether to begin the next unit. `first`: it must be compiled, and all work before it is saved.

        Only activities named "unit" count for the usual duration. Waits while the last unit is being agreed on. Once
        False, always False.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._stop_requested or self._last is not None)
            if self._last is not None and self._units >= self._last:
                self._do("")
                self.over = True
                return False
            if first:
                self._usual.clear()  # the units that follow run another program
            elif self._doing == "unit":
                self._usual.append(time.monotonic() - self._since)
            self._units += 1
            self._resting = self._compiling = first
            self._do("" if first else doing)
            return True

    def begun(self) -> None:
        """Record that the unit that `go_on` allowed has been dispatched to the devices."""
        with self._changed:
            if self._compiling:
                self._resting = self._compiling = False
                self._do("unit")

    @contextmanager
    def taking_time(self, doing: str = "") -> Iterator[None]:
        """Inside, slow work is not taken for a hang: `input` has its own limit, other work has none."""
        with self._changed:
            before = self._doing
            self._do(doing if before else "")
        yield
        with self._changed:
            self._do(before)

    def request_stop(self) -> Status:
        """Begin no other unit until `settle`; returns the progress of this process."""
        with self._changed:
            self._stop_requested = True
        return self.status()

    def settle(self, last: int) -> None:
        """Set the last unit of all processes."""
        with self._changed:
            self._last = last
            self._changed.notify_all()

    def status(self) -> Status:
        """The progress of this process."""
        with self._changed:
            limit = LONGEST_OTHER
            if self._doing == "unit" and self._usual:
                limit = max(LONGEST_UNIT, _TIMES * statistics.median(self._usual))
            # A unit that is being compiled has not been dispatched and can still be dropped.
            done = self._units - self._compiling
            return Status(done, self._resting, self._doing, time.monotonic() - self._since, limit)

    def _do(self, doing: str) -> None:
        self._doing, self._since = doing, time.monotonic()
