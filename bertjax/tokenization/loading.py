"""Load a tokenizer from its files, whose names determine its kind."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from bertjax.storage.files import read_whole
from bertjax.storage.json_documents import parse_json
from bertjax.tokenization import artefact, byte_level, entity_map, sentencepiece, wordpiece
from bertjax.tokenization.tokenizer import ROLES, ROLES_FILE, TextRules, Tokenizer

_KINDS: dict[str, Callable[[Path, TextRules], Tokenizer]] = {
    wordpiece.VOCABULARY_FILE: wordpiece.WordPiece.load,
    sentencepiece.VOCABULARY_FILE: sentencepiece.SentencePiece.load,
    byte_level.VOCABULARY_FILE: byte_level.ByteLevelBPE.load,
    artefact.FILE: lambda path, _: load_artefact(path),
}
VOCABULARY_FILES = tuple(_KINDS)
# Files that may accompany a vocabulary
COMPANIONS = (byte_level.MERGES_FILE, entity_map.FILE, ROLES_FILE, "tokenizer_config.json")
_BY_SUFFIX = {Path(name).suffix: load for name, load in _KINDS.items() if name != artefact.FILE}

# Names of special tokens in order of preference, for an artefact without `special_tokens_map.json`
_NAMES = {
    "pad": ("[PAD]", "<pad>", "<|pad|>"),
    "unk": ("[UNK]", "<unk>"),
    "cls": ("[CLS]", "<cls>", "<s>", "<bos>", "<|begin_of_text|>"),
    "sep": ("[SEP]", "<sep>", "</s>", "<eos>", "<|end_of_text|>"),
    "mask": ("[MASK]", "<mask>", "<|mask|>"),
}
# Keys of a special_tokens_map.json or tokenizer_config.json by role, in order of preference
_KEYS = {role: (f"{role}_token",) for role in ROLES} | {
    "cls": ("cls_token", "bos_token"),
    "sep": ("sep_token", "eos_token"),
}


def files_with(name: str) -> tuple[str, ...]:
    """The names of all files that a vocabulary with the file `name` must have, beginning with `name`."""
    if name == byte_level.MERGES_FILE:
        return name, byte_level.VOCABULARY_FILE
    is_bytes = name != artefact.FILE and Path(name).suffix == Path(byte_level.VOCABULARY_FILE).suffix
    return (name, byte_level.MERGES_FILE) if is_bytes else (name,)


def load_tokenizer(path: str | Path, rules: TextRules) -> Tokenizer:
    """Load a `tokenizer.json`, `vocab.txt`, `.model` or `vocab.json`, or a folder with one of them.

    A `tokenizer.json` has its own rules; `rules` are for the other kinds. Raises ValueError with the file's name if it
    is missing or invalid.
    """
    path = Path(path)
    if path.is_dir():
        matches = [path / name for name in VOCABULARY_FILES if (path / name).is_file()]
        # A tokenizer.json next to the files of another kind is the same vocabulary.
        if len(matches) > 1 and matches[-1].name == artefact.FILE:
            matches = matches[-1:]
        if len(matches) != 1:
            raise ValueError(
                f"vocabulary {path}: the folder holds {' and '.join(f.name for f in matches) or 'no vocabulary'}; name "
                f"one file: {', '.join(VOCABULARY_FILES)}"
            )
        path = matches[0]
    if path.name == byte_level.MERGES_FILE:
        path = path.with_name(byte_level.VOCABULARY_FILE)
    if not path.is_file():
        raise ValueError(
            f"vocabulary {path}: no such file; give a tokenizer.json, vocab.txt, spiece.model or vocab.json as "
            "data.vocab, hf:NAME for a tokenizer of the Hugging Face Hub, or leave it empty to train one"
        )
    load = _KINDS.get(path.name) or _BY_SUFFIX.get(path.suffix, wordpiece.WordPiece.load)
    return load(path, rules)


def load_artefact(path: Path) -> Tokenizer:
    """Load a `tokenizer.json`, with roles from the files next to it. Raises ValueError like `make_tokenizer`."""
    role_tokens: dict[str, Any] = {}
    for name in ("tokenizer_config.json", ROLES_FILE):
        if (file := path.with_name(name)).is_file():
            role_tokens |= parse_json(read_whole(file), str(file), dict[str, Any], remedy="get the file again")
    entities = path.with_name(entity_map.FILE)
    return make_tokenizer(
        read_whole(path), role_tokens, f"tokenizer {path}", read_whole(entities) if entities.is_file() else b""
    )


def make_tokenizer(content: bytes, role_tokens: Mapping[str, Any], origin: str, entities: bytes = b"") -> Tokenizer:
    """Make a tokenizer from the content of a `tokenizer.json`.

    `role_tokens` maps Hugging Face's keys, such as `cls_token`, to a token or an object whose `content` is one; a
    missing role is assigned to a token with a usual name. Raises ValueError if the file is invalid or a role has no
    token, and like `Tokenizer`.
    """
    backend, document = artefact.read_artefact(content, origin)
    special: dict[str, int] = {}
    roles: dict[str, str] = {}
    unknown = artefact.unknown_token(document)
    # An export has its entity map in the normalizer; the file next to it is only for people.
    if [step.get("type") for step in artefact.steps(document, "normalizer")] != ["BertNormalizer"]:
        entities = b""
    for role, keys in _KEYS.items():
        tokens: list[Any] = [unknown] if role == "unk" else []
        tokens += [token.get("content") if isinstance(token := role_tokens.get(key), dict) else token for key in keys]
        for token in (*tokens, *_NAMES[role]):
            if isinstance(token, str) and (number := backend.token_to_id(token)) is not None:
                special[role], roles[f"{role}_token"] = number, token
                break
    added = {token.content for token in backend.get_added_tokens_decoder().values()}
    backend.add_special_tokens([token for token in roles.values() if token not in added])
    files = {artefact.FILE: content, ROLES_FILE: json.dumps(roles, ensure_ascii=False, indent=1).encode()}
    try:
        return Tokenizer(backend, special, files, origin=origin, entities=entities)
    except ValueError:
        raise
    except Exception as error:  # the library raises its own class if text cannot be encoded
        raise ValueError(f"{origin}: it cannot encode text ({error}); get the file again") from None
