"""The `gopher_quality` filter: the rules for documents of Rae et al. 2021 (arXiv:2112.11446), table A1.

Words are separated by white space, so the rules suit only languages that write it. The rule that a document has two of
the English words the, be, to, of, and, that, have, with is left out.
"""

from __future__ import annotations

from bertjax.text.filters.filter import Filter

_FEWEST_WORDS, _MOST_WORDS = 50, 100_000
_SHORTEST_MEAN, _LONGEST_MEAN = 3, 10  # letters of a word
_MOST_SYMBOLS = 0.1  # hashes, or ellipses, for each word
_MOST_BULLETS, _MOST_ELLIPSES = 0.9, 0.3  # shares of the lines
_FEWEST_ALPHABETIC = 0.8  # share of the words
_BULLETS = ("•", "‣", "-", "*")
_ELLIPSES = ("...", "…")

_NUMBER = f"fewer than {_FEWEST_WORDS} or more than {_MOST_WORDS:,} words"
_LENGTH = f"words shorter than {_SHORTEST_MEAN} or longer than {_LONGEST_MEAN} letters on average"
_SYMBOLS = f"more than {_MOST_SYMBOLS:g} hashes or ellipses per word"
_BULLETED = f"more than {_MOST_BULLETS:.0%} of the lines begin with a bullet"
_ELLIPTIC = f"more than {_MOST_ELLIPSES:.0%} of the lines end with an ellipsis"
_ALPHABETIC = f"less than {_FEWEST_ALPHABETIC:.0%} of the words have a letter"


def broken_rule(text: str) -> str:
    """The first rule that a document breaks; '' if it breaks none."""
    words = text.split()
    if not _FEWEST_WORDS <= len(words) <= _MOST_WORDS:
        return _NUMBER
    if not _SHORTEST_MEAN <= sum(map(len, words)) / len(words) <= _LONGEST_MEAN:
        return _LENGTH
    if max(text.count("#"), sum(map(text.count, _ELLIPSES))) / len(words) > _MOST_SYMBOLS:
        return _SYMBOLS
    lines = text.split("\n")
    if sum(line.lstrip().startswith(_BULLETS) for line in lines) / len(lines) > _MOST_BULLETS:
        return _BULLETED
    if sum(line.rstrip().endswith(_ELLIPSES) for line in lines) / len(lines) > _MOST_ELLIPSES:
        return _ELLIPTIC
    if sum(any(map(str.isalpha, word)) for word in words) / len(words) < _FEWEST_ALPHABETIC:
        return _ALPHABETIC
    return ""


FILTER = Filter(
    "gopher_quality", (_NUMBER, _LENGTH, _SYMBOLS, _BULLETED, _ELLIPTIC, _ALPHABETIC), broken_rule, for_prose=True
)
