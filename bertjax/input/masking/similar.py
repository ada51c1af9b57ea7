"""Similar words in place of [MASK] (MacBERT, Cui et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bertjax.input.randomness import below, derive_key, fold_in, hash64, low_uniform
from bertjax.text.similar_words import SimilarWords, parse, read_bytes, usable_ids
from bertjax.tokenization.tokenizer import Tokenizer

_KEY = derive_key("word of a table")


@dataclass(frozen=True)
class SimilarTable:
    """Words and their similar ones as tokens. A word has at least one, and all of them as many tokens as it has."""

    hashes: np.ndarray  # uint64 [words], ascending: of each word's tokens
    sizes: np.ndarray  # int64 [words]: tokens of each
    first: np.ndarray  # int64 [words]: where its similar words begin in `tokens`
    counts: np.ndarray  # int64 [words]: how many they are
    tokens: np.ndarray  # int32 [...]

    @classmethod
    def read(cls, path: str, tokenizer: Tokenizer) -> SimilarTable:
        """A table as the tokens of a vocabulary.

        Words that the vocabulary cannot write are left out, and similar words with another number of tokens. Of words
        with the same tokens, as two that differ in case may be, the first counts. Raises ValueError as `read_bytes`
        and `parse` do, and if nothing is left.
        """
        return _read(read_bytes(path), path, tokenizer)

    @classmethod
    def of(cls, similar: Mapping[tuple[int, ...], list[tuple[int, ...]]]) -> SimilarTable:
        """The table with these words."""
        words = list(similar)
        sizes = np.array([len(word) for word in words])
        hashes = _hashes(np.array([token for word in words for token in word]), sizes)
        assert len(np.unique(hashes)) == len(words), "two words of the table have one hash"
        order = np.argsort(hashes)
        counts = np.array([len(similar[words[number]]) for number in order])
        tokens = [token for number in order for near in similar[words[number]] for token in near]
        held = counts * sizes[order]
        return cls(hashes[order], sizes[order], np.cumsum(held) - held, counts, np.array(tokens, np.int32))

    def choose(self, tokens: np.ndarray, sizes: np.ndarray, bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """A similar word for each of some words, all equally likely.

        `tokens` int [sum of sizes], `sizes` int64 [words], all above 0, `bits` uint64 [words]. Returns tokens, int32 as
        many, and whether the table has the word, bool [words]; the tokens of one that it has not mean nothing.
        """
        hashes = _hashes(tokens, sizes)
        entry = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        is_there = (self.hashes[entry] == hashes) & (self.sizes[entry] == sizes)
        begin = np.where(is_there, self.first[entry] + below(bits, self.counts[entry]) * sizes, 0)
        within = np.arange(len(tokens)) - np.repeat(np.cumsum(sizes) - sizes, sizes)
        indices = np.repeat(begin, sizes) + within
        return self.tokens[np.minimum(indices, len(self.tokens) - 1)], is_there


@lru_cache(maxsize=2)  # a run uses the same one for each of its splits and stages
def _read(content: bytes, path: str, tokenizer: Tokenizer) -> SimilarTable:
    table: SimilarWords = parse(content, path)
    spelled = list(dict.fromkeys((*table, *(near for similar in table.values() for near in similar))))
    ids = dict(zip(spelled, usable_ids(tokenizer, spelled), strict=True))
    similar: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for word, others in table.items():
        own = ids[word]
        near = [ids[other] for other in others if own and len(ids[other]) == len(own) and ids[other] != own]
        if near:
            similar.setdefault(own, near)
    if not similar:
        raise ValueError(
            f"data.similar_words={path!r}: no word of it and its similar ones are as many tokens of the vocabulary; "
            "make a table for this vocabulary with `bertjax neighbors --output`"
        )
    return SimilarTable.of(similar)


def _hashes(tokens: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """One uint64 for the tokens of each word."""
    hashes = np.full(len(sizes), _KEY, np.uint64)
    first = np.cumsum(sizes) - sizes
    for number in range(int(sizes.max(initial=0))):
        longer = sizes > number
        hashes[longer] = hash64(hashes[longer], tokens[first[longer] + number])
    return hashes


@dataclass(frozen=True)
class ReplacedBySimilar:
    """A hidden word is shown as a similar one, of random tokens, or as it is; drawn once for a word, never as [MASK].

    Rule: ymcui/MacBERT, README: similar words one by one in an n-gram; a random word where the table has none.
    """

    table: SimilarTable
    random_id: Callable[[np.ndarray], np.ndarray]
    keep_share: float = 0.1
    random_share: float = 0.1  # the rest is shown as a similar word
    needs_words: bool = True

    def shown(
        self,
        labels: np.ndarray,
        positions: np.ndarray,
        is_used: np.ndarray,
        keys: np.ndarray,
        continues: np.ndarray | None = None,
    ) -> np.ndarray:
        """As `Replacement` has it; `continues`, bool [B, P], is true where a token belongs to the word before it."""
        assert continues is not None
        keys = fold_in(keys, "replacement")[:, None]
        begins = ~continues
        begins[:, 0] = True
        begins = begins[is_used]  # of the used slots in order, as everything below
        sizes = np.diff(np.flatnonzero(np.append(begins, True)))
        bits = hash64(keys, positions)[is_used]
        of_word = bits[begins]
        kind = low_uniform(of_word)
        choice = hash64(fold_in(keys, "similar word"), positions)[is_used][begins]
        similar, is_there = self.table.choose(labels[is_used], sizes, choice)
        is_kept = kind < self.keep_share
        is_random = ~is_kept & ((kind < self.keep_share + self.random_share) | ~is_there)
        found = np.where(np.repeat(is_kept, sizes), labels[is_used], similar)
        at_random = np.repeat(is_random, sizes)
        found[at_random] = self.random_id(bits[at_random])
        shown = labels.copy()
        shown[is_used] = found
        return shown
