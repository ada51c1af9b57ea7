"""Byte-pair encoding (Sennrich et al. 2016): repeatedly merge the most frequent pair of adjacent pieces.

The result depends on the counts alone; ties are ordered by the strings. The trainers of `tokenizers` give other ids,
and sometimes other pieces, from run to run.
"""

from __future__ import annotations

import heapq
import operator
from collections import defaultdict
from collections.abc import Callable, Iterator

MIN_PAIR_COUNT = 2

_REPORTED_PIECES = 500


class Merger:
    """Words as sequences of pieces, and the counts of their neighbouring pairs, kept up to date by merges.

    `continuing` is what a piece within a word begins with, as ##. Piece n is written as the character chr(n), so that a
    word is a string, a pair is a string of two, and merging a pair is `str.replace`.
    """

    def __init__(self, letters: list[str], words: list[list[str]], counts: list[int], continuing: str) -> None:
        """Start with words as lists of `letters`, each as often as `counts` says."""
        self.pieces = list(letters)
        self.merges: list[tuple[str, str]] = []
        self._continuing = continuing
        self._symbol = {letter: chr(number) for number, letter in enumerate(letters)}
        self._words = ["".join(map(self._symbol.__getitem__, word)) for word in words]
        self._counts = counts
        self._pair_counts: defaultdict[str, int] = defaultdict(int)
        self._where: defaultdict[str, set[int]] = defaultdict(set)  # words that have the pair, or had it once
        for place, word in enumerate(self._words):
            for pair in _pairs(word):
                self._pair_counts[pair] += counts[place]
                self._where[pair].add(place)
        # The heap is lazy: an entry whose count is not the pair's count any more is put right when it comes up.
        self._heap = [self._entry(pair) for pair in self._pair_counts]
        heapq.heapify(self._heap)

    def merge_all(self, size: int, progress: Callable[[int, int], None]) -> None:
        """Merge the most frequent pairs until there are `size` pieces or no pair is frequent enough."""
        for so_far in (*range(len(self.pieces), size, _REPORTED_PIECES), size):
            self._merge_until(so_far)
            progress(so_far, size)

    def _merge_until(self, size: int) -> None:
        while self._heap and len(self.pieces) < size:
            stored, _, _, pair = heapq.heappop(self._heap)
            count = self._pair_counts.get(pair, 0)
            if -stored < MIN_PAIR_COUNT:
                return
            if count == -stored:
                self._merge(pair)
            elif count < -stored:
                heapq.heappush(self._heap, self._entry(pair))

    def _entry(self, pair: str) -> tuple[int, str, str, str]:
        left, right = pair
        return -self._pair_counts.get(pair, 0), self.pieces[ord(left)], self.pieces[ord(right)], pair

    def _merge(self, pair: str) -> None:
        left, right = pair
        spelled = self.pieces[ord(left)], self.pieces[ord(right)]
        self.merges.append(spelled)
        merged = self._piece(spelled[0] + spelled[1].removeprefix(self._continuing))
        changes: defaultdict[str, int] = defaultdict(int)
        for place in self._where.pop(pair):
            old, count = self._words[place], self._counts[place]
            at = old.find(pair)
            if at < 0:
                continue
            new = self._words[place] = old.replace(pair, merged)
            if len(old) - len(new) == 1:  # then only the neighbours' pairs change
                before = at - 1 if at else 0
                old, new = old[before : at + 3], new[before : at + 2]
            for gone in _pairs(old):
                changes[gone] -= count
            for come in _pairs(new):
                changes[come] += count
                self._where[come].add(place)
        for changed, change in changes.items():
            self._pair_counts[changed] += change
            if change > 0:
                heapq.heappush(self._heap, self._entry(changed))
        del self._pair_counts[pair]

    def _piece(self, piece: str) -> str:
        """The piece's symbol; two pairs can spell one piece."""
        if piece not in self._symbol:
            self._symbol[piece] = chr(len(self.pieces))
            self.pieces.append(piece)
        return self._symbol[piece]


def _pairs(word: str) -> Iterator[str]:
    return map(operator.add, word, word[1:])
