"""Plain reference implementation of BERT's tokenization, and a table of differences between its variants.

Shares no code with the package. `Reference` follows one of three sets of `Rules`: google-research/bert's, those of
transformers' `BertTokenizerLegacy`, and ours, which are those of the `tokenizers` library. `DIFFERENCES` lists the
words to which ours may give other ids; all three must give the same ids to words to which no row applies.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import lru_cache

CHINESE = (
    range(0x4E00, 0xA000),
    range(0x3400, 0x4DC0),
    range(0x20000, 0x2A6E0),
    range(0x2A700, 0x2B740),
    range(0x2B740, 0x2B820),
    range(0x2B820, 0x2CEB0),
    range(0xF900, 0xFB00),
    range(0x2F800, 0x2FA20),
)
CHINESE_ELSEWHERE = range(0x2B820, 0x2B920)  # part of these ranges, but not Chinese for `tokenizers`


def _characters(ranges: str) -> frozenset[str]:
    """The characters in a list of hexadecimal ranges."""
    ends = (each.partition("-") for each in ranges.split())
    return frozenset(chr(place) for low, _, high in ends for place in range(int(low, 16), int(high or low, 16) + 1))


# Characters that end a word for all three: those that cleaning replaces by a space, and remaining white space, at which
# str.split splits. (Other separators of str.split are controls, which cleaning deletes, joining their neighbours.)
SEPARATORS = _characters("9-A D 20 A0 1680 2000-200A 2028-2029 202F 205F 3000")
_SEPARATED = re.compile(f"[^{''.join(sorted(SEPARATORS))}]+")

# Unicode data of `tokenizers`. Its categories are those of 8.0, in which these marks (Mn), punctuation and format
# characters (Cf) of Unicode 18.0 have another category. Python's data may include fewer of them.
LATER_CATEGORY = _characters("""
    5C8-5C9 61D 7FD 890-891 897-89F 8CA-8E2 9FD-9FE A76 AFA-AFF B53-B55 C04 C3C C77 C84 D00 D3B-D3C D81 EBA ECE 180F
    1885-1886 1ABF-1AF0 1B4E-1B4F 1B7D-1B7F 1DF6-1DFB 2E43-2E4F 2E52-2E5D 2E60-2E63 A82C A8C5 A8FF A9BD 10D24-10D27
    10D69-10D6E 10EAB-10EAD 10ECB-10ED0 10EF0-10EFF 10F46-10F50 10F55-10F59 10F82-10F89 11070 11073-11074 110C2 110CD
    111C9 111CF 1123E 11241 1133B 113BB-113C0 113CE 113D0 113D2 113D4-113D5 113D7-113D8 113E1-113E2 11438-1143F
    11442-11444 11446 1144B-1144F 1145A-1145B 1145D-1145E 11660-1166C 116B9 1182F-11837 11839-1183B 1193B-1193C 1193E
    11943-11946 119D4-119D7 119DA-119DB 119E0 119E2 11A01-11A0A 11A33-11A38 11A3B-11A47 11A51-11A56 11A59-11A5B
    11A8A-11A96 11A98-11A9C 11A9E-11AA2 11B00-11B09 11B60 11B62-11B64 11B66 11BE1 11C30-11C36 11C38-11C3D 11C3F
    11C41-11C45 11C70-11C71 11C92-11CA7 11CAA-11CB0 11CB2-11CB3 11CB5-11CB6 11D31-11D36 11D3A 11D3C-11D3D 11D3F-11D45
    11D47 11D90-11D91 11D95 11D97 11DF0 11EF3-11EF4 11EF7-11EF8 11F00-11F01 11F36-11F3A 11F40 11F42-11F4F 11F5A 11FFF
    12FF1-12FF2 13430-13440 13447-13455 1611E-16129 1612D-1612F 16D6D-16D6F 16E97-16E9A 16F4F 16FE2 16FE4 1CF00-1CF2D
    1CF30-1CF46 1D127-1D128 1D25B-1D25C 1E000-1E006 1E008-1E018 1E01B-1E021 1E023-1E024 1E026-1E02A 1E08F 1E130-1E136
    1E2AE 1E2EC-1E2EF 1E4EC-1E4EF 1E5EE-1E5EF 1E5FF 1E6E3 1E6E6 1E6EE-1E6EF 1E6F5 1E944-1E94A 1E95E-1E95F
