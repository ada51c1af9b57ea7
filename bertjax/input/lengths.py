"""Lengths of padded rows; counts of texts that were truncated or split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

# Few lengths, because each is compiled separately; not too few, because padding costs compute.
_LENGTHS = (16, 32, 64, 128, 192, 256, 384, 512)
_FINE_LENGTHS = (16, 32, 48, 64, 96, 128, 192, 256, 384, 512)


def row_length(needed: int, steps: int, fine: bool = False) -> int:
    """Choose the length of padded rows for up to `needed` tokens: the smallest of a few lengths that suffices.

    Above 512 there are `steps` lengths between a power of two and the next; `fine` adds 48 and 96.
    """
    lengths = _FINE_LENGTHS if fine else _LENGTHS
    if needed <= lengths[-1]:
        return next(length for length in lengths if length >= needed)
    step = (1 << (needed - 1).bit_length()) // (2 * steps)
    return -(-needed // step) * step


@dataclass
class LengthCounts:
    """Counts of examples and tokens, and how many were truncated or split. Special tokens are not counted."""

    unit: ClassVar[str] = "examples"
    window: ClassVar[str] = "windows"
    remedy: ClassVar[str] = ""  # continues the line about truncated examples
    when_empty: ClassVar[str] = "have a text without any token"

    examples: int = 0
    tokens: int = 0
    truncated: int = 0  # examples that were cut off
    tokens_cut: int = 0  # tokens lost by truncation
    windowed: int = 0  # examples split into several windows
    windows: int = 0  # number of these windows
    empty: int = 0  # examples with a text without any token

    def add(self, tokens: np.ndarray, cut: np.ndarray, windows: np.ndarray | int = 1) -> None:
        """Count examples, given each one's tokens, tokens cut off and windows: int64 [n] each."""
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
        of_all = f"of {self.examples:,} {self.unit}"
        lines = []
        if self.truncated:
            lost = f"{self.tokens_cut:,} of {self.tokens:,} tokens were left out{self.remedy}"
            lines.append(f"{self.truncated:,} {of_all} were cut to {max_length} tokens: {lost}")
        if self.windowed:
            lines.append(
                f"{self.windowed:,} {of_all} were longer than {max_length} tokens and became {self.windows:,} "
                f"{self.window}"
            )
        if self.empty:
            lines.append(f"{self.empty:,} {of_all} {self.when_empty}")
        return lines
