"""WordPiece: a vocabulary with BERT's normalisation, encoding exactly as `tokenizers` does.

`backend` is the Hugging Face tokenizer that is exported, and `encode` gives its ids (except special tokens in text).
Chunks end where BERT's rules always cut: at white space, ASCII punctuation, and CJK characters.

We follow `tokenizers`, which runs an export. google-research/bert and transformers' pure-Python `BertTokenizerLegacy`
give the same ids except for these rows (tests/tokenization/check_wordpiece.py proves it):

    rule                                google-research/bert   BertTokenizerLegacy    here
    the longest word before [UNK]       200 characters         100                    200
    private use (Co)                    in words               deleted                deleted
    unassigned code points (Cn)         in words               deleted                in words
    NFC, after cleaning                 no                     yes                    no
    U+2B820 to U+2B91F (Chinese)        a word each            a word each            in words
    capital sigma, last in a word       ς                      ς                      σ
    what is a mark, punctuation, Cf     Python's Unicode       Python's Unicode       Unicode 8.0
    canonical decompositions            Python's Unicode       Python's Unicode       Unicode 9.0
    lower case                          Python's Unicode       Python's Unicode       Unicode 17.0
    a special token spelled in text     plain text             the special token      plain; special in `backend`
    a lone surrogate                    in words               deleted                ValueError
    lowercase without strip_accents     impossible             possible               possible
    white space in a line of vocab.txt  stripped               kept                   kept
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
import tokenizers
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors

from bertjax.storage.files import read_whole
from bertjax.tokenization import entity_map
from bertjax.tokenization.chunks import SEPARATOR, ChunkEncoder
from bertjax.tokenization.tokenizer import ROLES, TextRules, Tokenizer, refuse_bare_start
from bertjax.tokenization.word_cache import WordCache

VOCABULARY_FILE = "vocab.txt"
SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_WORD_CHARACTERS = 200  # a longer word is [UNK]: max_input_chars_per_word of google-research/bert

# Only characters that BERT's normaliser turns into a space. Others that Python calls space are control characters,
# which it deletes, joining what they part.
_SPACE = "\t\n\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# Always a token of their own: ASCII and typographic punctuation, and what BERT treats as a Chinese character. None
# of them is moved by canonical ordering, so that NFD of the parts is NFD of the whole. (google-research/bert has
# U+2B820 to U+2B91F among the Chinese characters too; `tokenizers` does not.)
_CHINESE = (
    "\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f"
)
_ALONE = f"!-/:-@\\[-`{{-~\u2010-\u2027\u3001-\u3003\u3008-\u3011\uff0c\uff1a\uff1b\uff1f\uff01\uff08\uff09{_CHINESE}"
CHUNKS = re.compile(f"[^{_SPACE}{_ALONE}{SEPARATOR}]+|[{_ALONE}{SEPARATOR}]")
_IS_CHINESE = re.compile(f"[{_CHINESE}]")


class WordPiece(Tokenizer):
    """A vocabulary and BERT's rules; special tokens are found by name."""

    named, kind = "WordPiece", "wordpiece"

    def __init__(
        self, tokens: Sequence[str], rules: TextRules, origin: str = "vocabulary", entities: bytes = b""
    ) -> None:
        """Check the tokens and look up the special ones; `origin` names the vocabulary in messages.

        `entities` is the content of an entity map. Raises ValueError if a special token is missing, a token is empty or
        occurs twice, or as `entity_map.words_of_map` does.
        """
        refuse_bare_start(rules, origin)
        self.tokens = list(tokens)
        self.rules = rules
        self.files = {VOCABULARY_FILE: "".join(f"{token}\n" for token in self.tokens).encode()}
        self._ids = _numbered(self.tokens, origin)
        self.special = {role: self._ids[f"[{role.upper()}]"] for role in ROLES}
        self.entities: dict[str, int] = {}  # word that the vocabulary cannot write -> token of its entity
        self._plain = self._tokenizer()
        if entities:
            self.files[entity_map.FILE] = entities
            self.entities = self._unknown_words(entities, origin)
        correct = self._with_entities if self.entities else None
        self._chunks = ChunkEncoder(self._plain, CHUNKS, correct=correct, between=("[SEP]", self.sep_id))
        self._words = WordCache(self._chunks)

    @classmethod
    def load(cls, path: Path, rules: TextRules) -> WordPiece:
        """Read a `vocab.txt`, a token a line.

        Raises ValueError if it is empty, not UTF-8, or breaks a rule of `WordPiece`.
        """
        try:
            text = read_whole(path).decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"vocabulary {path}: not UTF-8 at byte {error.start}; is it a vocab.txt, a token a line?"
            ) from None
        # Not str.splitlines: the published Chinese vocabulary holds U+2028 as a token.
        lines = [line.removesuffix("\r") for line in text.split("\n")]
        tokens = lines[:-1] if not lines[-1] else lines
        if not tokens:
            raise ValueError(f"vocabulary {path}: the file is empty; it needs a token a line")
        map_file = path.with_name(entity_map.FILE)
        entities = read_whole(map_file) if map_file.is_file() else b""
        return cls(tokens, rules, origin=f"vocabulary {path}", entities=entities)

    def chunks(self, sentence: str) -> Iterator[tuple[str, int]]:
        """Stretches of a sentence whose ids, one after another, are the sentence's; and where each begins."""
        return ((found[0], found.start()) for found in CHUNKS.finditer(sentence))

    def tokens_of(self, chunk: str) -> int:
        """How many tokens one of `chunks` has."""
        return self._chunks.size(chunk)

    @cached_property
    def is_continuation(self) -> np.ndarray:
        """bool [vocab_size]: which tokens continue a word (begin with ##)."""
        return np.array([token.startswith("##") for token in self.tokens])

    def encode(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """As every tokenizer's, three times as fast."""
        return self._words.encode(sentences)

    @cached_property
    def surfaces(self) -> list[bytes]:
        """Tokens without their ##."""
        special = set(self.special.values())
        return [b"" if n in special else token.removeprefix("##").encode() for n, token in enumerate(self.tokens)]

    @cached_property
    def backend(self) -> tokenizers.Tokenizer:
        """The tokenizer to export: knows special tokens in text, adds [CLS] and [SEP], types 0 and 1 for a pair."""
        if not self.entities:
            return self._plain
        tokenizer = self._tokenizer()
        tokenizer.normalizer = entity_map.replacing(
            tokenizer.normalizer, {word: self.tokens[number] for word, number in self.entities.items()}
        )
        return tokenizer

    def _tokenizer(self) -> tokenizers.Tokenizer:
        """The tokenizer without the entity map."""
        model = models.WordPiece(self._ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARACTERS)
        tokenizer = tokenizers.Tokenizer(model)
        tokenizer.normalizer = normalizer(self.rules.lowercase, self.rules.strip_accents)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        if self.rules.unknown == "characters":
            alone = pre_tokenizers.Split(tokenizers.Regex(_outside(self.tokens)), behavior="isolated")
            tokenizer.pre_tokenizer = pre_tokenizers.Sequence([tokenizer.pre_tokenizer, alone])
        tokenizer.decoder = decoders.WordPiece(prefix="##")
        tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", self.sep_id), ("[CLS]", self.cls_id))
        return tokenizer

    def _unknown_words(self, entities: bytes, origin: str) -> dict[str, int]:
        """Those words of an entity map that are [UNK], or have it in them, without the map."""
        origin = f"entity map of {origin}"
        entries = entity_map.parse(entities, origin)
        special = list(self.special.values())
        words = entity_map.words_of_map(entries, self._ids, special, self._plain.normalizer.normalize_str, origin)
        return {word: number for word, number in words.items() if self.unk_id in _ids_of_word(self._plain, word)}

    def _with_entities(self, chunk: str, ids: list[int]) -> list[int]:
        """The ids of a chunk, from those without the entity map."""
        if self.unk_id not in ids:
            return ids
        words = pre_tokenizers.BertPreTokenizer().pre_tokenize_str(self._plain.normalizer.normalize_str(chunk))
        parts = [
            [self.entities[word]] if word in self.entities else _ids_of_word(self._plain, word) for word, _ in words
        ]
        return [number for part in parts for number in part]


def _ids_of_word(tokenizer: tokenizers.Tokenizer, word: str) -> list[int]:
    """The ids of a normalised word."""
    pieces = tokenizer.pre_tokenizer.pre_tokenize_str(word)
    return [token.id for piece, _ in pieces for token in tokenizer.model.tokenize(piece)]


def is_chinese(chunk: str) -> bool:
    """Whether one of a sentence's chunks is a Chinese character; each is a chunk of its own."""
    return _IS_CHINESE.match(chunk) is not None


def _outside(tokens: Sequence[str]) -> str:
    """A regular expression for a character that is in none of the tokens.

    Where each is a word of its own it becomes [UNK] alone, and the rest of its word is cut as usual; a word of known
    characters is cut as ever.
    """
    words = [t.removeprefix("##") for t in tokens if t not in SPECIAL_TOKENS and not t.startswith("[unused")]
    points = sorted(set(map(ord, "".join(words))))
    spans: list[list[int]] = []
    for point in points:
        if spans and point == spans[-1][1] + 1:
            spans[-1][1] = point
        else:
            spans.append([point, point])
    return "[^" + "".join(f"\\x{{{first:X}}}-\\x{{{last:X}}}" for first, last in spans) + "]"


def normalizer(lowercase: bool, strip_accents: bool) -> normalizers.Normalizer:
    """BERT's text cleaning, with the two switches apart (google-research/bert has only do_lower_case for both)."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
    )


def _numbered(tokens: list[str], origin: str) -> dict[str, int]:
    ids = {token: number for number, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        number = next(number for number, token in enumerate(tokens) if ids[token] != number)
        twice = tokens[number]
        raise ValueError(f"{origin}: token {twice!r} is on lines {number + 1} and {ids[twice] + 1}; remove one of them")
    if "" in ids:
        raise ValueError(f"{origin}: line {ids[''] + 1} is empty; every line needs a token")
    missing = [token for token in SPECIAL_TOKENS if token not in ids]
    if missing:
        raise ValueError(
            f"{origin}: {', '.join(missing)} missing; BERT needs {' '.join(SPECIAL_TOKENS)}, each on a line"
        )
    return ids
