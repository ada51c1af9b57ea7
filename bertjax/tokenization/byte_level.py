"""Byte-level BPE (Radford et al. 2019; RoBERTa): text as bytes, so that no character is ever unknown.

`backend` is the model in `tokenizers`, which is what is exported, and `encode` gives its ids. By `prefix_space` a text
begins with a space as every other word does, so that a word has one spelling in every position. The published RoBERTa
has it off: there the first word of a text has no space in front, and that of a later sentence has one.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any, NotRequired, TypedDict

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers

from bertjax.storage.files import read_whole
from bertjax.storage.json_documents import Count, parse_json
from bertjax.tokenization.chunks import SEPARATOR, ChunkEncoder
from bertjax.tokenization.tokenizer import TextRules, Tokenizer, continuations

VOCABULARY_FILE, MERGES_FILE = "vocab.json", "merges.txt"
WHOLE_FILE = "tokenizer.json"  # has all of a tokenizer, as ModernBERT's has
# By `TextRules.special_tokens`, in the order of the ids that training gives them.
SPECIAL_TOKENS = {
    "<s>": {"cls": "<s>", "pad": "<pad>", "sep": "</s>", "unk": "<unk>", "mask": "<mask>"},
    "[CLS]": {"unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "pad": "[PAD]", "mask": "[MASK]"},
}

# Where white space is more than single spaces, how it is cut depends on what follows: such a sentence is not cut.
CHUNKS = re.compile(f" ?[^ {SEPARATOR}]+|{SEPARATOR}")
UNCOMMON_SPACE = re.compile(rf"\s\s|[^\S ]|[\x1c-\x1f]|\s(?:{SEPARATOR}|$)")


def byte_letters() -> list[str]:
    """The character that represents each byte: itself if it prints in Latin-1, else one from U+0100 on, in order."""
    prints = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in prints else chr(next(others)) for byte in range(0x100)]


def special_ids(ids: Mapping[str, int], rules: TextRules, origin: str, where: str) -> dict[str, int]:
    """Ids of the special tokens by role. Raises ValueError if the vocabulary lacks one.

    `origin` names the files in the message, and `where` the part of them that should have the tokens.
    """
    names = SPECIAL_TOKENS[rules.special_tokens]
    missing = [name for name in names.values() if name not in ids]
    if missing:
        others = next(key for key in SPECIAL_TOKENS if key != rules.special_tokens)
        advice = f"; set data.special_tokens={others!r}" if others in ids else "; give a vocabulary that has them"
        raise ValueError(f"{origin}: no {', '.join(missing)} {where}{advice}")
    return {role: ids[name] for role, name in names.items()}


class ByteLevelBPE(Tokenizer):
    """RoBERTa's `vocab.json` and `merges.txt`."""

    named, kind = "byte-level BPE", "byte_bpe"

    def __init__(self, vocabulary: bytes, merges: bytes, rules: TextRules, origin: str = "byte-level BPE") -> None:
        """Read the two files' bytes; `origin` names them in messages.

        Raises ValueError if one of them cannot be read, they do not fit, or a special token is missing.
        """
        self.rules = rules
        self.files = {VOCABULARY_FILE: vocabulary, MERGES_FILE: merges}
        self._ids = _read_vocabulary(vocabulary, origin)
        self.tokens = list(self._ids)
        self._merges = _read_merges(merges, self._ids, origin)
        self.special = special_ids(self._ids, rules, origin, f"in {VOCABULARY_FILE}")
        _refuse_unknown(rules, origin)
        self._chunks = ChunkEncoder(self._tokenizer(), CHUNKS, whole=UNCOMMON_SPACE, before=" " * rules.prefix_space)

    @classmethod
    def load(cls, path: Path, rules: TextRules) -> ByteLevelBPE:
        """Read `vocab.json` and the `merges.txt` next to it. Raises ValueError as the class does."""
        merges = path.with_name(MERGES_FILE)
        if not merges.is_file():
            raise ValueError(f"byte-level BPE {path}: no {MERGES_FILE} next to it; both are needed")
        return cls(read_whole(path), read_whole(merges), rules, origin=f"byte-level BPE {path}")

    @cached_property
    def surfaces(self) -> list[bytes]:
        """The bytes of each token, without a space in front."""
        byte = {letter: number for number, letter in enumerate(byte_letters())}
        special = set(self.special.values())
        return [
            b"" if n in special or not set(token) <= byte.keys() else bytes(map(byte.__getitem__, token)).lstrip(b" ")
            for n, token in enumerate(self.tokens)
        ]

    @cached_property
    def is_continuation(self) -> np.ndarray:
        """bool [vocab_size]: which tokens continue with a word; see `continues_word`."""
        return continuations(self.surfaces, self.tokens, byte_letters()[ord(" ")])

    @cached_property
    def backend(self) -> tokenizers.Tokenizer:
        """The tokenizer to export: knows special tokens in text, adds <s> and </s>, types 0 and 1 for a pair."""
        return self._with_special_tokens(self._tokenizer())

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text for ids, without the space that `rules.prefix_space` put in front of the first word."""
        return super().decode(ids, skip_special_tokens).removeprefix(" " * self.rules.prefix_space)

    def _tokenizer(self) -> tokenizers.Tokenizer:
        tokenizer = tokenizers.Tokenizer(models.BPE(self._ids, self._merges))
        if self.rules.strip_accents or self.rules.lowercase:
            tokenizer.normalizer = normalizer(self.rules)
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=self.rules.prefix_space)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer


def _refuse_unknown(rules: TextRules, origin: str) -> None:
    if rules.unknown != "words":
        raise ValueError(f"data.unknown={rules.unknown!r}: {origin} knows every byte; the option is for WordPiece")


def normalizer(rules: TextRules) -> normalizers.Normalizer:
    """Accents and case by the rules; RoBERTa changes neither."""
    steps: list[normalizers.Normalizer] = []
    if rules.strip_accents:
        steps += [normalizers.NFD(), normalizers.StripAccents()]
    if rules.lowercase:
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence(steps)


def _read_vocabulary(content: bytes, origin: str) -> dict[str, int]:
    """Token -> id in order of the ids. Raises ValueError unless they count from 0 without gaps."""
    reason = "it does not number its tokens from 0 without gaps"
    found: dict[str, int] = parse_json(content, f"{origin}: {VOCABULARY_FILE}", dict[str, Count], remedy=reason)
    if sorted(found.values()) != list(range(len(found))):
        raise ValueError(f"{origin}: {VOCABULARY_FILE}: {reason}")
    return dict(sorted(found.items(), key=lambda item: item[1]))


def _read_merges(content: bytes, ids: dict[str, int], origin: str) -> list[tuple[str, str]]:
    """The pairs that are merged, first ones first. Raises ValueError for one that the vocabulary does not know."""
    try:
        lines = content.decode("utf-8").split("\n")
    except UnicodeDecodeError as error:
        raise ValueError(f"{origin}: {MERGES_FILE} is not UTF-8 at byte {error.start}") from None
    merges = []
    for number, line in enumerate(lines, 1):
        if line.startswith("#version") or not line.strip():
            continue
        pair = line.rstrip("\r").split(" ")
        if len(pair) != 2 or not {pair[0], pair[1], "".join(pair)} <= ids.keys():
            raise ValueError(f"{origin}: line {number} of {MERGES_FILE} is {line!r}, no pair of {VOCABULARY_FILE}")
        merges.append((pair[0], pair[1]))
    return merges


class WholeFile(Tokenizer):
    """What the library makes of the file, normalisation and added tokens included.

    Added tokens that are not special, such as runs of spaces, are found in text; special ones are not, so that a corpus
    cannot forge them.
    """

    named, kind = "tokenizer.json of a byte-level BPE", "byte_bpe"

    def __init__(self, content: bytes, rules: TextRules, origin: str = "tokenizer.json") -> None:
        """Read the file's bytes; `origin` names them in messages.

        `rules.lowercase` and `rules.strip_accents` must be False: the file normalises. Prefix space and names of
        special tokens are read from the file. Raises ValueError otherwise, and for a file that cannot be read, of
        another kind, with gaps between ids, or without a special token.
        """
        about = _read(content, origin)
        if rules.lowercase or rules.strip_accents:
            raise ValueError(
                f"data.lowercase={rules.lowercase}, data.strip_accents={rules.strip_accents}: {origin} normalises by "
                "rules of its own; set both to False"
            )
        _refuse_unknown(rules, origin)
        self.files = {WHOLE_FILE: content}
        self._whole = tokenizers.Tokenizer.from_str(content.decode())
        ids = self._whole.get_vocab(with_added_tokens=True)
        self.tokens = sorted(ids, key=lambda token: ids[token])
        if [ids[token] for token in self.tokens] != list(range(len(ids))):
            raise ValueError(f"{origin}: its ids are not numbered from 0 without gaps")
        named = next((names for names, roles in SPECIAL_TOKENS.items() if roles["cls"] in ids), rules.special_tokens)
        space = bool(_byte_level(about).get("add_prefix_space", True))
        self.rules = replace(rules, prefix_space=space, special_tokens=named)
        self.special = special_ids(ids, self.rules, origin, "among its tokens")
        self._added = {token["content"]: token["special"] for token in about["added_tokens"]}
        encoder = tokenizers.Tokenizer.from_str(json.dumps(_unforgeable(about)))
        whole = UNCOMMON_SPACE if _can_be_cut(about) else re.compile("")
        self._chunks = ChunkEncoder(encoder, CHUNKS, whole=whole, before=" " * space)

    @classmethod
    def load(cls, path: Path, rules: TextRules) -> WholeFile:
        """Read a `tokenizer.json`. Raises ValueError as the class does."""
        return cls(read_whole(path), rules, origin=f"tokenizer {path}")

    @cached_property
    def surfaces(self) -> list[bytes]:
        """The bytes of each token, without a space in front; of special and unused ones none."""
        byte = {letter: number for number, letter in enumerate(byte_letters())}

        def surface(token: str) -> bytes:
            if token in self._added:
                return b"" if self._added[token] else token.encode().lstrip(b" ")
            return bytes(map(byte.__getitem__, token)).lstrip(b" ") if set(token) <= byte.keys() else b""

        return list(map(surface, self.tokens))

    @cached_property
    def is_continuation(self) -> np.ndarray:
        """bool [vocab_size]: which tokens continue with a word; see `continues_word`."""
        return continuations(self.surfaces, self.tokens, byte_letters()[ord(" ")])

    @cached_property
    def backend(self) -> tokenizers.Tokenizer:
        """The tokenizer to export: as the file has it, with [CLS] and [SEP], and a mask that takes the space before."""
        made = tokenizers.Tokenizer.from_str(self.files[WHOLE_FILE].decode())
        # What the file does to rows is of whoever wrote it; a text's own ids are exported.
        made.no_truncation()
        made.no_padding()
        return self._with_special_tokens(made)


_UNREAD = "cannot be read as a tokenizer.json"


class _AddedToken(TypedDict):
    content: str
    special: bool


class _Model(TypedDict):
    type: str
    continuing_subword_prefix: NotRequired[str | None]
    end_of_word_suffix: NotRequired[str | None]


class _Step(TypedDict):
    """A normalizer or pre-tokenizer, or several in a sequence."""

    type: NotRequired[str]
    normalizers: NotRequired[list[_Step]]
    pretokenizers: NotRequired[list[_Step]]
    add_prefix_space: NotRequired[bool]


class _Whole(TypedDict):
    """The parts of a `tokenizer.json` that are read in addition to those that the library reads."""

    model: _Model
    added_tokens: list[_AddedToken]
    normalizer: NotRequired[_Step | None]
    pre_tokenizer: NotRequired[_Step | None]


def _read(content: bytes, origin: str) -> dict[str, Any]:
    """The JSON of a byte-level BPE. Raises ValueError for anything else."""
    about: dict[str, Any] = parse_json(content, origin, _Whole, remedy=f"it {_UNREAD}")
    for key in ("continuing_subword_prefix", "end_of_word_suffix"):
        if marked := about["model"].get(key):  # the library ends the process where the prefix is no part of a token
            raise ValueError(f"{origin}: model.{key} is {marked!r}: its pieces are marked, and those of bytes are not")
    try:
        tokenizers.Tokenizer.from_str(content.decode())
    except Exception as error:  # the library raises its own class, whatever is wrong
        raise ValueError(f"{origin}: {_UNREAD} ({error})") from None
    kind = about["model"]["type"]
    if kind != "BPE" or not _byte_level(about):
        raise ValueError(f"{origin}: its model is {kind!r}; from tokenizer.json bertjax reads byte-level BPE only")
    return about


def _byte_level(about: Mapping[str, Any]) -> dict[str, Any]:
    """The step that cuts text into bytes; empty if there is none."""
    cut = about.get("pre_tokenizer") or {}
    return next((step for step in _steps(cut, "pretokenizers") if step.get("type") == "ByteLevel"), {})


def _steps(about: Mapping[str, Any] | None, key: str) -> list[dict[str, Any]]:
    """The steps of a normaliser or pre-tokeniser, which may be a sequence of them under `key`, or none."""
    if not about:
        return []
    return about.get(key, [about])


def _unforgeable(about: Mapping[str, Any]) -> dict[str, Any]:
    """The file's JSON where no text spells a special token, and no token is added around a text.

    Every added token stays, since the library numbers those that are not in the model's vocabulary by their order.
    """
    pieces = about["model"]["vocab"]
    added = [
        token | {"content": f"{SEPARATOR}{token['id']}"} if token["special"] else token
        for token in about["added_tokens"]
        if not token["special"] or token["content"] not in pieces
    ]
    return {**about, "added_tokens": added, "post_processor": None, "truncation": None, "padding": None}


# Normalisers that change nothing of a boundary before a single space.
_LOCAL_NORMALIZERS = ("NFC", "NFKC", "NFD", "NFKD", "Lowercase")


def _can_be_cut(about: Mapping[str, Any]) -> bool:
    """Whether text that is cut by CHUNKS surely has the ids of the whole text.

    So it is with the cutting of GPT-2, which ends a word before a single space, unless another step looks over a space.
    """
    byte_level = _byte_level(about)
    found = [token for token in about["added_tokens"] if not token["special"]]
    return (
        all(step["type"] in _LOCAL_NORMALIZERS for step in _steps(about.get("normalizer"), "normalizers"))
        and about["pre_tokenizer"]["type"] == "ByteLevel"
        and byte_level.get("use_regex", True)
        and not (byte_level["add_prefix_space"] and found)  # the library puts no space before a token that it added
        and not any(token["lstrip"] or token["rstrip"] or _spans_a_space(token["content"]) for token in found)
    )


def _spans_a_space(content: str) -> bool:
    """Whether a text with this in it may have single spaces alone, and so be cut."""
    return " " in content and not re.search(r"\s\s", content)
