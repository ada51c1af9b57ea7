"""Loading a tokenizer from its files, whose names identify its kind."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from bertjax.storage.files import read_whole
from bertjax.tokenization import byte_level, entity_map, sentencepiece, wordpiece
from bertjax.tokenization.piece_order import DEBERTA
from bertjax.tokenization.tokenizer import TextRules, Tokenizer


def _load_pieces(path: Path, rules: TextRules) -> Tokenizer:
    content, origin = read_whole(path), f"SentencePiece model {path}"
    content = DEBERTA.numbered(content, origin) if DEBERTA.lacks_ends(content, origin) else content
    return sentencepiece.SentencePiece(content, rules, origin)


_KINDS: dict[str, Callable[[Path, TextRules], Tokenizer]] = {
    wordpiece.VOCABULARY_FILE: wordpiece.WordPiece.load,
    sentencepiece.VOCABULARY_FILE: _load_pieces,
    byte_level.VOCABULARY_FILE: byte_level.ByteLevelBPE.load,
}
# The file that other systems write in addition: it is read if it is the only one.
WHOLE_FILE = byte_level.WHOLE_FILE
VOCABULARY_FILES = tuple(_KINDS)
COMPANIONS = (byte_level.MERGES_FILE, entity_map.FILE)  # files that a vocabulary may have in addition to its own
_BY_SUFFIX = {Path(name).suffix: load for name, load in _KINDS.items()}


def files_with(name: str) -> tuple[str, ...]:
    """The names of all files that the vocabulary with a file `name` must have, with that one first."""
    if name == byte_level.MERGES_FILE:
        return name, byte_level.VOCABULARY_FILE
    if name == WHOLE_FILE:
        return (name,)
    is_of_bytes = Path(name).suffix == Path(byte_level.VOCABULARY_FILE).suffix
    return (name, byte_level.MERGES_FILE) if is_of_bytes else (name,)


def load_tokenizer(path: str | Path, rules: TextRules) -> Tokenizer:
    """Read a `vocab.txt` (WordPiece), `.model` (SentencePiece) or `vocab.json` (byte-level BPE), or a folder with one.

    Raises ValueError naming the file if there is none, or it breaks a rule of its kind.
    """
    path = Path(path)
    if path.is_dir():
        found = [path / name for name in _KINDS if (path / name).is_file()]
        if not found and (path / WHOLE_FILE).is_file():
            found = [path / WHOLE_FILE]
        if len(found) != 1:
            raise ValueError(
                f"vocabulary {path}: the folder holds {' and '.join(f.name for f in found) or 'no vocabulary'}; name "
                f"one file: {', '.join(_KINDS)}"
            )
        path = found[0]
    if path.name == byte_level.MERGES_FILE:
        path = path.with_name(byte_level.VOCABULARY_FILE)
    if not path.is_file():
        raise ValueError(
            f"vocabulary {path}: no such file; give a vocab.txt, spiece.model or vocab.json as data.vocab, or leave it "
            "empty to train one"
        )
    if path.name == WHOLE_FILE:
        return byte_level.WholeFile.load(path, rules)
    return _BY_SUFFIX.get(path.suffix, wordpiece.WordPiece.load)(path, rules)
