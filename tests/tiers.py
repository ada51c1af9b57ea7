"""Tables of cells of which the suite runs some and the long tier all."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import pytest


def long_unless(in_suite: Callable[..., bool], cells: Iterable[tuple[Any, ...]]) -> list[Any]:
    """Parameters of a test, of which those for which `in_suite` is false are marked `long`."""
    return [pytest.param(*cell, marks=[] if in_suite(*cell) else pytest.mark.long) for cell in cells]
