"""Training a WordPiece vocabulary, the same to the byte for the same text, however its counting was split up.

Pieces are merged as in byte-pair encoding, until the vocabulary is full.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from tokenizers import pre_tokenizers

from bertjax.tokenization.merging import Merger
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import CHUNKS, MAX_WORD_CHARACTERS, SPECIAL_TOKENS, normalizer

ALPHABET_COVERAGE = 0.9999  # of the characters; words with one of the others become [UNK]
LARGEST_ALPHABET = 0.25  # of the vocabulary, at most
SMALL_ALPHABET = 64  # characters that any vocabulary may have


def count_words(texts: Iterable[str], rules: TextRules) -> Counter[str]:
    """Count the words of texts after BERT's normalisation and splitting; over-long ones are left out."""
    chunks: Counter[str] = Counter()
    for text in texts:
        chunks.update(CHUNKS.findall(text))
    normalize = normalizer(rules.lowercase, rules.strip_accents).normalize_str
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
    merger = Merger(letters, splits, [word_counts[word] for word in words], continuing="##")
    merger.merge_all(len(letters) + room, progress)
    return [*SPECIAL_TOKENS, *merger.pieces]


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
