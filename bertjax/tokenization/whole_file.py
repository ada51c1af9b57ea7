"""A byte-level BPE kept as `tokenizer.json` alone, as ModernBERT's is: with rules and added tokens of its own."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers

from bertjax.tokenization.byte_level import CHUNKS, SPECIAL_TOKENS, UNCOMMON_SPACE, byte_letters, special_ids
from bertjax.tokenization.chunks import ChunkEncoder
from bertjax.tokenization.tokenizer import TextRules, Tokenizer, continuations

VOCABULARY_FILE = "tokenizer.json"


class WholeFile(Tokenizer):
    """What the library makes of the file, normalisation and added tokens included.

    Added tokens that are not special, such as runs of spaces, are found in text; special ones are not, so that a corpus
    cannot forge them.
    """

    named, kind = "tokenizer.json of a byte-level BPE", "byte_bpe"

    def __init__(self, content: bytes, rules: TextRules, origin: str = "tokenizer.json") -> None:
        """Read the file's bytes; `origin` names them in messages.

        Of `rules` it must be asked neither for lower case nor for accents to be stripped, which the file says itself;
        whether a space is put in front and how special tokens are named is taken from the file. Raises ValueError for
        these, for a file that cannot be read, of another kind, with gaps between ids, or without a special token.
        """
        about = _read(content, origin)
        if rules.lowercase or rules.strip_accents:
            raise ValueError(
                f"data.lowercase={rules.lowercase}, data.strip_accents={rules.strip_accents}: {origin} normalises by "
                "rules of its own; set both to False"
            )
        self.files = {VOCABULARY_FILE: content}
        self._whole = tokenizers.Tokenizer.from_str(content.decode())
        ids = self._whole.get_vocab(with_added_tokens=True)
        self.tokens = sorted(ids, key=lambda token: ids[token])
        if [ids[token] for token in self.tokens] != list(range(len(ids))):
            raise ValueError(f"{origin}: its ids are not numbered from 0 without gaps")
        named = next((names for names, roles in SPECIAL_TOKENS.items() if roles["cls"] in ids), rules.special_tokens)
        space = bool(_byte_level(about)["add_prefix_space"])
        self.rules = replace(rules, prefix_space=space, special_tokens=named)
        self.special = special_ids(ids, self.rules, f"{origin}: no {{}} among its tokens")
        self._added = {token["content"]: token["special"] for token in about["added_tokens"]}
        plain = about | {"added_tokens": [token for token in about["added_tokens"] if not token["special"]]}
        plain |= {"post_processor": None, "truncation": None, "padding": None}
        encoder = tokenizers.Tokenizer.from_str(json.dumps(plain))
        self._chunks = ChunkEncoder(encoder, CHUNKS, whole=UNCOMMON_SPACE, before=" " * space)

    @classmethod
    def load(cls, path: Path, rules: TextRules) -> WholeFile:
        """Read a `tokenizer.json`. Raises ValueError as the class does."""
        return cls(path.read_bytes(), rules, origin=f"tokenizer {path}")

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
        """bool [vocab_size]: which tokens go on with a word; see `continues_word`."""
        return continuations(self.surfaces, self.tokens, byte_letters()[ord(" ")])

    @cached_property
    def backend(self) -> tokenizers.Tokenizer:
        """The tokenizer to export: as the file has it, with [CLS] and [SEP], and a mask that takes the space before."""
        return self._with_special_tokens(tokenizers.Tokenizer.from_str(self.files[VOCABULARY_FILE].decode()))


def _read(content: bytes, origin: str) -> dict[str, Any]:
    """The JSON of a byte-level BPE. Raises ValueError for anything else."""
    try:
        about = json.loads(content)
        model, added = about["model"], about["added_tokens"]
        tokenizers.Tokenizer.from_str(content.decode())
        kind = model["type"]
        assert isinstance(added, list)
    except Exception as error:  # the library raises its own class, whatever is wrong
        raise ValueError(f"{origin}: no tokenizer.json that the library reads ({error})") from None
    if kind != "BPE" or not _byte_level(about):
        raise ValueError(f"{origin}: its model is {kind!r}; bertjax reads a byte-level BPE from this file alone")
    return about


def _byte_level(about: dict[str, Any]) -> dict[str, Any]:
    """The step that cuts text into bytes; empty if there is none."""
    cut = about.get("pre_tokenizer") or {}
    steps = cut.get("pretokenizers", [cut])
    return next((step for step in steps if step.get("type") == "ByteLevel"), {})
