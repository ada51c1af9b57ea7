"""Text to ids, and the properties of each id: `Tokenizer`, around a `tokenizers` artefact.

Ids are positions in `tokens`. Stores, runs and exports save a tokenizer as its `files` and `TextRules`.
"""

from __future__ import annotations

import hashlib
import json
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, asdict, dataclass, fields, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
import tokenizers
from tokenizers import pre_tokenizers, processors

from bertjax.config import DataConfig, ModelConfig
from bertjax.tokenization import artefact as artefacts
from bertjax.tokenization import entity_map
from bertjax.tokenization.chunks import ChunkEncoder
from bertjax.tokenization.letters import LetterEncoder, OverlappingEncoder
from bertjax.tokenization.word_cache import WordCache

ROLES = ("pad", "unk", "cls", "sep", "mask")
ROLES_FILE = "special_tokens_map.json"  # Hugging Face's file next to tokenizer.json: the special token of each role
RUNNING_TEXT_VERSION = 1  # version of running text without `prefix_space`; a change makes other stores
_NAMES = {
    "wordpiece": "WordPiece",
    "unigram": "SentencePiece",
    "bpe": "SentencePiece",
    "byte_bpe": "byte-level BPE",
    "symbols": "symbol",
}

# Scripts without spaces between words, in which every piece counts as a word, as in multilingual BERT
_UNSPACED = ("CJK", "HIRAGANA", "KATAKANA", "THAI", "LAO", "KHMER", "MYANMAR", "TIBETAN", "HALFWIDTH KATAKANA", "YI ")
_UNSPACED_LEADS = range(0xE4, 0xEA)  # first bytes in UTF-8 of U+4000 to U+9FFF
_BEFORE = ("a", ".")  # for `encode_behind`: common, and rarely do tokens span both of them and the text that follows


@dataclass(frozen=True)
class TextRules:
    """How text is normalised and encoded."""

    lowercase: bool
    strip_accents: bool
    unknown: Literal["words", "characters"] = "words"  # [UNK] replaces words with unknown characters, or only these
    prefix_space: bool = True  # byte-level BPE: the first word of a text has a space before it, like the others
    special_tokens: Literal["<s>", "[CLS]"] = "<s>"  # byte-level BPE: RoBERTa's names of special tokens, or BERT's

    @classmethod
    def of(cls, data: DataConfig) -> TextRules:
        """Take the rules from a config."""
        return cls(data.lowercase, data.strip_accents, data.unknown, data.prefix_space, data.special_tokens)

    @classmethod
    def from_dict(cls, record: Mapping[str, Any]) -> TextRules:
        """Take the rules from a JSON object, which may have other keys."""
        return cls(**{field.name: record[field.name] for field in fields(cls) if field.name in record})

    def described(self) -> dict[str, Any]:
        """The rules as JSON, without optional rules at their defaults, so that fingerprints do not change."""
        defaults = {field.name: field.default for field in fields(self) if field.default is not MISSING}
        return {name: value for name, value in asdict(self).items() if name not in defaults or value != defaults[name]}


def refuse_bare_start(rules: TextRules, origin: str) -> None:
    """Raise ValueError for `prefix_space=False`, for tokenizers that do not support it."""
    if not rules.prefix_space:
        raise ValueError(f"data.prefix_space=False: {origin} does not support it; the option is for byte-level BPE")


