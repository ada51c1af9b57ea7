"""What becomes of examples that are longer than a row: counted and told, or refused."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class RowCounts:
    """How many examples and tokens there were, and what became of the long ones. Special tokens are not counted."""

    examples: int = 0
    tokens: int = 0
    truncated: int = 0  # examples cut off
    tokens_cut: int = 0  # tokens that were lost so
    windowed: int = 0  # examples taken in several windows
    windows: int = 0  # in how many, together
    empty: int = 0  # examples with a text without any token

    def told(self, max_length: int) -> list[str]:
        """What is to be said of them, a line each; nothing if every example fitted."""
        lines = []
        if self.truncated:
            lines.append(
                f"{self.truncated:,} of {self.examples:,} examples were longer than {max_length} tokens and were "
                f"truncated: {self.tokens_cut:,} of {self.tokens:,} tokens were left out"
            )
        if self.windowed:
            lines.append(
                f"{self.windowed:,} of {self.examples:,} examples were longer than {max_length} tokens and were taken "
                f"in {self.windows:,} windows"
            )
        if self.empty:
            lines.append(f"{self.empty:,} of {self.examples:,} examples have a text without any token")
        return lines


def too_long(where: str, length: int, max_length: int) -> ValueError:
    """The refusal of an example of `length` tokens, special ones included, where long ones are to be refused."""
    return ValueError(
        f"{where}: {length} tokens, special ones included, over the max length of {max_length}; raise --max-length, "
        "shorten the example, or leave --strict-length out"
    )
