"""The interface of every kind of tokenizer: text to ids, and the properties of each id.

Ids are positions in `tokens`. A store, a run and an export keep a tokenizer as its `files` with its `TextRules`.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields
from functools import cached_property
from typing import Any, ClassVar, Literal

import numpy as np
import tokenizers
from tokenizers import processors

from bertjax.config import DataConfig
from bertjax.tokenization.chunks import ChunkEncoder

ROLES = ("pad", "unk", "cls", "sep", "mask")
RUNNING_TEXT_VERSION = 1  # of running text without `prefix_space`; a change makes other stores

# Scripts written without spaces between words: there every piece is taken as a word, as multilingual BERT does.
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "HALFWIDTH KATAKANA", "YI ")
_UNSPACED_LEADS = range(0xE4, 0xEA)  # first bytes in UTF-8 of U+4000 to U+9FFF
_BEFORE = ("a", ".")  # in any text; tokens hardly go over both of them into what follows


@dataclass(frozen=True)
class TextRules:
    """How text is normalised before its pieces are looked up."""

    lowercase: bool
    strip_accents: bool
    unknown: Literal["words", "characters"] = "words"  # what is [UNK]: a word with an unknown character, or that alone
    prefix_space: bool = True  # byte-level BPE: the first word of a text has a space in front, as every other word has
    special_tokens: Literal["<s>", "[CLS]"] = "<s>"  # byte-level BPE: RoBERTa's names of special tokens, or BERT's

    @classmethod
    def of(cls, data: DataConfig) -> TextRules:
        """The rules of a config."""
        return cls(data.lowercase, data.strip_accents, data.unknown, data.prefix_space, data.special_tokens)

    @classmethod
    def from_dict(cls, about: Mapping[str, Any]) -> TextRules:
        """The rules in a JSON object that may have other keys too."""
        return cls(**{field.name: about[field.name] for field in fields(cls) if field.name in about})

    def described(self) -> dict[str, Any]:
        """The rules as JSON; one that was added later is left out at its default, so that fingerprints last."""
        later = {field.name: field.default for field in fields(self) if field.default is not MISSING}
        return {name: value for name, value in asdict(self).items() if name not in later or value != later[name]}


def refuse_bare_start(rules: TextRules, origin: str) -> None:
    """Raise ValueError where a text is to begin without a space; for kinds of tokenizers that do not support it."""
    if not rules.prefix_space:
        raise ValueError(f"data.prefix_space=False: {origin} has no such rule; it is byte-level BPE's option")


class Tokenizer(ABC):
    """A vocabulary and how text is cut into it. Subclasses set `tokens`, `special`, `rules`, `files` and `_chunks`."""

    named: ClassVar[str]  # the name of the kind in messages
    kind: str  # as `DataConfig.tokenizer` names it
    tokens: list[str]  # as the vocabulary's own files spell them
    special: dict[str, int]  # the ids of pad, unk, cls, sep and mask
    rules: TextRules
    files: dict[str, bytes]  # what it is kept as; the first names the others' folder
    _chunks: ChunkEncoder

    @property
    @abstractmethod
    def surfaces(self) -> list[bytes]:
        """The text of each token in UTF-8, without a mark for the beginning of a word; empty for special tokens."""

    @property
    @abstractmethod
    def is_continuation(self) -> np.ndarray:
        """bool [vocab_size]: which tokens continue the word before them."""

    @property
    @abstractmethod
    def backend(self) -> tokenizers.Tokenizer:
        """The tokenizer to export: knows special tokens in text, adds [CLS] and [SEP], types 0 and 1 for a pair."""

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return len(self.tokens)

    @property
    def pad_id(self) -> int:
        """The id of the padding token."""
        return self.special["pad"]

    @property
    def unk_id(self) -> int:
        """The id of the unknown token."""
        return self.special["unk"]

    @property
    def cls_id(self) -> int:
        """The id of the token that begins a sequence."""
        return self.special["cls"]

    @property
    def sep_id(self) -> int:
        """The id of the token that ends a segment."""
        return self.special["sep"]

    @property
    def mask_id(self) -> int:
        """The id of the mask token."""
        return self.special["mask"]

    @property
    def main_file(self) -> str:
        """The name of the file that `load_tokenizer` is given."""
        return next(iter(self.files))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over its files and rules: equal if and only if text gets equal ids."""
        rules = json.dumps(self.rules.described(), sort_keys=True).encode()
        return hashlib.sha256(b"".join(self.files.values()) + rules).hexdigest()

    @cached_property
    def shown(self) -> list[str]:
        """Each token for display: special ones as [MASK], ## before one that continues a word, invalid UTF-8 as U+FFFD.

        A token that is only a space is shown as it is in the vocabulary.
        """
        names = [
            ("##" if continues else "") + surface.decode(errors="replace") or token
            for token, surface, continues in zip(self.tokens, self.surfaces, self.is_continuation.tolist(), strict=True)
        ]
        for role, number in self.special.items():
            names[number] = f"[{role.upper()}]"
        return names

    def encode(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode sentences without special tokens: (ids uint32 [tokens], lengths int64 [sentences]).

        Text that spells a special token is plain text: a corpus cannot forge a [MASK]. A sentence of which normalising
        leaves nothing has length 0. Raises ValueError for a lone surrogate.
        """
        return self._chunks.encode(sentences)

    def encode_sentences(self, sentences: Sequence[str], bare: Sequence[bool] | None = None) -> list[np.ndarray]:
        """As `encode`, or with `bare` as `encode_running`, one array of ids per sentence."""
        ids, lengths = self.encode(sentences) if bare is None else self.encode_running(sentences, bare)
        return np.split(ids, np.cumsum(lengths)[:-1]) if len(sentences) else []

    def encode_behind(self, texts: Sequence[str]) -> list[np.ndarray]:
        """The ids of texts right behind other text, with no space between that they do not have: uint32 [tokens] each.

        SentencePiece begins a text with a space, as does byte-level BPE with `rules.prefix_space`; here it does not.
        """
        found = self.encode_sentences(texts)
        for before in _BEFORE:
            alone, *whole = self.encode_sentences([before, *(before + text for text in texts)])
            for number, ids in enumerate(whole):
                if len(alone) and np.array_equal(ids[: len(alone)], alone):
                    found[number] = ids[len(alone) :]
        return found

    def encode_running(self, sentences: Sequence[str], bare: Sequence[bool]) -> tuple[np.ndarray, np.ndarray]:
        """As `encode`, of sentences of running text; `bare` says which have no space before them there.

        Without `rules.prefix_space` the others are encoded with that space: a text of which only the first sentence is
        bare has the ids of its sentences joined by single spaces. With `rules.prefix_space` all have one anyway.
        """
        if self.rules.prefix_space:
            return self.encode(sentences)
        return self._chunks.encode(sentences, ["" if is_bare else " " for is_bare in bare])

    def offsets(self, sentence: str, bare: bool = True) -> np.ndarray:
        """The span of each token in the sentence, as [first character, one past the last]: int64 [tokens, 2].

        A space before a word may be the word's. The sentence has no SEPARATOR. `bare` as in `encode_running`.
        """
        return self._chunks.offsets(sentence, None if bare or self.rules.prefix_space else " ")

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """The text of ids, by default without special tokens."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)

    def _with_special_tokens(self, tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
        """Make a tokenizer find special tokens in text, and add them around a text or a pair as in training."""
        for role, number in self.special.items():
            # A mask includes the space before it: in training that space belongs to the masked word.
            tokenizer.add_special_tokens(
                [tokenizers.AddedToken(self.tokens[number], lstrip=role == "mask", normalized=False, special=True)]
            )
        first, last = self.tokens[self.cls_id], self.tokens[self.sep_id]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=f"{first}:0 $A:0 {last}:0",
            pair=f"{first}:0 $A:0 {last}:0 $B:1 {last}:1",
            special_tokens=[(first, self.cls_id), (last, self.sep_id)],
        )
        return tokenizer


def continuations(surfaces: Sequence[bytes], tokens: Sequence[str], mark: str) -> np.ndarray:
    """Which tokens continue a word, bool [tokens], in a vocabulary that marks the beginnings of words by `mark`."""
    pairs = zip(surfaces, tokens, strict=True)
    return np.array([continues_word(surface, token.startswith(mark)) for surface, token in pairs])


def continues_word(surface: bytes, follows_space: bool) -> bool:
    """Whether a token continues the word before it: it begins with a letter, a digit or a combining mark.

    `follows_space`: it is marked as the beginning of a word. Of a character that is cut into bytes, the first token
    counts as the character, and the others continue.
    """
    if follows_space or not surface:
        return False
    first = surface.decode(errors="replace")[0]
    if first == "\ufffd":
        return surface[0] not in _UNSPACED_LEADS
    if is_unspaced(first):
        return False
    return unicodedata.category(first)[0] in "LNM"


def is_unspaced(character: str) -> bool:
    """Whether a character is of a script without spaces between words, such as Chinese."""
    return unicodedata.name(character, "").startswith(_UNSPACED)
