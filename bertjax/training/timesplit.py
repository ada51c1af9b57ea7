"""Where the wall time of a run goes: steps, waiting for input, evaluation, checkpoints, and the rest."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PARTS = ("step", "input_wait", "eval", "checkpoint")


class TimeSplit:
    """Adds up the wall time of the loop by part; parts do not nest. What no part took is `other`.

    `window` is for the log: the shares since the last look. `total` is for the end: the seconds since the start.
    """

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = self._window_start = clock()
        self._total = dict.fromkeys(PARTS, 0.0)
        self._at_window = dict(self._total)

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Count the time inside the `with` towards one of `PARTS`; KeyError for another name."""
        start, before = self._clock(), self._total[part]
        try:
            yield
        finally:
            self._total[part] = before + self._clock() - start

    def window(self) -> dict[str, float]:
        """`time/<part>` -> its share of the wall time since the last call; they sum to 1."""
        now = self._clock()
        wall = max(now - self._window_start, 1e-9)
        shares = {f"time/{part}": (self._total[part] - self._at_window[part]) / wall for part in PARTS}
        self._window_start, self._at_window = now, dict(self._total)
        return shares | {"time/other": 1 - sum(shares.values())}

    def total(self) -> dict[str, float]:
        """Part -> seconds since the start, with `other` and their sum `wall`."""
        wall = self._clock() - self._start
        return self._total | {"other": wall - sum(self._total.values()), "wall": wall}

    def goodput(self) -> dict[str, float]:
        """`goodput/step`: the share of this process's life, start-up and compilation included, that went into steps."""
        total = self.total()
        return {"goodput/step": total["step"] / max(total["wall"], 1e-9)}
