"""Plain reference implementations of masking rules, one row at a time, with `random.Random`.

Shares no code with the package. A row is a list of words, and a word is a list of positions.
"""

from __future__ import annotations

import random
from itertools import accumulate

Words = list[list[int]]


def split_words(candidates: list[int], continues: list[bool]) -> Words:
    """The positions of each word; the first candidate always starts a word."""
    words: Words = []
    for position, is_continuation in zip(candidates, continues, strict=True):
        if words and is_continuation:
            words[-1].append(position)
        else:
            words.append([position])
    return words


def ngrams(words: Words, shares: tuple[float, ...], budget: int, rng: random.Random) -> list[int]:
    """google-research/albert's create_masked_lm_predictions, without a check in it that has no effect."""
    hidden: set[int] = set()
    starts = list(range(len(words)))
    rng.shuffle(starts)
    for start in starts:
        if len(hidden) >= budget:
            break
        fitting = min(len(shares), len(words) - start)
        n = rng.choices(range(1, fitting + 1), shares[:fitting])[0]
        ngram = [position for word in words[start : start + n] for position in word]
        while n and len(hidden) + len(ngram) > budget:
            n -= 1
            ngram = [position for word in words[start : start + n] for position in word]
        if hidden.isdisjoint(ngram):
            hidden.update(ngram)
    return sorted(hidden)


def spans(words: Words, p: float, longest: int, budget: int, rng: random.Random) -> list[int]:
    """facebookresearch/SpanBERT's masking of whole-word spans: redraw tokens that are already masked."""
    lengths = range(1, longest + 1)
    weights = [p * (1 - p) ** (length - 1) for length in lengths]
    home = [number for number, word in enumerate(words) for _ in word]
    positions = [position for word in words for position in word]
    firsts = [0, *accumulate(map(len, words))]
    hidden: set[int] = set()
    while len(hidden) < budget:
        length = rng.choices(lengths, weights)[0]
        token = rng.randrange(len(positions))
        if positions[token] in hidden:
            continue
        word = home[token]
        for place in positions[firsts[word] : firsts[min(word + length, len(words))]]:
            if len(hidden) == budget:
                break
            hidden.add(place)
    return sorted(hidden)


def runs(positions: list[int]) -> list[int]:
    """The lengths of the runs of consecutive positions."""
    breaks = [n for n in range(1, len(positions)) if positions[n] != positions[n - 1] + 1]
    return [b - a for a, b in zip([0, *breaks], [*breaks, len(positions)], strict=True)]
