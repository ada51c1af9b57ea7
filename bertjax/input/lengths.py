"""Lengths of padded rows; counts of texts that were truncated or split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

# Each length of rows is a program to compile, and every token of padding is computed.
_LENGTHS = (16, 32, 64, 128, 192, 256, 384, 512)
_FINE_LENGTHS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def row_length(needed: int, steps: int, fine: bool = False) -> int:
    """The length of padded rows for at most `needed` tokens: the smallest of a few that suffices.

    Above 512 there are `steps` lengths between a power of two and the next; `fine` has 48 and 96 too.
    """
    lengths = _FINE_LENGTHS if fine else _LENGTHS
    if needed <= lengths[-1]:
        return next(length for length in lengths if length >= needed)
    step = (1 << (needed - 1).bit_length()) // (2 * steps)
    return -(-needed // step) * step


@dataclass
class LengthCounts:
    """Numbers of examples and tokens, and of those truncated or split. Special tokens are not counted."""

    unit: ClassVar[str] = "examples"
    window: ClassVar[str] = "windows"
    remedy: ClassVar[str] = ""  # continues the line about truncated examples
    when_empty: ClassVar[str] = "have a text without any token"

    examples: int = 0
    tokens: int = 0
    truncated: int = 0  # examples cut off
    tokens_cut: int = 0  # tokens lost by that
    windowed: int = 0  # examples split into several windows
    windows: int = 0  # number of these windows
    empty: int = 0  # examples with a text without any token

    def add(self, tokens: np.ndarray, cut: np.ndarray, windows: np.ndarray | int = 1) -> None:
        """Count examples, given the tokens of each, the tokens cut off, and its windows: int64 [n] each."""
        self.examples += len(tokens)
        self.tokens += int(tokens.sum())
        self.truncated += int((cut > 0).sum())
        self.tokens_cut += int(cut.sum())
        several = np.asarray(windows) > 1
        self.windowed += int(several.sum())
        self.windows += int((several * windows).sum())

    @property
    def any_cut(self) -> bool:
        """Whether any token was left out."""
        return self.truncated > 0

    def notices(self, max_length: int) -> list[str]:
        """Lines for the user about truncated, split and empty examples; none if every example fits."""
        of = f"of {self.examples:,} {self.unit}"
        lines = []
        if self.truncated:
            lost = f"{self.tokens_cut:,} of {self.tokens:,} tokens were left out{self.remedy}"
            lines.append(f"{self.truncated:,} {of} were cut to {max_length} tokens: {lost}")
        if self.windowed:
            lines.append(
                f"{self.windowed:,} {of} were longer than {max_length} tokens and became {self.windows:,} {self.window}"
            )
        if self.empty:
            lines.append(f"{self.empty:,} {of} {self.when_empty}")
        return lines
