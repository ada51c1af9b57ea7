"""A map from words that a WordPiece vocabulary cannot encode to tokens of entities.

It applies after the vocabulary's pieces, characters and added words, and before [UNK].
"""

from __future__ import annotations

import string
import sys
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache

import tokenizers
from tokenizers import normalizers, pre_tokenizers

from bertjax.storage.lines import read_table

FILE = "entity_map.tsv"  # next to the vocabulary: a surface form, a tab and a token per line


def parse(content: bytes, origin: str) -> dict[str, str]:
    """Parse a file into surface form -> token; `origin` names it in messages.

    Raises ValueError with the line number if a line is not UTF-8, does not have two parts or repeats a surface form,
    and if there are no lines.
    """
    table = read_table(
        content,
        origin,
        called="an entity map",
        form="a surface form and a token, a tab",
        is_row=lambda fields: len(fields) == 2 and bool(fields[0].strip() and fields[1]),
    )
    return {surface: token for surface, (token,) in table.items()}


def map_words(
    tokens: Mapping[str, str],
    ids: Mapping[str, int],
    special: Sequence[int],
    normalize: Callable[[str], str],
    origin: str,
) -> dict[str, int]:
    """Map the normalised words of surface forms to the ids of their entities' tokens.

    Raises ValueError with the surface form if it is not one word, if its token is missing from the vocabulary, special
    or several words, or if another surface form maps the same word to another token.
    """
    cut = pre_tokenizers.BertPreTokenizer()
    word_ids: dict[str, int] = {}
    for surface, token in tokens.items():
        entry = f"{origin}: {surface!r} -> {token!r}"
        if token not in ids or ids[token] in special:
            raise ValueError(f"{entry}: the token is special or not in the vocabulary; add one to vocab.txt")
        if len(cut.pre_tokenize_str(token)) != 1:
            raise ValueError(f"{entry}: the token has a space or a punctuation mark; rename it in vocab.txt")
        words = [word for word, _ in cut.pre_tokenize_str(normalize(surface))]
        if len(words) != 1:
            raise ValueError(f"{entry}: the surface form is {len(words)} words, {words}; the map is for single words")
        if word_ids.setdefault(words[0], ids[token]) != ids[token]:
            raise ValueError(f"{entry}: another surface form of the word {words[0]!r} has another token; remove one")
    return word_ids


def with_replacements(normalizer: normalizers.Normalizer, tokens: Mapping[str, str]) -> normalizers.Normalizer:
    """Extend a normaliser to also replace whole words by tokens; `tokens` maps normalised word -> token."""
    patterns: dict[str, list[str]] = {}
    for word, token in tokens.items():
        patterns.setdefault(token, []).append("".join(f"\\x{{{ord(character):X}}}" for character in word))
    steps = [
        normalizers.Replace(
            tokenizers.Regex(f"(?<![^{_between_words()}])(?:{'|'.join(words)})(?![^{_between_words()}])"), token
        )
        for token, words in patterns.items()
    ]
    return normalizers.Sequence([normalizer, *steps])


@lru_cache(maxsize=1)
def _between_words() -> str:
    """A regular expression's class of characters that end a word: white space and BERT's punctuation."""
    cut = pre_tokenizers.BertPreTokenizer()
    marks = [
        chr(point)
        for point in range(sys.maxunicode + 1)
        if unicodedata.category(chr(point))[0] == "P" or chr(point) in string.punctuation
    ]
    ends = [mark for mark in marks if len(cut.pre_tokenize_str(f"a{mark}a")) == 3]
    return "\\s" + "".join(f"\\x{{{ord(mark):X}}}" for mark in ends)
