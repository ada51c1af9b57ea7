"""Train WordPiece and byte-level BPE: repeatedly merge the most frequent pair of adjacent pieces.

This is byte-pair encoding (Sennrich et al. 2016). The result depends only on the counts; ties are ordered by the
strings. The trainers of `tokenizers` give different ids, and sometimes different pieces, from run to run.
"""

from __future__ import annotations

import heapq
import json
import operator
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping

from tokenizers import pre_tokenizers

from bertjax.tokenization import byte_level, wordpiece
from bertjax.tokenization.artefact import BERT_CHUNKS, byte_letters
from bertjax.tokenization.byte_level import ByteLevelBPE
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import MAX_WORD_CHARACTERS

MIN_PAIR_COUNT = 2
ALPHABET_COVERAGE = 0.9999  # share of the text's characters; words with other characters become [UNK]
LARGEST_ALPHABET = 0.25  # largest share of the vocabulary
SMALL_ALPHABET = 64  # number of characters that is always allowed

_REPORTED_PIECES = 500
_HEADER = "#version: 0.2"


class Merger:
    """Words as sequences of pieces, with the counts of adjacent pairs, which merges update.

    `continuing` is the prefix of a piece within a word, such as ##. Piece n is represented by the character chr(n), so
    that a word is a string, a pair is a string of two, and merging a pair is `str.replace`.
    """

    def __init__(self, letters: list[str], words: list[list[str]], counts: list[int], continuing: str) -> None:
        """Start with words as lists of `letters`, with their `counts`."""
        self.pieces = list(letters)
        self.merges: list[tuple[str, str]] = []
        self._continuing = continuing
        self._symbol = {letter: chr(number) for number, letter in enumerate(letters)}
        self._words = ["".join(map(self._symbol.__getitem__, word)) for word in words]
        self._counts = counts
        self._pair_counts: defaultdict[str, int] = defaultdict(int)
        self._word_numbers: defaultdict[str, set[int]] = defaultdict(set)  # words that have or had the pair
        for number, word in enumerate(self._words):
            for pair in _pairs(word):
                self._pair_counts[pair] += counts[number]
                self._word_numbers[pair].add(number)
        # The heap is lazy: outdated entries are corrected when they are popped.
        self._heap = [self._entry(pair) for pair in self._pair_counts]
        heapq.heapify(self._heap)

    def merge_all(self, size: int, progress: Callable[[int, int], None]) -> None:
        """Merge the most frequent pairs until there are `size` pieces or no pair is frequent enough."""
        for target in (*range(len(self.pieces), size, _REPORTED_PIECES), size):
            self._merge_until(target)
            progress(target, size)

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
        first, second = self.pieces[ord(left)], self.pieces[ord(right)]
        self.merges.append((first, second))
        merged = self._piece(first + second.removeprefix(self._continuing))
        changes: defaultdict[str, int] = defaultdict(int)
        for number in self._word_numbers.pop(pair):
            old, count = self._words[number], self._counts[number]
            at = old.find(pair)
            if at < 0:
                continue
            new = self._words[number] = old.replace(pair, merged)
            if len(old) - len(new) == 1:  # one occurrence: only the pairs with its neighbours change
                before = at - 1 if at else 0
                old, new = old[before : at + 3], new[before : at + 2]
            for removed in _pairs(old):
                changes[removed] -= count
            for added in _pairs(new):
                changes[added] += count
                self._word_numbers[added].add(number)
        for neighbour, change in changes.items():
            self._pair_counts[neighbour] += change
            if change > 0:
                heapq.heappush(self._heap, self._entry(neighbour))
        del self._pair_counts[pair]

    def _piece(self, piece: str) -> str:
        """The symbol of a piece, which may exist already, as different pairs can spell the same piece."""
        if piece not in self._symbol:
            self._symbol[piece] = chr(len(self.pieces))
            self.pieces.append(piece)
        return self._symbol[piece]


def _pairs(word: str) -> Iterator[str]:
    return map(operator.add, word, word[1:])


def count_words(texts: Iterable[str], rules: TextRules) -> Counter[str]:
    """Count the words of texts after BERT's normalisation and splitting, without overlong words."""
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(BERT_CHUNKS.findall(text))
    normalize = wordpiece.normalizer(rules.lowercase, rules.strip_accents).normalize_str
    split = pre_tokenizers.BertPreTokenizer().pre_tokenize_str
    words: Counter[str] = Counter()
    for chunk, count in chunks.items():
        if chunk.isascii() and chunk.isalnum():
            words[chunk.lower() if rules.lowercase else chunk] += count
        else:
            for word, _ in split(normalize(chunk)):
                words[word] += count
    return Counter({word: count for word, count in words.items() if len(word) <= MAX_WORD_CHARACTERS})