class Tokenizer:
    """A `tokenizers.Tokenizer` with the roles of its special tokens.

    A special token's name in text is plain text, so that a corpus cannot forge a [MASK]. Other added tokens are
    recognised in text, as by the artefact.

    Attributes:
        tokens: The token of each id, as the artefact spells it.
        special: The ids of pad, unk, cls, sep and mask. If the artefact encodes every text, unk is pad.
        rules: How text is normalised.
        files: Name -> content of the files that a run or a store saves; the first one is the main file.
        encoder: The artefact that encodes text; text never encodes to special tokens.
        kind: `wordpiece`, `unigram`, `bpe` or `byte_bpe`, as in `DataConfig.tokenizer`, or `symbols`.
        entities: Word that the vocabulary cannot encode -> id of its entity's token.
    """

    def __init__(
        self,
        backend: tokenizers.Tokenizer,
        special: Mapping[str, int],
        files: Mapping[str, bytes],
        rules: TextRules | None = None,
        *,
        origin: str = "tokenizer",
        entities: bytes = b"",
    ) -> None:
        """Derive everything from the artefact.

        Args:
            backend: The artefact.
            special: Role -> id.
            files: As the attribute.
            rules: By default derived from the artefact.
            origin: The name of the tokenizer in messages.
            entities: The content of an entity map.

        Raises ValueError for model types other than WordPiece, Unigram, BPE and WordLevel, for missing special tokens,
        and for an entity map that does not fit.
        """
        document = artefacts.to_document(backend)
        self.kind = artefacts.model_kind(document)
        if self.kind not in _NAMES:
            raise ValueError(
                f"{origin}: model type {self.kind!r} is unsupported; give WordPiece, Unigram, BPE or WordLevel"
            )
        self.tokens = _tokens_by_id(backend.get_vocab(with_added_tokens=True))
        self.special = {"unk": special["pad"], **special} if "pad" in special else dict(special)
        if missing := [role for role in ROLES if role not in self.special]:
            raise ValueError(f"{origin}: no {', '.join(missing)} token; bertjax needs one for each role")
        self._hidden = {*self.special.values()}
        names = {self.tokens[number]: number for number in self._hidden}
        cut = artefacts.find_cut(document, names)
        self._document, self._is_bert = document, cut.is_bert
        self._plain = backend
        self.encoder = _from_document(artefacts.without_tokens(document, names))
        self.rules = rules if rules is not None else _derived_rules(self.encoder, document)
        self.files = dict(files)
        self.entities: dict[str, int] = {}
        if entities:
            self.files[entity_map.FILE] = entities
            self.entities = self._unknown_words(entities, f"entity map of {origin}")
        letters = artefacts.letter_ids(document, names)
        if letters is not None:
            self._chunks = LetterEncoder(letters, self.unk_id)
        elif size := artefacts.overlapping_size(document, names):
            vocabulary = document["model"]["vocab"]
            self._chunks = OverlappingEncoder(vocabulary, self.unk_id, artefacts.NUCLEOTIDES, size)
        else:
            self._chunks = ChunkEncoder(
                self.encoder,
                cut.pattern,
                whole=cut.whole,
                before=cut.before,
                correct=self._apply_entities if self.entities else None,
                between=(artefacts.hidden_name(self.sep_id), self.sep_id) if cut.is_bert else None,
            )
        self._words = WordCache(self._chunks) if isinstance(self._chunks, ChunkEncoder) and cut.is_bert else None

    @property
    def kind_name(self) -> str:
        """The name of `kind` in messages."""
        return _NAMES[self.kind]

    @property
    def is_wordpiece(self) -> bool:
        """Whether the vocabulary is WordPiece."""
        return self.kind == "wordpiece"

    @property
    def is_symbolic(self) -> bool:
        """Whether tokens are symbols of a table, not pieces of words."""
        return self.kind == "symbols"

    @property
    def splits_letters(self) -> bool:
        """Whether each letter is a token."""
        return isinstance(self._chunks, LetterEncoder)

    @property
    def splits_like_bert(self) -> bool:
        """Whether text is normalised and split into words as in BERT, which `chunks` requires."""
        return self._is_bert

    @property
    def vocab_size(self) -> int:
        """The number of tokens."""
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

    def fit_model(self, model: ModelConfig) -> ModelConfig:
        """Set a model's vocabulary size, and the id of [MASK] if the network uses it."""
        mask_id = self.mask_id if model.token_dropout else model.mask_token_id
        return replace(model, vocab_size=self.vocab_size, mask_token_id=mask_id)

    @property
    def role_tokens(self) -> dict[str, str]:
        """The special tokens by Hugging Face's keys, such as `pad_token`; `unk_token` only if there is one."""
        roles = [role for role in ROLES if role != "unk" or self.unk_id != self.pad_id]
        return {f"{role}_token": self.tokens[self.special[role]] for role in roles}

    @property
    def main_file(self) -> str:
        """The name of the file for `load_tokenizer`."""
        return next(iter(self.files))

    @cached_property
    def backend(self) -> tokenizers.Tokenizer:
        """The tokenizer to export, which recognises special tokens in text."""
        if not self.entities:
            return self._plain
        tokenizer = _from_document(self._document)
        tokenizer.normalizer = entity_map.with_replacements(
            tokenizer.normalizer, {word: self.tokens[number] for word, number in self.entities.items()}
        )
        return tokenizer

    @cached_property
    def surfaces(self) -> list[bytes]:
        """The text of each token in UTF-8, without marks of words; empty for special tokens."""
        return artefacts.token_surfaces(self._document, self.tokens, self._hidden)

    @cached_property
    def is_continuation(self) -> np.ndarray:
        """Whether each token continues the word before it, bool [vocab_size]; see `continues_word`."""
        if self.is_symbolic:
            return np.zeros(self.vocab_size, bool)
        if self.is_wordpiece:
            mark = self._document["model"]["continuing_subword_prefix"]
            return np.array([bool(mark) and token.startswith(mark) for token in self.tokens])
        return continuations(self.surfaces, self.tokens, artefacts.word_mark(self._document))

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) of everything that determines ids. A vocabulary and its re-imported export have the same.

        An entity map is an exception: an export has it in the artefact, so the import's fingerprint differs.
        """
        names = {self.tokens[number] for number in self.special.values()}
        return hashlib.sha256(
            json.dumps(
                [artefacts.encoding_parts(self._document, names), self.special, self.entities], sort_keys=True
            ).encode()
        ).hexdigest()

    @cached_property
    def display_texts(self) -> list[str]:
        """Each token for display: roles as in [MASK], ## before a continuation, U+FFFD for invalid UTF-8.

        A token that is only a space is displayed as in the vocabulary.
        """
        names = [
            ("##" if continues else "") + surface.decode(errors="replace") or token
            for token, surface, continues in zip(self.tokens, self.surfaces, self.is_continuation.tolist(), strict=True)
        ]
        for role in reversed(ROLES):  # reversed, so that if unk is pad, it is displayed as [PAD]
            names[self.special[role]] = f"[{role.upper()}]"
        return names

    def encode(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode sentences without special tokens: (ids uint32 [tokens], lengths int64 [sentences]).

        A sentence that is empty after normalisation has length 0. NUL characters are always dropped, as in BERT. Raises
        ValueError for a lone surrogate.
        """
        return (self._words or self._chunks).encode(sentences)

    def encode_sentences(self, sentences: Sequence[str], bare: Sequence[bool] | None = None) -> list[np.ndarray]:
        """Like `encode`, or `encode_running` with `bare`, with one array of ids per sentence."""
        ids, lengths = self.encode(sentences) if bare is None else self.encode_running(sentences, bare)
        return np.split(ids, np.cumsum(lengths)[:-1]) if len(sentences) else []

    def encode_behind(self, texts: Sequence[str]) -> list[np.ndarray]:
        """Encode texts that directly follow other text: uint32 [tokens] each.

        Avoids the space with which SentencePiece, and byte-level BPE with `rules.prefix_space`, begin a text.
        """
        encoded = self.encode_sentences(texts)
        for before in _BEFORE:
            alone, *whole = self.encode_sentences([before, *(before + text for text in texts)])
            for number, ids in enumerate(whole):
                if len(alone) and np.array_equal(ids[: len(alone)], alone):
                    encoded[number] = ids[len(alone) :]
        return encoded

    def encode_running(self, sentences: Sequence[str], bare: Sequence[bool]) -> tuple[np.ndarray, np.ndarray]:
        """Like `encode`, for sentences of running text; `bare` marks sentences without a space before them.

        Without `rules.prefix_space`, the other sentences are encoded with that space: if only the first sentence is
        bare, the ids equal those of the sentences joined by single spaces. With `rules.prefix_space`, all sentences
        have a space.
        """
        if self.rules.prefix_space:
            return self.encode(sentences)
        return self._chunks.encode(sentences, ["" if is_bare else " " for is_bare in bare])

    def chunks(self, sentence: str) -> Iterator[tuple[str, int, int]]:
        """Yield (chunk, offset, number of tokens) for parts of a sentence whose ids concatenate to the sentence's.

        Requires `splits_like_bert`.
        """
        assert self._is_bert and isinstance(self._chunks, ChunkEncoder)
        for match in artefacts.BERT_CHUNKS.finditer(sentence):
            yield match[0], match.start(), self._chunks.size(match[0])

    def offsets(self, sentence: str, bare: bool = True) -> np.ndarray:
        """The span of each token in the sentence, as [first character, one past the last]: int64 [tokens, 2].

        A word's span may include the space before it. The sentence must not contain SEPARATOR. `bare` as in
        `encode_running`.
        """
        return self._chunks.offsets(sentence, None if bare or self.rules.prefix_space else " ")

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Decode ids to text, by default without special tokens."""
        text = self.backend.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)
        # Byte-level BPE also decodes the space that it put before the first word.
        return text.removeprefix(" ") if self.kind == "byte_bpe" and self.rules.prefix_space else text

    def with_entities(self, entities: bytes, origin: str) -> Tokenizer:
        """Make a copy of this tokenizer with an entity map of this content. Raises ValueError like `Tokenizer`."""
        files = {name: content for name, content in self.files.items() if name != entity_map.FILE}
        return Tokenizer(self._plain, self.special, files, self.rules, origin=origin, entities=entities)

    def _unknown_words(self, entities: bytes, origin: str) -> dict[str, int]:
        """The words of an entity map that are or contain [UNK] without the map, with their entities' ids."""
        if not self._is_bert:
            raise ValueError(
                f"{origin}: the vocabulary is {self.kind_name}; an entity map requires WordPiece with BERT's words; "
                "leave it out"
            )
        entries = entity_map.parse(entities, origin)
        ids = {token: number for number, token in enumerate(self.tokens)}
        special = list(self.special.values())
        words = entity_map.map_words(entries, ids, special, self._plain.normalizer.normalize_str, origin)
        return {word: number for word, number in words.items() if self.unk_id in _word_ids(self._plain, word)}

    def _apply_entities(self, chunk: str, ids: list[int]) -> list[int]:
        """Apply the entity map to a chunk with these `ids`."""
        if self.unk_id not in ids:
            return ids
        words = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(self._plain.normalizer.normalize_str(chunk))
        parts = [[self.entities[word]] if word in self.entities else _word_ids(self._plain, word) for word, _ in words]
        return [number for part in parts for number in part]


