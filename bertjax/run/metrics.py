"""Collect the metrics of steps without stalling the devices, and split the wall time of the loop into parts."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import jax
import numpy as np

from bertjax.training.flops import mfu
from bertjax.training.objectives import Objective, list_measures

LOSS = "train/loss"
TOKENS_SEEN = "train/tokens_seen"  # tokens without padding since step 0, over all restarts of the run
# Steps that the host may dispatch ahead of the device. On a CPU, a queued step only costs memory.
_STEPS_AHEAD, _STEPS_AHEAD_ON_CPU = 2, 0

# A figure on the progress line: (label, name in the log with or without its group, format).
ProgressColumn = tuple[str, str, str]
_RATE: ProgressColumn = ("tok/s", "perf/tokens_per_second", "{:,.0f}")

_TOKENS = "tokens"  # without padding
_LAST = ("skipped_updates", "skipped_in_a_row")  # counters, logged as they are after the last step


class StepMetrics:
    """Collects the metrics of dispatched steps and averages them over the steps since the last `window`.

    `add` waits for the step before the previous one, so that an accelerator always has work queued and the host is at
    most two steps ahead. On a CPU it waits for the step itself.
    """

    def __init__(self, peak_flops: float, tokens_before: float = 0.0) -> None:
        """`peak_flops` is for all devices, in FLOP/s; `tokens_before` counts tokens of earlier processes of the run."""
        self._flops_per_token, self._peak = 0.0, peak_flops
        self._ahead = _STEPS_AHEAD_ON_CPU if jax.default_backend() == "cpu" else _STEPS_AHEAD
        self._in_flight: deque[dict[str, jax.Array]] = deque()
        self._finished: list[dict[str, jax.Array]] = []
        self.tokens = tokens_before  # tokens without padding in all finished steps of the run
        self._untimed = 0  # steps at the beginning of the window to exclude from rates
        self._timed_tokens = self._timed_seconds = self._timed_flops = 0.0

    def begin(self, flops_per_token: float) -> None:
        """Start a stage; its first step, which compiles the program, is excluded from rates."""
        self._flops_per_token, self._untimed = flops_per_token, 1

    def add(self, metrics: dict[str, jax.Array]) -> None:
        """Add the metrics of the step that was just dispatched."""
        self._in_flight.append(metrics)
        while len(self._in_flight) > self._ahead:
            self._finished.append(jax.block_until_ready(self._in_flight.popleft()))

    def drain(self) -> None:
        """Wait for all dispatched steps: before an evaluation, a checkpoint or the end."""
        self._finished.extend(jax.block_until_ready(list(self._in_flight)))
        self._in_flight.clear()

    def window(self, elapsed: float) -> dict[str, float]:
        """Means over the steps that finished since the last call, and rates over the `elapsed` seconds they took.

        The first step of a stage in this process is excluded from rates: it includes compilation, and `elapsed` begins
        after it. If it is the only step, there are no rates.
        """
        fetched: list[dict[str, np.ndarray]] = jax.device_get(self._finished)
        self._finished = []
        if not fetched:
            return {}
        mean = {name: _mean_of_finite([step[name] for step in fetched]) for name in fetched[0]}
        tokens = float(np.sum([step[_TOKENS] for step in fetched]))
        self.tokens += tokens
        figures = {name if "/" in name else f"train/{name}": x for name, x in mean.items() if name != _TOKENS}
        figures |= {f"train/{name}": float(fetched[-1][name]) for name in _LAST} | {TOKENS_SEEN: self.tokens}
        timed, self._untimed = fetched[self._untimed :], 0
        if not timed:
            return figures
        tokens = float(np.sum([step[_TOKENS] for step in timed]))
        self._timed_tokens += tokens
        self._timed_seconds += elapsed
        self._timed_flops += tokens * self._flops_per_token
        return figures | {
            "perf/tokens_per_second": tokens / elapsed,
            "perf/step_seconds": elapsed / len(timed),
            "perf/mfu": mfu(tokens / elapsed * self._flops_per_token, self._peak),
        }

    @property
    def rate(self) -> float:
        """Tokens per second without padding, over all windows with rates; 0 without any."""
        return self._timed_tokens / self._timed_seconds if self._timed_seconds else 0.0

    @property
    def mfu(self) -> float:
        """Model FLOPs utilisation over the same windows."""
        return mfu(self._timed_flops / self._timed_seconds, self._peak) if self._timed_seconds else 0.0


def progress_columns(objectives: Iterable[Objective]) -> tuple[ProgressColumn, ...]:
    """The figures that objectives show on the progress line."""
    return tuple((m.brief, name, f"{{:{m.form}}}") for name, m in list_measures(objectives) if m.brief)


def _mean_of_finite(values: list[np.ndarray]) -> float:
    """Mean of the finite values, NaN without any. Values of skipped updates are not finite and counted elsewhere."""
    finite = [value for value in values if np.isfinite(value)]
    return float(np.mean(finite)) if finite else float("nan")


def brief(figures: Mapping[str, float], columns: Sequence[ProgressColumn]) -> str:
    """Format figures for the progress line: those in `columns` that exist, and the rate."""
    values = {name.split("/", 1)[1]: value for name, value in figures.items()} | dict(figures)
    return "  ".join(
        f"{label} {form.format(values[name])}" for label, name, form in (*columns, _RATE) if name in values
    )


PARTS: tuple[str, ...] = ("step", "input_wait", "eval", "checkpoint")


class TimeSplit:
    """Splits the wall time of the loop into parts, which do not nest. The remaining time is `other`."""

    def __init__(self, clock: Callable[[], float] = time.perf_counter) -> None:
        self._clock = clock
        self._start = self._window_start = clock()
        self._total = dict.fromkeys(PARTS, 0.0)
        self._at_window = dict(self._total)

    @contextmanager
    def measure(self, part: str) -> Iterator[None]:
        """Add the time inside the `with` to one of `PARTS`. Raises KeyError for another name."""
        start, before = self._clock(), self._total[part]
        try:
            yield
        finally:
            self._total[part] = before + self._clock() - start

    def window(self) -> dict[str, float]:
        """Return `time/<part>` -> share of the wall time since the last call; the shares sum to 1."""
        now = self._clock()
        wall = max(now - self._window_start, 1e-9)
        shares = {f"time/{part}": (self._total[part] - self._at_window[part]) / wall for part in PARTS}
        self._window_start, self._at_window = now, dict(self._total)
        return shares | {"time/other": 1 - sum(shares.values())}

    def total(self) -> dict[str, float]:
        """Return part -> seconds since the start, with `other` and the sum `wall`."""
        wall = self._clock() - self._start
        return self._total | {"other": wall - sum(self._total.values()), "wall": wall}

    def goodput(self) -> dict[str, float]:
        """Return `goodput/step`: the share of the loop's wall time so far that was spent in steps."""
        total = self.total()
        return {"goodput/step": total["step"] / max(total["wall"], 1e-9)}