""")
# Punctuation and marks in 8.0 whose category has changed since
EARLIER_CATEGORY = {"\u166d": "Po", "\U000111c9": "Po", "\u1734": "Mn", "\U0001171e": "Mn"}
# Its canonical decompositions and combining classes are those of 9.0, which lacks these of Unicode 18.0.
LATER_NORMALIZED = _characters("""
    5C8-5C9 7FD 897-89F 8CA-8D3 9FE C3C D3B-D3C EBA 1715 1ABF-1AF0 1DF6-1DFA A82C 105C9 105E4 10D24-10D27 10D69-10D6D
    10EAB-10EAC 10ECB-10ECF 10EF0-10EFB 10EFD-10EFF 10F46-10F50 10F82-10F85 11070 1133B 11383 11385 1138E 11391 113C5
    113C7-113C8 113CE-113D0 1145E 11839-1183A 11938 1193D-1193E 11943 119E0 11A34 11A47 11A99 11D42 11D44-11D45 11D97
    11F41-11F42 16121-16128 1612F 16D68-16D6A 16FF0-16FF1 1D127-1D128 1D250-1D252 1D25B-1D25C 1D25F 1D280-1D281 1E08F
    1E130-1E136 1E2AE 1E2EC-1E2EF 1E4EC-1E4EF 1E5EE-1E5EF 1E6E3 1E6E6 1E6EE-1E6EF 1E6F5
""")
_LATER_NORMALIZED = re.compile(f"([{''.join(sorted(LATER_NORMALIZED))}])")
# Its lower case is that of 17.0; Python's may be older.
LATER_CAPITALS = {
    "\u1c89": "\u1c8a",
    "\ua7cb": "\u0264",
    "\ua7cc": "\ua7cd",
    "\ua7ce": "\ua7cf",
    "\ua7d2": "\ua7d3",
    "\ua7d4": "\ua7d5",
    "\ua7da": "\ua7db",
    "\ua7dc": "\u019b",
    **{chr(place): chr(place + 0x20) for place in range(0x10D50, 0x10D66)},
    **{chr(place): chr(place + 0x1B) for place in range(0x16EA0, 0x16EB9)},
}


@dataclass(frozen=True, eq=False)
class Rules:
    """The rules in which the implementations differ."""

    longest_word: int  # in characters; a longer word is [UNK]
    deleted: frozenset[str]  # categories that cleaning deletes
    composes: bool = False  # NFC, after cleaning
    as_tokenizers: bool = False  # Unicode data of `tokenizers` instead of Python's, and its smaller range of Chinese


GOOGLE = Rules(longest_word=200, deleted=frozenset({"Cc", "Cf"}))
TRANSFORMERS = Rules(longest_word=100, deleted=frozenset({"Cc", "Cf", "Cs", "Co", "Cn"}), composes=True)
OURS = Rules(longest_word=200, deleted=frozenset({"Cc", "Cf", "Co"}), as_tokenizers=True)


def split_words(text: str) -> list[str]:
    """Split a text at white space; its ids are the concatenated ids of the parts."""
    return _SEPARATED.findall(text)


@lru_cache(1 << 18)
def category(character: str, rules: Rules) -> str:
    """The general category of a character in an implementation's Unicode data."""
    if rules.as_tokenizers and character in EARLIER_CATEGORY:
        return EARLIER_CATEGORY[character]
    if rules.as_tokenizers and character in LATER_CATEGORY:
        return "Cn"
    return unicodedata.category(character)


