"""Bounds of single numbers in a config."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

_LARGEST = sys.float_info.max


@dataclass(frozen=True)
class Bounds:
    """The interval `low <= value <= high`, open where `above` or `below` is set. NaN is outside."""

    low: float
    high: float = _LARGEST
    above: bool = False  # exclude `low`
    below: bool = False  # exclude `high`

    def hold(self, value: float) -> bool:
        """Whether a value is inside."""
        is_low = value > self.low if self.above else value >= self.low
        return is_low and (value < self.high if self.below else value <= self.high)

    def __str__(self) -> str:
        if self.high == _LARGEST:
            return f"a finite number above {self.low:g}" if self.above else f"a finite number of at least {self.low:g}"
        return f"in {'(' if self.above else '['}{self.low:,}, {self.high:,}{')' if self.below else ']'}"


COUNT = Bounds(1)
NOT_NEGATIVE = Bounds(0)
POSITIVE = Bounds(0, above=True)
SHARE = Bounds(0, 1)
PROPER_SHARE = Bounds(0, 1, below=True)


def check_bounds(part: Any, name: str, bounds: Mapping[str, Bounds]) -> None:
    """Raise ValueError for the first field of a config's part that is outside its bounds; `name` is the part's key.

    A word in place of a number, such as `auto`, is not checked.
    """
    for key, interval in bounds.items():
        if not isinstance(value := getattr(part, key), str) and not interval.hold(value):
            raise ValueError(f"{name}.{key}={value} must be {interval}")