def train_wordpiece(
    word_counts: Mapping[str, int], vocab_size: int, progress: Callable[[int, int], None] = lambda done, total: None
) -> list[str]:
    """Train a vocabulary: special tokens, the alphabet, then merged pieces, most frequent first.

    Equal counts are ordered by the strings, so the result depends only on the counts. The alphabet takes a limited
    share of the vocabulary; if no pair occurs twice any more, more characters are added. The result is shorter than
    `vocab_size` if there are too few. `progress` is called with (pieces done, total). Raises ValueError if there are no
    words, or no room for merges.
    """
    if not word_counts:
        raise ValueError("vocabulary: the text has no words to train on; is data.sources right?")
    ranked = _frequent_characters(word_counts)
    share = max(SMALL_ALPHABET, int(LARGEST_ALPHABET * vocab_size))
    merger, letters = _merge_words(word_counts, ranked[:share], vocab_size, progress)
    free = vocab_size - len(wordpiece.SPECIAL_TOKENS) - len(merger.pieces)
    if free and len(ranked) > share:
        larger = _largest_alphabet(word_counts, ranked, letters + free)
        merger, _ = _merge_words(word_counts, larger, vocab_size, progress)
    return [*wordpiece.SPECIAL_TOKENS, *merger.pieces]


def _merge_words(
    word_counts: Mapping[str, int], alphabet: list[str], vocab_size: int, progress: Callable[[int, int], None]
) -> tuple[Merger, int]:
    """Merge the pieces of words in an alphabet. Returns the merger and the number of single-character pieces."""
    # A word with a character outside the vocabulary becomes [UNK] in any case.
    characters = set(alphabet)
    words = [word for word in word_counts if characters.issuperset(word)]
    splits = [_split(word) for word in words]
    letters = sorted({piece for split in splits for piece in split})
    room = vocab_size - len(wordpiece.SPECIAL_TOKENS) - len(letters)
    if room < 0:
        raise ValueError(
            f"data.vocab_size={vocab_size} is too small: the special tokens and the alphabet of this text take "
            f"{vocab_size - room} already; raise it"
        )
    merger = Merger(letters, splits, [word_counts[word] for word in words], continuing="##")
    merger.merge_all(len(letters) + room, progress)
    return merger, len(letters)


def _split(word: str) -> list[str]:
    return [word[0], *(f"##{character}" for character in word[1:])]


def _frequent_characters(word_counts: Mapping[str, int]) -> list[str]:
    """The characters that cover nearly all text, most frequent first; equal counts are ordered by code point."""
    characters: Counter[str] = Counter()
    for word, count in word_counts.items():
        for character in word:
            characters[character] += count
    ranked = sorted(characters, key=lambda character: (-characters[character], character))
    enough, covered = ALPHABET_COVERAGE * characters.total(), 0
    for rank, character in enumerate(ranked):
        if covered >= enough:
            return ranked[:rank]
        covered += characters[character]
    return ranked


def _largest_alphabet(word_counts: Mapping[str, int], ranked: list[str], most: int) -> list[str]:
    """The longest prefix of `ranked` whose words have at most `most` single-character pieces."""
    ranks = {character: rank for rank, character in enumerate(ranked)}
    needed: dict[str, int] = {}  # piece -> the rank up to which the alphabet must reach for it to occur
    for word in word_counts:
        rank = max(ranks.get(character, len(ranked)) for character in word)
        for piece in _split(word):
            needed[piece] = min(rank, needed.get(piece, rank))
    return ranked[: sorted([*needed.values(), len(ranked)])[min(most, len(needed))]]


def train_byte_level(
    word_counts: Mapping[str, int], vocab_size: int, rules: TextRules, progress: Callable[[int, int], None]
) -> ByteLevelBPE:
    """Train a byte-level BPE on the counts of `count_spaced_words`.

    Stops before `vocab_size` if no pair occurs twice any more. Raises ValueError if there are no words, or no room for
    merges.
    """
    if not word_counts:
        raise ValueError("vocabulary: the text has no words to train on; is data.sources right?")
    letters = sorted(byte_letters())
    special = list(byte_level.SPECIAL_TOKENS[rules.special_tokens].values())
    if (room := vocab_size - len(special)) < len(letters):
        least = len(letters) + len(special)
        raise ValueError(f"data.vocab_size={vocab_size} is too small: a byte-level vocabulary has at least {least}")
    words = _in_bytes(word_counts, rules)
    merger = Merger(letters, [list(word) for word in words], list(words.values()), continuing="")
    merger.merge_all(room, progress)
    # RoBERTa's special tokens come first, except the mask; ModernBERT's come last.
    first = special[:-1] if rules.special_tokens == "<s>" else []
    tokens = [*first, *merger.pieces, *special[len(first) :]]
    vocabulary = json.dumps({token: number for number, token in enumerate(tokens)}, ensure_ascii=False)
    merges = "".join(f"{line}\n" for line in (_HEADER, *(" ".join(pair) for pair in merger.merges)))
    return ByteLevelBPE(vocabulary.encode(), merges.encode(), rules)


def _in_bytes(word_counts: Mapping[str, int], rules: TextRules) -> dict[str, int]:
    """Split words into runs of letters, digits or other characters, in bytes, as byte-level BPE does.

    Each word follows a space, like all words of a text except, without `prefix_space`, the first.
    """
    normalize, cut = byte_level.normalizer(rules).normalize_str, pre_tokenizers.ByteLevel(add_prefix_space=True)
    runs: Counter[str] = Counter()
    for word in sorted(word_counts):
        for run, _ in cut.pre_tokenize_str(normalize(word)):
            runs[run] += word_counts[word]
    return runs
