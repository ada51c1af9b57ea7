"""Random tokens in sentences and documents about as long as Wikipedia's, to measure speed without text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches
from bertjax.input.masking.options import member
from bertjax.input.masking.units import UNITS, WORDS
from bertjax.input.targets import registry
from bertjax.text.ragged import range_indices

ABOUT = "random tokens in sentences and documents about as long as Wikipedia's"
_FIRST_TOKEN = 104  # after the special tokens
_SENTENCE_TOKENS, _DOCUMENT_SENTENCES = 24, 25  # means


@dataclass
class MadeUpVocabulary:
    """BERT's special tokens; a fifth of all ids continue a word."""

    vocab_size: int = 30_522
    pad_id: int = 0
    cls_id: int = 101
    sep_id: int = 102
    mask_id: int = 103

    @property
    def special(self) -> dict[str, int]:
        """The ids by role; [UNK] is between [PAD] and [CLS]."""
        return {"pad": self.pad_id, "unk": 100, "cls": self.cls_id, "sep": self.sep_id, "mask": self.mask_id}

    @property
    def is_continuation(self) -> np.ndarray:
        """Whether each token continues a word, bool [vocab_size]."""
        return np.arange(self.vocab_size) % 5 == 0


class MadeUpSplit:
    """Sentences with log-normal lengths, in documents with a geometric number of sentences; the same in every run.

    A document in the middle has `giant` of the `sentences`.
    """

    works = None

    def __init__(self, sentences: int, giant: int = 0, vocab_size: int = 30_522, marks_words: bool = False) -> None:
        self._marks_words = marks_words
        generator = np.random.default_rng(0)
        lengths = np.maximum(generator.lognormal(np.log(20), 0.6, sentences), 1).astype(np.int64)
        sizes = generator.geometric(1 / _DOCUMENT_SENTENCES, sentences // 20)
        ends = np.cumsum(sizes)
        ends = np.append(ends[ends < sentences], sentences)
        ends = ends[(ends <= (sentences - giant) // 2) | (ends > (sentences + giant) // 2)]
        self.document_offsets = np.concatenate([[0], ends])
        self.sentence_offsets = np.concatenate([[0], np.cumsum(lengths)])
        self.num_documents, self.num_tokens = len(ends), int(self.sentence_offsets[-1])
        kind = np.uint16 if vocab_size <= 2**16 else np.uint32
        self._flat = generator.integers(_FIRST_TOKEN, vocab_size, int(self.sentence_offsets[-1]), dtype=kind)

    @property
    def groups(self) -> np.ndarray:
        """The group of each document, uint64 [documents]: its own."""
        return np.arange(len(self.document_offsets) - 1, dtype=np.uint64)

    @property
    def source_edges(self) -> np.ndarray:
        """The first document of each source, and the number of documents; there is one source."""
        return np.array([0, self.num_documents])

    @property
    def source_tokens(self) -> np.ndarray:
        """The tokens of each source; there is one."""
        return np.array([self.num_tokens])

    def tokens(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The ids of ranges [start, start + length), concatenated in order."""
        return self._flat.take(range_indices(starts, lengths))

    def has_plane(self, plane: str) -> bool:
        """Whether the units of a plane are marked: words only with `marks_words`, other units always."""
        return plane != WORDS or self._marks_words

    def continues(self, starts: np.ndarray, lengths: np.ndarray, plane: str) -> np.ndarray:
        """Whether each token continues a unit; two thirds do, on average."""
        return self.tokens(starts, lengths) % 3 > 0


def made_up_batches(
    data: DataConfig, seed: int, tokens: int, objectives: Sequence[str] = registry.OF_BERT
) -> RowBatches:
    """Make the rows of `data` from about `tokens` tokens of made-up text, whatever its sources are."""
    data = replace(data, weights=(), temperature=1.0, active_sources=())
    unit = member(UNITS, "masking", data.masking).make(data)
    split = MadeUpSplit(
        max(tokens // _SENTENCE_TOKENS, 1_000), vocab_size=data.vocab_size, marks_words=unit.needs_plane
    )
    return RowBatches(split, MadeUpVocabulary(data.vocab_size), data, seed, objectives=objectives)