def clean(text: str, rules: Rules) -> str:
    """Replace white space by spaces, delete controls, and put spaces around Chinese characters."""
    text = "".join(_clean_character(character, rules) for character in text)
    return unicodedata.normalize("NFC", text) if rules.composes else text


@lru_cache(1 << 18)
def _clean_character(character: str, rules: Rules) -> str:
    kind = category(character, rules)
    if character in "\t\n\r" or kind == "Zs":
        return " "
    if character in "\0\ufffd" or kind in rules.deleted:
        return ""
    return f" {character} " if _is_chinese(character, rules) else character


def lower(word: str, rules: Rules) -> str:
    """Convert to lower case; `tokenizers` does so per character, so a last sigma is not final."""
    if not rules.as_tokenizers:
        return word.lower()
    return "".join(LATER_CAPITALS.get(character) or character.lower() for character in word)


def without_accents(word: str, rules: Rules) -> str:
    """Decompose, and delete marks."""
    decomposed = _decomposed_by_tokenizers(word) if rules.as_tokenizers else unicodedata.normalize("NFD", word)
    return "".join(character for character in decomposed if category(character, rules) != "Mn")


def _decomposed_by_tokenizers(word: str) -> str:
    # A character without decomposition and combining class separates the texts around it.
    parts = _LATER_NORMALIZED.split(word)
    return "".join(part if part in LATER_NORMALIZED else unicodedata.normalize("NFD", part) for part in parts)


def cut(word: str, rules: Rules) -> Iterator[str]:
    """Split off each punctuation character; parts between may be empty."""
    between = ""
    for character in word:
        if _is_punctuation(character, rules):
            yield from (between, character)
            between = ""
        else:
            between += character
    yield between


def _is_punctuation(character: str, rules: Rules) -> bool:
    if character.isascii():
        return "!" <= character <= "~" and not character.isalnum()
    return category(character, rules).startswith("P")


def _is_chinese(character: str, rules: Rules) -> bool:
    if rules.as_tokenizers and ord(character) in CHINESE_ELSEWHERE:
        return False
    return any(ord(character) in each for each in CHINESE)


class Reference:
    """BasicTokenizer and WordpieceTokenizer, with a vocabulary of token -> id."""

    def __init__(self, vocabulary: Mapping[str, int], lowercase: bool, strip_accents: bool, rules: Rules) -> None:
        self._vocabulary, self._rules = vocabulary, rules
        self._lowercase, self._strip_accents = lowercase, strip_accents
        self._longest_token = max(map(len, vocabulary), default=0)
        self._pieces = lru_cache(1 << 17)(self._match)

    def ids(self, text: str) -> list[int]:
        """The ids of a text, without special tokens; their names in text are plain text."""
        return [number for word in self.words(text) for number in self._pieces(word)]

    def words(self, text: str) -> list[str]:
        """The text after BasicTokenizer."""
        words = clean(text, self._rules).split()
        return " ".join(part for word in words for part in cut(self._fold(word), self._rules)).split()

    def _fold(self, word: str) -> str:
        if self._lowercase:
            word = lower(word, self._rules)
        return without_accents(word, self._rules) if self._strip_accents else word

    def _match(self, word: str) -> tuple[int, ...]:
        """Take the longest matching token from the left, repeatedly; [UNK] if a part of the word has none."""
        unknown = (self._vocabulary["[UNK]"],)
        if len(word) > self._rules.longest_word:
            return unknown
        pieces: list[int] = []
        start = 0
        while start < len(word):
            mark = "##" if start else ""
            for end in range(min(len(word), start + self._longest_token), start, -1):
                if (found := self._vocabulary.get(mark + word[start:end])) is not None:
                    pieces.append(found)
                    start = end
                    break
            else:
                return unknown
        return tuple(pieces)


