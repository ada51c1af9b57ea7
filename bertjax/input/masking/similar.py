"""Similar words in place of [MASK] (MacBERT, Cui et al. 2020)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from bertjax.input.randomness import below, derive_key, fold_in, hash64, low_uniform
from bertjax.text.ragged import range_indices
from bertjax.text.similar_words import SimilarWords, parse, read_bytes, usable_ids
from bertjax.tokenization.tokenizer import Tokenizer

_KEY = derive_key("word of a table")


@dataclass(frozen=True)
class SimilarTable:
    """Words and their similar words as tokens: at least one per word, with the same number of tokens."""

    hashes: np.ndarray  # uint64 [words], ascending: hash of each word's tokens
    sizes: np.ndarray  # int64 [words]: tokens in each word
    first: np.ndarray  # int64 [words]: where its similar words begin in `tokens`
    counts: np.ndarray  # int64 [words]: number of its similar words
    tokens: np.ndarray  # int32 [...]: concatenated similar words

    @classmethod
    def read(cls, path: str, tokenizer: Tokenizer) -> SimilarTable:
        """Read a table and tokenize it.

        Leaves out words that the vocabulary cannot encode, and similar words with another number of tokens. If several
        words have the same tokens, such as two that differ in case, the first counts. Raises ValueError like
        `read_bytes` and `parse`, and if no word is left.
        """
        return _read(read_bytes(path), path, tokenizer)

    @classmethod
    def of(cls, similar: Mapping[tuple[int, ...], list[tuple[int, ...]]]) -> SimilarTable:
        """Build the table from words and their similar words."""
        words = list(similar)
        sizes = np.array([len(word) for word in words])
        hashes = _hashes(np.array([token for word in words for token in word]), sizes)
        assert len(np.unique(hashes)) == len(words), "two words of the table have the same hash"
        order = np.argsort(hashes)
        counts = np.array([len(similar[words[number]]) for number in order])
        tokens = [token for number in order for near in similar[words[number]] for token in near]
        near_sizes = counts * sizes[order]
        return cls(hashes[order], sizes[order], np.cumsum(near_sizes) - near_sizes, counts, np.array(tokens, np.int32))

    def choose(self, tokens: np.ndarray, sizes: np.ndarray, bits: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Draw a similar word for each of some words, uniformly.

        `tokens` int [sum of sizes], `sizes` int64 [words], all above 0, `bits` uint64 [words]. Returns tokens, int32,
        and whether the table has the word, bool [words]; where it does not, the tokens are meaningless.
        """
        hashes = _hashes(tokens, sizes)
        entry = np.minimum(np.searchsorted(self.hashes, hashes), len(self.hashes) - 1)
        is_known = (self.hashes[entry] == hashes) & (self.sizes[entry] == sizes)
        begin = np.where(is_known, self.first[entry] + below(bits, self.counts[entry]) * sizes, 0)
        return self.tokens[np.minimum(range_indices(begin, sizes), len(self.tokens) - 1)], is_known


@lru_cache(maxsize=2)  # a run uses one table for all splits and stages
def _read(content: bytes, path: str, tokenizer: Tokenizer) -> SimilarTable:
    table: SimilarWords = parse(content, path)
    words = list(dict.fromkeys((*table, *(near for similar in table.values() for near in similar))))
    ids = dict(zip(words, usable_ids(tokenizer, words), strict=True))
    similar: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for word, others in table.items():
        own = ids[word]
        near = [ids[other] for other in others if own and len(ids[other]) == len(own) and ids[other] != own]
        if near:
            similar.setdefault(own, near)
    if not similar:
        raise ValueError(
            f"data.similar_words={path!r}: no word has a similar word with the same number of tokens; "
            "make a table for this vocabulary with `bertjax neighbors --output`"
        )
    return SimilarTable.of(similar)


def _hashes(tokens: np.ndarray, sizes: np.ndarray) -> np.ndarray:
    """Hash the tokens of each word: uint64 [words]."""
    hashes = np.full(len(sizes), _KEY, np.uint64)
    first = np.cumsum(sizes) - sizes
    for number in range(int(sizes.max(initial=0))):
        longer = sizes > number
        hashes[longer] = hash64(hashes[longer], tokens[first[longer] + number])
    return hashes


@dataclass(frozen=True)
class ReplacedBySimilar:
    """Replaces each masked word by a similar word, by random tokens or by itself, never by [MASK]; one draw per word.

    Rule: ymcui/MacBERT, README: the words of an n-gram are replaced one by one, words without an entry randomly.
    """

    table: SimilarTable
    random_id: Callable[[np.ndarray], np.ndarray]
    keep_share: float = 0.1
    random_share: float = 0.1  # the rest becomes a similar word
    needs_words: bool = True

    def draw(
        self,
        labels: np.ndarray,
        positions: np.ndarray,
        is_used: np.ndarray,
        keys: np.ndarray,
        continues: np.ndarray | None = None,
    ) -> np.ndarray:
        """Like `Replacement.draw`; `continues` is bool [B, P], true if the token continues the previous one's word."""
        assert continues is not None
        keys = fold_in(keys, "replacement")[:, None]
        begins = ~continues
        begins[:, 0] = True
        begins = begins[is_used]  # from here on, arrays are over the used slots in order
        sizes = np.diff(np.flatnonzero(np.append(begins, True)))
        bits = hash64(keys, positions)[is_used]
        word_bits = bits[begins]
        kind = low_uniform(word_bits)
        choice = hash64(fold_in(keys, "similar word"), positions)[is_used][begins]
        similar, is_known = self.table.choose(labels[is_used], sizes, choice)
        is_kept = kind < self.keep_share
        is_random = ~is_kept & ((kind < self.keep_share + self.random_share) | ~is_known)
        ids = np.where(np.repeat(is_kept, sizes), labels[is_used], similar)
        at_random = np.repeat(is_random, sizes)
        ids[at_random] = self.random_id(bits[at_random])
        replacement = labels.copy()
        replacement[is_used] = ids
        return replacement
