"""Combining marks that `strip_accents` deletes although they carry meaning: vowels in Hindi, hamza in Arabic."""

from __future__ import annotations

import unicodedata
import warnings
from collections import Counter
from collections.abc import Iterable, Sequence

from bertjax.text.sources.registry import KINDS, read_documents
from bertjax.text.sources.source import SourceFile

NOTICEABLE_SHARE = 0.001  # of the characters

_SAMPLED_FILES = 32
_SAMPLED_CHARACTERS = 20_000  # of each file
# In these scripts BERT's uncased models strip accents on purpose; COMBINING marks mostly belong to them.
_MEANT_TO_BE_STRIPPED = ("LATIN", "GREEK", "COMBINING", "VARIATION")
_VIETNAMESE = range(0x1EA0, 0x1EFA)  # letters of the Latin script that no other language has


def lost_marks(text: str) -> Counter[str]:
    """How many characters lose a mark that carries meaning when accents are stripped, by the name of their script."""
    lost: Counter[str] = Counter()
    for character, count in Counter(text).items():
        if _loses_meaning(character):
            lost[_script(character)] += count
    return lost


def warn_of_lost_marks(files: Sequence[SourceFile]) -> None:
    """Warn (UserWarning) if stripping accents would delete meaning from the text; looks at a sample of the files."""
    files = [file for file in files if not KINDS[file.kind].is_english]
    chosen = files[:: -(-len(files) // _SAMPLED_FILES) or 1]
    lost: Counter[str] = Counter()
    characters = 0
    for file in chosen:
        for text in _beginning(document.text for document in read_documents(file)):
            lost += lost_marks(text)
            characters += len(text)
    if lost.total() <= NOTICEABLE_SHARE * characters:
        return
    share = lost.total() / characters
    scripts = ", ".join(f"{script} {count / characters:.1%}" for script, count in lost.most_common(5))
    warnings.warn(
        f"data.strip_accents=True deletes marks that carry meaning from {share:.1%} of the characters (by script: "
        f"{scripts}; in a sample of {characters:,}); set data.strip_accents=False, with a vocabulary made that way",
        stacklevel=2,
    )


def _beginning(texts: Iterable[str]) -> Iterable[str]:
    left = _SAMPLED_CHARACTERS
    for text in texts:
        yield text[:left]
        left -= len(text)
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
