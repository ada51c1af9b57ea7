"""Where all processes stop: the rule by which a signal to one of them ends the work of all at the same place.

What the processes do together comes in units (a training step, a batch of an evaluation), the same in each, and none
can finish a unit that another has not begun. A process asks before every unit whether it may go on. When a signal
comes, each says how many it has begun, and begins no other until it is told the last one: the largest of these numbers.
Nobody waits for a device, and nobody is told to stop at what it has passed.
"""

from __future__ import annotations

import statistics
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

LONGEST_UNIT = 60.0  # seconds that a unit may always take, before anybody thinks that it hangs
# Likewise for what nothing is known to compare with: the first units of a kind, a batch of an evaluation, which may
# have to be compiled, and the next rows, for which a new epoch may have to be planned.
LONGEST_OTHER = 1800.0
_TIMES = 20  # what a unit usually takes, and still is no hang
_REMEMBERED = 99  # units


@dataclass(frozen=True)
class Standing:
    """How far a process is. `resting`: it has begun nothing since `units` that would be lost if it ended now."""

    units: int
    resting: bool
    doing: str  # "unit", "input", "evaluation", or "" for what may take any time
    idle: float  # seconds since it began what it is doing
    limit: float  # seconds after which that is a hang


class Agreement:
    """One process's side of it; called from the working thread and from the one that listens to the others."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._units = 0
        self._asked = False
        self._last: int | None = None
        self._resting = True
        self._compiling = False
        self._doing, self._since = "", time.monotonic()
        self._usual: deque[float] = deque(maxlen=_REMEMBERED)
        self.over = False  # go_on has said no

    def rest(self) -> None:
        """Nothing is under way, and nothing would be lost."""
        with self._changed:
            self._resting = True
            self._do("")

    def go_on(self, *, first: bool = False, doing: str = "unit") -> bool:
        """Whether to begin the next unit. `first`: it is to be compiled, and all that was done before is saved.

        What `doing` calls anything but a unit says nothing of how long those usually take. Waits while the last unit
        is not settled. After the last it stays at no.
        """
        with self._changed:
            self._changed.wait_for(lambda: not self._asked or self._last is not None)
            if self._last is not None and self._units >= self._last:
                self._do("")
                self.over = True
                return False
            if first:
                self._usual.clear()  # what comes is another program
            elif self._doing == "unit":
                self._usual.append(time.monotonic() - self._since)
            self._units += 1
            self._resting = self._compiling = first
            self._do("" if first else doing)
            return True

    def begun(self) -> None:
        """The unit that `go_on` allowed is with the device."""
        with self._changed:
            if self._compiling:
                self._resting = self._compiling = False
                self._do("unit")

    @contextmanager
    def taking_time(self, doing: str = "") -> Iterator[None]:
        """Inside, what takes long does not hang: `input` has a limit, anything else none."""
        with self._changed:
            before = self._doing
            self._do(doing if before else "")
        yield
        with self._changed:
            self._do(before)

    def ask(self) -> Standing:
        """Begin no other unit until `settle`; how far this process is."""
        with self._changed:
            self._asked = True
        return self.standing()

    def settle(self, last: int) -> None:
        """The last unit of all."""
        with self._changed:
            self._last = last
            self._changed.notify_all()

    def standing(self) -> Standing:
        """How far this process is."""
        with self._changed:
            limit = LONGEST_OTHER
            if self._doing == "unit" and self._usual:
                limit = max(LONGEST_UNIT, _TIMES * statistics.median(self._usual))
            # A unit that is being compiled can be called back.
            done = self._units - self._compiling
            return Standing(done, self._resting, self._doing, time.monotonic() - self._since, limit)

    def _do(self, doing: str) -> None:
        self._doing, self._since = doing, time.monotonic()
