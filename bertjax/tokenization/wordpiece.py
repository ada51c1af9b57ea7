"""WordPiece: a vocabulary with its normalisation, encoding whole sentences fast and exactly as `tokenizers` does.

`backend` is the Hugging Face tokenizer that is exported. `encode` gives the ids that it gives (special tokens aside),
several times faster: text is cut where BERT's rules cut whatever stands around (white space, ASCII punctuation, CJK
characters), each distinct chunk is encoded once by `tokenizers`, and text, being mostly known chunks, is looked up.

We follow `tokenizers`, for an export runs on it. google-research/bert's rules and transformers' pure-Python
`BertTokenizerLegacy` give the same ids but for these rows (tests/tokenization/check_wordpiece.py proves it):

    rule                                google-research/bert   BertTokenizerLegacy    here
    the longest word before [UNK]       200 characters         100                    100
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
    lowercase without strip_accents     not to be had          possible               possible
    white space in a line of vocab.txt  stripped               kept                   kept
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MAX_WORD_CHARACTERS = 100  # a longer word is [UNK], as in Hugging Face's BERT tokenizers

_SEPARATOR = "\0"  # BERT's cleaning drops it from text, so it is free to stand between sentences
_BOUNDARY = 0xFFFFFFFF
_CACHED_CHUNKS = 1 << 19

# Only characters that BERT's normaliser turns into a space. Others that Python calls space are control characters,
# which it deletes, joining what they part.
_SPACE = "\t\n\r \u00a0\u1680\u2000-\u200a\u2028\u2029\u202f\u205f\u3000"
# Always a token of their own: ASCII and typographic punctuation, and what BERT treats as a Chinese character. None
# of them is moved by canonical ordering, so that NFD of the parts is NFD of the whole. (google-research/bert has
# U+2B820 to U+2B91F among the Chinese characters too; `tokenizers` does not.)
_ALONE = (
    "!-/:-@\\[-`{-~\u2010-\u2027\u3001-\u3003\u3008-\u3011\uff0c\uff1a\uff1b\uff1f\uff01\uff08\uff09"
    "\u4e00-\u9fff\u3400-\u4dbf\uf900-\ufaff"
    "\U00020000-\U0002a6df\U0002a700-\U0002b73f\U0002b740-\U0002b81f\U0002b920-\U0002ceaf\U0002f800-\U0002fa1f"
)
CHUNKS = re.compile(f"[^{_SPACE}{_ALONE}{_SEPARATOR}]+|[{_ALONE}{_SEPARATOR}]")


class WordPiece:
    """A vocabulary and BERT's rules. Ids are positions in `tokens`; special tokens are found by name."""

    def __init__(self, tokens: Sequence[str], lowercase: bool, strip_accents: bool, origin: str = "vocabulary") -> None:
        """Check the tokens and look up the special ones; `origin` names the vocabulary in messages.

        Raises ValueError if a special token is missing, or a token is empty or stands twice.
        """
        self.tokens = list(tokens)
        self.lowercase = lowercase
        self.strip_accents = strip_accents
        self._ids = _numbered(self.tokens, origin)
        self.pad_id, self.unk_id, self.cls_id, self.sep_id, self.mask_id = (self._ids[t] for t in SPECIAL_TOKENS)
        self._cache = _ChunkCache(self.backend)

    @classmethod
    def load(cls, vocab_path: str | Path, lowercase: bool, strip_accents: bool) -> WordPiece:
        """Read a `vocab.txt`, a token a line.

        Raises ValueError if it is missing, empty, not UTF-8, or breaks a rule of `WordPiece`.
        """
        path = Path(vocab_path)
        if not path.is_file():
            raise ValueError(
                f"vocabulary {path}: no such file; give a vocab.txt, or leave data.vocab empty to train one"
            )
        try:
            text = path.read_bytes().decode("utf-8")
        except UnicodeDecodeError as error:
            raise ValueError(
                f"vocabulary {path}: not UTF-8 at byte {error.start}; is it a vocab.txt, a token a line?"
            ) from None
        # Not str.splitlines: the published Chinese vocabulary holds U+2028 as a token.
        lines = [line.removesuffix("\r") for line in text.split("\n")]
        tokens = lines[:-1] if not lines[-1] else lines
        if not tokens:
            raise ValueError(f"vocabulary {path}: the file is empty; it needs a token a line")
        return cls(tokens, lowercase, strip_accents, origin=f"vocabulary {path}")

    @property
    def vocab_size(self) -> int:
        """How many tokens there are."""
        return len(self.tokens)

    @property
    def vocab_bytes(self) -> bytes:
        """The vocabulary as the bytes of a `vocab.txt`."""
        return "".join(f"{token}\n" for token in self.tokens).encode()

    @cached_property
    def fingerprint(self) -> str:
        """SHA-256 (hex) over `vocab_bytes` and the two switches: equal if and only if text gets equal ids."""
        switches = json.dumps({"lowercase": self.lowercase, "strip_accents": self.strip_accents}, sort_keys=True)
        return hashlib.sha256(self.vocab_bytes + switches.encode()).hexdigest()

    @cached_property
    def is_continuation(self) -> np.ndarray:
        """bool [vocab_size]: which tokens continue a word (begin with ##)."""
        return np.array([token.startswith("##") for token in self.tokens])

    @cached_property
    def backend(self) -> Tokenizer:
        """The tokenizer to export: knows special tokens in text, adds [CLS] and [SEP], types 0 and 1 for a pair."""
        model = models.WordPiece(self._ids, unk_token="[UNK]", max_input_chars_per_word=MAX_WORD_CHARACTERS)
        tokenizer = Tokenizer(model)
        tokenizer.normalizer = normalizer(self.lowercase, self.strip_accents)
        tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        tokenizer.decoder = decoders.WordPiece(prefix="##")
        tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
        tokenizer.post_processor = processors.BertProcessing(("[SEP]", self.sep_id), ("[CLS]", self.cls_id))
        return tokenizer

    def encode(self, sentences: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
        """Encode sentences without special tokens: (ids uint32 [tokens], lengths int64 [sentences]).

        Text that spells a special token is plain text, as no chunk has a bracket in it: a corpus cannot forge a [MASK].
        A sentence with nothing in it that BERT keeps has length 0. Raises ValueError for a lone surrogate.
        """
        text = _SEPARATOR.join(sentences)
        if text.count(_SEPARATOR) != max(len(sentences) - 1, 0):
            text = _SEPARATOR.join(sentence.replace(_SEPARATOR, "") for sentence in sentences)
        chunks = CHUNKS.findall(text)
        self._cache.learn(chunks)
        ids = np.frombuffer(b"".join(map(self._cache.known.__getitem__, chunks)), np.uint32)
        boundaries = np.flatnonzero(ids == _BOUNDARY)
        ends = np.append(boundaries - np.arange(len(boundaries)), len(ids) - len(boundaries))
        return np.delete(ids, boundaries), np.diff(ends[: len(sentences)], prepend=0)

    def encode_sentences(self, sentences: Sequence[str]) -> list[np.ndarray]:
        """As `encode`, one array of ids per sentence."""
        ids, lengths = self.encode(sentences)
        return np.split(ids, np.cumsum(lengths)[:-1]) if len(sentences) else []

    def decode(self, ids: Iterable[int], skip_special_tokens: bool = True) -> str:
        """Text for ids, pieces glued, special tokens left out unless asked for."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=skip_special_tokens)


class _ChunkCache:
    """Chunk of text -> its ids as the bytes of uint32, for the chunks seen so far."""

    def __init__(self, backend: Tokenizer) -> None:
        self._backend = backend
        self.known: dict[str, bytes] = {}

    def learn(self, chunks: Iterable[str]) -> None:
        """Make every one of the chunks known; forgets old ones when there are too many."""
        if not self.known or len(self.known) > _CACHED_CHUNKS:
            self.known = {_SEPARATOR: np.uint32(_BOUNDARY).tobytes()}
        unknown = [chunk for chunk in set(chunks) if chunk not in self.known]
        try:
            encodings = self._backend.encode_batch_fast(unknown, add_special_tokens=False)
        except (TypeError, UnicodeEncodeError):
            broken = next(c for c in unknown if any("\ud800" <= character <= "\udfff" for character in c))
            raise ValueError(
                f"text has a lone surrogate, in {broken!r}; it is no valid Unicode, mend the source"
            ) from None
        for chunk, encoding in zip(unknown, encodings, strict=True):
            self.known[chunk] = np.array(encoding.ids, np.uint32).tobytes()


def normalizer(lowercase: bool, strip_accents: bool) -> normalizers.Normalizer:
    """BERT's text cleaning, with the two switches apart (google-research/bert has only do_lower_case for both)."""
    return normalizers.BertNormalizer(
        clean_text=True, handle_chinese_chars=True, strip_accents=strip_accents, lowercase=lowercase
    )


def _numbered(tokens: list[str], origin: str) -> dict[str, int]:
    ids = {token: place for place, token in enumerate(tokens)}
    if len(ids) != len(tokens):
        place = next(place for place, token in enumerate(tokens) if ids[token] != place)
        twice = tokens[place]
        raise ValueError(
            f"{origin}: token {twice!r} stands on lines {place + 1} and {ids[twice] + 1}; remove one of them"
        )
    if "" in ids:
        raise ValueError(f"{origin}: line {ids[''] + 1} is empty; every line needs a token")
    missing = [token for token in SPECIAL_TOKENS if token not in ids]
    if missing:
        raise ValueError(
            f"{origin}: {', '.join(missing)} missing; BERT needs {' '.join(SPECIAL_TOKENS)}, each on a line"
        )
    return ids
