"""Warn of accents that `strip_accents` deletes: umlauts in German, and marks with meaning, such as Hindi vowels."""

from __future__ import annotations

import string
import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence

from bertjax.text.sources.registry import KINDS, read_documents
from bertjax.text.sources.source import SourceFile

NOTICEABLE_SHARE = 0.001  # of the characters
NOTICEABLE_WORDS = 0.01  # share of the words

_SAMPLED_FILES = 32
_NAMED_WORDS, _NAMED_CHARACTERS = 3, 40  # in a message
_SAMPLED_CHARACTERS = 20_000  # of each file
# Scripts whose accents BERT's uncased models strip on purpose; COMBINING marks mostly belong to them.
_MEANT_TO_BE_STRIPPED = ("LATIN", "GREEK", "COMBINING", "VARIATION")
_VIETNAMESE = range(0x1EA0, 0x1EFA)  # letters of the Latin script that no other language has


def lost_marks(text: str) -> Counter[str]:
    """Count the characters that lose a mark with meaning when accents are stripped, by script."""
    lost: Counter[str] = Counter()
    for character, count in Counter(text).items():
        if _loses_meaning(character):
            lost[_script(character)] += count
    return lost


def warn_of_stripped_accents(sources: Sequence[Sequence[SourceFile]]) -> str:
    """Warn (UserWarning) if stripping accents changes much of the text. Returns the line, or an empty one.

    Samples the sources' files, without those of English prose.
    """
    files = [file for group in sources for file in group if not KINDS[file.kind].is_english]
    texts = [text for file in files[:: -(-len(files) // _SAMPLED_FILES) or 1] for text in _sample(file)]
    line = _lost_marks_line(texts) or _changed_words_line(texts)
    if line:
        # stacklevel=1, so that the same line is shown once for the vocabulary and the store.
        warnings.warn(line, stacklevel=1)
    return line


def _lost_marks_line(texts: Sequence[str]) -> str:
    lost = sum(map(lost_marks, texts), Counter[str]())
    characters = sum(map(len, texts))
    if lost.total() <= NOTICEABLE_SHARE * characters:
        return ""
    share = lost.total() / characters
    scripts = ", ".join(f"{script} {count / characters:.1%}" for script, count in lost.most_common(5))
    return (
        f"data.strip_accents=True deletes marks that carry meaning from {share:.1%} of the characters (by script: "
        f"{scripts}; in a sample of {characters:,}); set data.strip_accents=False, with a vocabulary made that way"
    )


def _changed_words_line(texts: Sequence[str]) -> str:
    words = Counter(word.strip(string.punctuation) for text in texts for word in text.split())
    changed = Counter({word: count for word, count in words.items() if _without_accents(word) != word})
    share = changed.total() / max(words.total(), 1)
    if share <= NOTICEABLE_WORDS:
        return ""
    named = [word[:_NAMED_CHARACTERS] for word, _ in changed.most_common(_NAMED_WORDS)]
    examples = ", ".join(f"{word} becomes {_without_accents(word)}" for word in named)
    return (
        f"data.strip_accents=True changes {share:.1%} of the words ({examples}); set --data.strip-accents False to "
        "keep them, with a vocabulary made that way"
    )


def _without_accents(word: str) -> str:
    if word.isascii():
        return word
    parts = unicodedata.normalize("NFD", word)
    return unicodedata.normalize("NFC", "".join(part for part in parts if unicodedata.category(part) != "Mn"))


def _sample(file: SourceFile) -> Iterable[str]:
    left = _SAMPLED_CHARACTERS
    for document in read_documents(file):
        yield document.text[:left]
        left -= len(document.text)
        if left <= 0:
            return


def _loses_meaning(character: str) -> bool:
    if unicodedata.category(character)[0] not in "LM":
        return False
    if not any(unicodedata.category(part) == "Mn" for part in unicodedata.normalize("NFD", character)):
        return False
    return _script(character) not in _MEANT_TO_BE_STRIPPED


def _script(character: str) -> str:
    """The first word of the character's Unicode name, e.g. DEVANAGARI."""
    return "VIETNAMESE" if ord(character) in _VIETNAMESE else unicodedata.name(character, "UNNAMED").split()[0]
