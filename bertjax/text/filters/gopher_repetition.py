"""The `gopher_repetition` filter: documents that repeat themselves, by Rae et al. 2021 (arXiv:2112.11446), table A1.

Only lines with text count; they are also the paper's paragraphs. Its rules for repeated runs of 5 to 10 words are left
out.
"""

from __future__ import annotations

from collections import Counter

from bertjax.text.filters.filter import Filter

_MOST_LINES, _MOST_IN_LINES = 0.3, 0.2  # repeated lines: shares of the lines, and of the characters
_MOST_IN_RUN = {
    2: 0.2,
    3: 0.18,
    4: 0.16,
}  # length of a run in words -> share of the characters in the most frequent one

_LINES = f"more than {_MOST_LINES:.0%} of the lines, or {_MOST_IN_LINES:.0%} of the characters, in repeated lines"
_RUNS = {
    size: f"more than {share:.0%} of the characters in one run of {size} words" for size, share in _MOST_IN_RUN.items()
}


def broken_rule(text: str) -> str:
    """The first rule that a document breaks; '' if it breaks none."""
    lines = text.split("\n")
    repeated = [line for line, count in Counter(lines).items() for _ in range(count - 1)]
    if len(repeated) / len(lines) > _MOST_LINES or sum(map(len, repeated)) / len(text) > _MOST_IN_LINES:
        return _LINES
    words = text.split()
    for size, share in _MOST_IN_RUN.items():
        runs = Counter(zip(*(words[first:] for first in range(size)), strict=False))
        if runs:
            run, count = max(runs.items(), key=lambda item: (item[1], sum(map(len, item[0]))))
            if count > 1 and count * (sum(map(len, run)) + size - 1) / len(text) > share:
                return _RUNS[size]
    return ""


FILTER = Filter("gopher_repetition", (_LINES, *_RUNS.values()), broken_rule, for_prose=True)
