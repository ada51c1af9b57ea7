"""Warn of words that `strip_accents` changes: umlauts in German, vowels in Hindi, syllables in Korean."""

from __future__ import annotations

import string
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence

from bertjax.text.sources.registry import KINDS, read_documents
from bertjax.text.sources.source import SourceFile

NOTICEABLE_SHARE = 0.01  # share of the text in words that change

_SAMPLED_FILES = 32
_NAMED_WORDS, _NAMED_CHARACTERS = 3, 40  # in a message
_SAMPLED_CHARACTERS = 20_000  # of each file


def warn_of_stripped_accents(sources: Sequence[Sequence[SourceFile]], recomposes: bool) -> str:
    """Warn (UserWarning) if stripping accents changes much of the text. Returns the warning, or an empty string.

    Samples the sources' files, except English prose. A tokenizer that `recomposes` leaves a Hangul syllable whole;
    others leave it split into its letters.
    """
    files = [file for group in sources for file in group if not KINDS[file.kind].is_english]
    sampled = files[:: -(-len(files) // _SAMPLED_FILES) or 1]
    texts = (text for file in sampled for text in _sample(file))
    words = Counter(word.strip(string.punctuation) for text in texts for word in text.split())
    changed = Counter({word: count for word, count in words.items() if _without_accents(word, recomposes) != word})
    # By characters: in a script without spaces, a word is a sentence.
    share = _characters(changed) / max(_characters(words), 1)
    if share <= NOTICEABLE_SHARE:
        return ""
    named = [word[:_NAMED_CHARACTERS] for word, _ in changed.most_common(_NAMED_WORDS)]
    examples = ", ".join(f"{word} becomes {_spaced(_without_accents(word, recomposes))}" for word in named)
    line = (
        f"data.strip_accents=True changes words that are {share:.1%} of the text ({examples}); set "
        "--data.strip-accents False to keep them, with a vocabulary that keeps them too"
    )
    # stacklevel=1, so that the same line is shown once for the vocabulary and the store.
    warnings.warn(line, stacklevel=1)
    return line


def _characters(words: Counter[str]) -> int:
    return sum(len(word) * count for word, count in words.items())


def _without_accents(word: str, recomposes: bool) -> str:
    if word.isascii():
        return word
    parts = unicodedata.normalize("NFD", word)
    bare = "".join(part for part in parts if unicodedata.category(part) != "Mn")
    return unicodedata.normalize("NFC", bare) if recomposes else bare


def _spaced(bare: str) -> str:
    """A word without accents, with spaces between letters that a terminal would show as one syllable."""
    return bare if unicodedata.is_normalized("NFC", bare) else " ".join(bare)


def _sample(file: SourceFile) -> Iterable[str]:
    remaining = _SAMPLED_CHARACTERS
    for document in read_documents(file):
        yield document.text[:remaining]
        remaining -= len(document.text)
        if remaining <= 0:
            return
