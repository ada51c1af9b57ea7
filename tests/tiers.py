"""Parametrized tests of which only some cases run in the suite."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def long_unless(in_suite: Callable[..., bool], cells: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Test parameters; cells for which `in_suite` is false are marked `long`."""
    return [pytest.param(*cell, marks=[] if in_suite(*cell) else pytest.mark.long) for cell in cells]