LARGEST_EXPANSION = 4  # most characters from a single one in lower case and decomposed


@dataclass(frozen=True)
class Difference:
    """A row of the table of differences."""

    name: str
    others: tuple[Rules, ...]  # the rules from which ours differ
    is_about: Callable[[str, bool, bool], bool]  # (word, lowercase, strip_accents) -> whether the row applies


def differences(text: str, lowercase: bool, strip_accents: bool, other: Rules) -> list[str]:
    """The names of the rows that apply to a text."""
    words = split_words(text)
    rows = [row for row in DIFFERENCES if other in row.others]
    return [row.name for row in rows if any(row.is_about(word, lowercase, strip_accents) for word in words)]


def _has_a_long_word(word: str, lowercase: bool, strip_accents: bool) -> bool:
    if len(word) * LARGEST_EXPANSION <= TRANSFORMERS.longest_word:
        return False
    lengths = TRANSFORMERS.longest_word, OURS.longest_word
    return any(lengths[0] < len(each) <= lengths[1] for each in _by_google(lowercase, strip_accents).words(word))


@lru_cache
def _by_google(lowercase: bool, strip_accents: bool) -> Reference:
    return Reference({}, lowercase, strip_accents, GOOGLE)


def _is_composed(word: str, lowercase: bool, strip_accents: bool) -> bool:
    if strip_accents:  # composed characters are decomposed again
        return False
    fold = str.lower if lowercase else str
    return fold(clean(word, TRANSFORMERS)) != fold(clean(word, replace(TRANSFORMERS, composes=False)))


def _has_a_final_sigma(word: str, lowercase: bool, strip_accents: bool) -> bool:
    return lowercase and any(each.lower() != "".join(map(str.lower, each)) for each in clean(word, GOOGLE).split())


def _has_later_category(word: str, lowercase: bool, strip_accents: bool) -> bool:
    for character in word:
        by_us, by_python = category(character, OURS), unicodedata.category(character)
        if by_us == by_python:
            continue
        if by_python == "Cf" or (strip_accents and "Mn" in (by_us, by_python)):
            return True
        if "P" in (by_us[0], by_python[0]) and len(word) > 1:  # alone it is a word in both cases
            return True
    return False


def _has_later_decomposition(word: str, lowercase: bool, strip_accents: bool) -> bool:
    later = [character for character in word if character in LATER_NORMALIZED]
    ordered = [character for character in word if unicodedata.combining(character) and not _is_mark(character)]
    return strip_accents and (
        any(map(unicodedata.decomposition, later)) or (len(ordered) > 1 and not set(ordered).isdisjoint(later))
    )


def _is_mark(character: str) -> bool:
    return unicodedata.category(character) == "Mn"


DIFFERENCES = (
    Difference("longest word", (TRANSFORMERS,), _has_a_long_word),
    Difference(
        "private use", (GOOGLE,), lambda word, *_: any(unicodedata.category(character) == "Co" for character in word)
    ),
    Difference("unassigned", (TRANSFORMERS,), lambda word, *_: any(unicodedata.category(c) == "Cn" for c in word)),
    Difference("NFC", (TRANSFORMERS,), _is_composed),
    Difference(
        "Chinese",
        (GOOGLE, TRANSFORMERS),
        lambda word, *_: len(word) > 1 and any(ord(character) in CHINESE_ELSEWHERE for character in word),
    ),
    Difference("final sigma", (GOOGLE, TRANSFORMERS), _has_a_final_sigma),
    Difference("categories", (GOOGLE, TRANSFORMERS), _has_later_category),
    Difference("decompositions", (GOOGLE, TRANSFORMERS), _has_later_decomposition),
    Difference(
        "capitals",
        (GOOGLE, TRANSFORMERS),
        lambda word, lowercase, _: lowercase and any(c in LATER_CAPITALS and c.lower() == c for c in word),
    ),
)