def with_roles(tokenizer: tokenizers.Tokenizer, special: Mapping[str, int]) -> tokenizers.Tokenizer:
    """Make a tokenizer recognise special tokens in text, and put them around a text or a pair as in BERT's rows."""
    names = {role: str(tokenizer.id_to_token(number)) for role, number in special.items()}
    for role, name in names.items():
        # The mask includes the space before it: in training that space belongs to the masked word.
        tokenizer.add_special_tokens(
            [tokenizers.AddedToken(name, lstrip=role == "mask", normalized=False, special=True)]
        )
    tokenizer.post_processor = row_template((names["cls"], special["cls"]), (names["sep"], special["sep"]))
    return tokenizer


def row_template(
    first: tuple[str, int], last: tuple[str, int], *, separators: int = 1, has_types: bool = True
) -> processors.TemplateProcessing:
    """Make the post-processor that puts special tokens around a text or a pair; by default as in BERT's rows.

    Args:
        first: The token that begins a row, and its id.
        last: The token that ends a text, and its id.
        separators: Number of `last` tokens between the texts of a pair.
        has_types: Whether the second text has token type 1.
    """
    between = [f"{last[0]}:0"] * separators
    return processors.TemplateProcessing(
        single=[f"{first[0]}:0", "$A:0", f"{last[0]}:0"],
        pair=[f"{first[0]}:0", "$A:0", *between, f"$B:{int(has_types)}", f"{last[0]}:{int(has_types)}"],
        special_tokens=[first, last],
    )


