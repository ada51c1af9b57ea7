"""SIGTERM and Ctrl-C as a request: finish the step, save, and leave with a message."""

from __future__ import annotations

import signal
from types import FrameType

# 75 is EX_TEMPFAIL of sysexits.h: run the same command again. 130 is what a shell reports for Ctrl-C.
EXIT_CODES = {signal.SIGTERM: 75, signal.SIGINT: 130}


class Interrupt:
    """While entered, SIGTERM and SIGINT set `received` instead of ending the process.

    A second SIGTERM changes nothing; a second Ctrl-C ends the process at once, for whoever will not wait for the save.
    """

    def __init__(self) -> None:
        self.received: signal.Signals | None = None
        self._previous: dict[signal.Signals, object] = {}

    def __enter__(self) -> Interrupt:
        self._previous = {number: signal.signal(number, self._receive) for number in EXIT_CODES}
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._previous.items():
            signal.signal(number, handler)

    @property
    def exit_code(self) -> int:
        """What the process should end with; 0 if no signal came."""
        return EXIT_CODES[self.received] if self.received else 0

    def _receive(self, number: int, frame: FrameType | None) -> None:
        again = self.received is not None
        self.received = self.received or signal.Signals(number)
        if again and number == signal.SIGINT:
            raise KeyboardInterrupt
