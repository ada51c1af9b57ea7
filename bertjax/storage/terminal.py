"""Format text for people: bold, dim and coloured on a terminal, plain elsewhere; short lists and rounded numbers."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from typing import TextIO


def is_styled(stream: TextIO | None = None) -> bool:
    """Whether a stream (default: stdout) is a terminal that shows colours; NO_COLOR or TERM=dumb turn them off."""
    return (stream or sys.stdout).isatty() and not os.environ.get("NO_COLOR") and os.environ.get("TERM") != "dumb"


def bold(text: str) -> str:
    """Style a heading."""
    return _styled("1", text)


def dim(text: str) -> str:
    """Style less important text, such as a path."""
    return _styled("2", text)


def good(text: str) -> str:
    """Style a value that is better than its baseline."""
    return _styled("32", text)


def bad(text: str) -> str:
    """Style a value that is worse than its baseline, or a warning."""
    return _styled("31", text)


def first_names(names: Iterable[object], most: int = 5) -> str:
    """List the first of many names: `a, b and 5 more`; `none` if there are none."""
    words = [str(name) for name in names]
    more = f" and {len(words) - most:,} more" if len(words) > most else ""
    return f"{', '.join(words[:most]) or 'none'}{more}"


def three_digits(value: float) -> str:
    """Format a number with three significant digits: 0.0123, 1.23, and 2,250 rather than 2.25e+03."""
    return f"{float(f'{value:.3g}'):,.12g}"


def _styled(code: str, text: str) -> str:
    return f"\033[{code}m{text}\033[0m" if text and is_styled() else text