def _tokens_by_id(ids: Mapping[str, int]) -> list[str]:
    """The token of each id; unused ids get a placeholder name."""
    tokens = [f"[no token {number}]" for number in range(max(ids.values(), default=-1) + 1)]
    for token, number in ids.items():
        tokens[number] = token
    return tokens


def _from_document(document: artefacts.Artefact) -> tokenizers.Tokenizer:
    return tokenizers.Tokenizer.from_str(json.dumps(document))


def _word_ids(tokenizer: tokenizers.Tokenizer, word: str) -> list[int]:
    """Encode a normalised word."""
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(word)
    return [token.id for piece, _ in pieces for token in tokenizer.model.tokenize(piece)]


def _derived_rules(encoder: tokenizers.Tokenizer, document: artefacts.Artefact) -> TextRules:
    """Derive an artefact's rules from its results for a few letters."""
    normalize = encoder.normalizer.normalize_str if encoder.normalizer else str

    def ids(text: str) -> list[int]:
        return encoder.encode(text, add_special_tokens=False).ids

    # With `prefix_space`, a word has the same ids in the middle of a text as alone.
    prefix_space = all(ids(f"{a} {b}") == ids(a) + ids(b) for a, b in ("ab", "et", "12"))
    splits = [step.get("type") for step in artefacts.steps(document, "pre_tokenizer")]
    return TextRules(
        lowercase="a" in normalize("A"),
        strip_accents="e" in normalize("\u00e9").lower() and "\u0301" not in normalize("\u00e9"),
        unknown="characters" if splits == ["BertPreTokenizer", "Split"] else "words",
        prefix_space=prefix_space,
    )


def continuations(surfaces: Sequence[bytes], tokens: Sequence[str], mark: str) -> np.ndarray:
    """Whether each token continues a word, bool [tokens]; `mark` is the prefix of tokens that begin words."""
    pairs = zip(surfaces, tokens, strict=True)
    return np.array([continues_word(surface, token.startswith(mark)) for surface, token in pairs])


def continues_word(surface: bytes, follows_space: bool) -> bool:
    """Whether a token continues the word before it: it begins with a letter, a digit or a combining mark.

    `follows_space` is whether it is marked as the beginning of a word. If a character is split into bytes, its first
    token counts as the character, and the others continue it.
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
    """Whether a character belongs to a script without spaces between words, such as Chinese."""
    return unicodedata.name(character, "").startswith(_UNSPACED)
