"""Training a WordPiece vocabulary, the same to the byte for the same text, however its counting was split up.

Pieces are merged as in byte-pair encoding: the most frequent pair of neighbours becomes a piece, until the vocabulary
is full. (So does the trainer in `tokenizers`, but its ids, and sometimes its pieces, change from run to run.)
"""

from __future__ import annotations

import heapq
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from tokenizers import pre_tokenizers

from bertjax.tokenization.wordpiece import CHUNKS, MAX_WORD_CHARACTERS, SPECIAL_TOKENS, normalizer

TRAINER_VERSION = 1  # of counting and merging; a change makes other vocabularies
MIN_PAIR_COUNT = 2
ALPHABET_COVERAGE = 0.9999  # of the characters; words with one of the others become [UNK]
LARGEST_ALPHABET = 0.25  # of the vocabulary, at most
SMALL_ALPHABET = 64  # characters that any vocabulary may have

_REPORTED_PIECES = 500


def count_words(texts: Iterable[str], lowercase: bool, strip_accents: bool) -> Counter[str]:
    """Count the words of texts after BERT's normalisation and splitting; over-long ones are left out."""
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(CHUNKS.findall(text))
    normalize = normalizer(lowercase, strip_accents).normalize_str
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        if chunk.isascii() and chunk.isalnum():
            words[chunk.lower() if lowercase else chunk] += count
        else:
            for word, _ in split(normalize(chunk)):
                words[word] += count
    return Counter({word: count for word, count in words.items() if len(word) <= MAX_WORD_CHARACTERS})


def smoothed(of_source: Iterable[Counter[str]], temperature: float) -> Counter[str]:
    """The sources' word counts in one, each scaled so that its share goes by its words to the power `temperature`.

    So a small language keeps pieces beside a large one (multilingual BERT: 0.7). With 1 the counts are as they are;
    with less they are in all about as many as before, and what is scaled below a half is left out.
    """
    counters = [counts for counts in of_source if counts]
    joined: Counter[str] = Counter()
    if temperature == 1 or not counters:
        for counts in counters:
            joined.update(counts)
        return joined
    sizes = [counts.total() for counts in counters]
    powers = [size**temperature for size in sizes]
    for counts, size, power in zip(counters, sizes, powers, strict=True):
        scale = power / sum(powers) * sum(sizes) / size
        joined.update({word: scaled for word, count in counts.items() if (scaled := round(count * scale))})
    return joined


def train_wordpiece(
    word_counts: Mapping[str, int], vocab_size: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[str]:
    """Tokens in order: special ones, the alphabet, then merged pieces, most frequent first.

    Equal counts are ordered by the strings, so the result depends on nothing but the counts. It is shorter than
    `vocab_size` where no pair occurs twice any more. `progress` gets (pieces done, pieces in all). Raises ValueError if
    there are no words, or no room for merges.
    """
    if not word_counts:
        raise ValueError("vocabulary: the text has no words to train on; is data.sources right?")
    known = _alphabet(word_counts, vocab_size)
    # A word with a character that is not in the vocabulary becomes [UNK] whatever its other pieces are.
    words = [word for word in word_counts if known.issuperset(word)]
    splits = [[word[0], *(f"##{character}" for character in word[1:])] for word in words]
    letters = sorted({piece for split in splits for piece in split})
    room = vocab_size - len(SPECIAL_TOKENS) - len(letters)
    if room < 0:
        raise ValueError(
            f"data.vocab_size={vocab_size} is too small: the special tokens and the alphabet of this text take "
            f"{vocab_size - room} already; raise it"
        )
    merger = _Merger(letters, splits, [word_counts[word] for word in words])
    for size in (*range(len(letters), len(letters) + room, _REPORTED_PIECES), len(letters) + room):
        merger.merge_until(size)
        progress(size, len(letters) + room)
    return [*SPECIAL_TOKENS, *merger.pieces]


class _Merger:
    """Words as sequences of pieces, and the counts of their neighbouring pairs, kept up to date by merges.

    Piece n is written as the character chr(n), so that a word is a string, a pair is a string of two, and merging a
    pair is `str.replace`.
    """

    def __init__(self, letters: list[str], words: list[list[str]], counts: list[int]) -> None:
        self.pieces = list(letters)
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

    def merge_until(self, size: int) -> None:
        """Merge the most frequent pairs until there are `size` pieces or no pair is frequent enough."""
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
        merged = self._piece(self.pieces[ord(left)] + self.pieces[ord(right)].removeprefix("##"))
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


def _alphabet(word_counts: Mapping[str, int], vocab_size: int) -> set[str]:
    """The most frequent characters, as many as cover nearly all text; equal counts go by code point."""
    characters: Counter[str] = Counter()
    for word, count in word_counts.items():
        for character in word:
            characters[character] += count
    ranked = sorted(characters, key=lambda character: (-characters[character], character))
    ranked = ranked[: max(SMALL_ALPHABET, int(LARGEST_ALPHABET * vocab_size))]
    enough, covered = ALPHABET_COVERAGE * characters.total(), 0
    for rank, character in enumerate(ranked):
        if covered >= enough:
            return set(ranked[:rank])
        covered += characters[character]
    return set(ranked)
