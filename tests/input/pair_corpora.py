"""Small splits in memory, and a vocabulary of special tokens, for tests of `RowBatches`."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

FIRST_TOKEN = 5  # lower ids are special tokens


@dataclass(frozen=True)
class MemorySplit:
    """A split with random tokens; `documents` lists the lengths of each document's sentences."""

    works = None

    documents: list[list[int]]
    vocab_size: int = 1000
    all_different: bool = False  # token n of the split is FIRST_TOKEN + n
    document_offsets: np.ndarray = field(init=False)
    sentence_offsets: np.ndarray = field(init=False)
    flat: np.ndarray = field(init=False)

    def __post_init__(self) -> None:
        lengths = np.concatenate([np.array(d, np.int64) for d in self.documents] or [np.zeros(0, np.int64)])
        sizes = np.array([len(d) for d in self.documents], np.int64)
        set_once = lambda name, value: object.__setattr__(self, name, value)  # noqa: E731
        set_once("document_offsets", np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64))
        set_once("sentence_offsets", np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))
        count = int(lengths.sum())
        drawn = np.random.default_rng(0).integers(FIRST_TOKEN, self.vocab_size, count, dtype=np.uint16)
        set_once("flat", np.arange(FIRST_TOKEN, FIRST_TOKEN + count, dtype=np.uint32) if self.all_different else drawn)

    @property
    def num_documents(self) -> int:
        return len(self.documents)

    @property
    def num_tokens(self) -> int:
        return len(self.flat)

    def sample(self, tokens: int) -> MemorySplit:
        return self

    def has_plane(self, plane: str) -> bool:
        return False

    def tokens(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        shift = starts - (np.cumsum(lengths) - lengths)
        return self.flat[np.arange(lengths.sum()) + np.repeat(shift, lengths)]


@dataclass(frozen=True)
class Specials:
    """A vocabulary without text; every third token is a continuation."""

    vocab_size: int = 1000
    pad_id: int = 0
    cls_id: int = 2
    sep_id: int = 3
    mask_id: int = 4

    @property
    def special(self) -> dict[str, int]:
        return {"pad": self.pad_id, "unk": 1, "cls": self.cls_id, "sep": self.sep_id, "mask": self.mask_id}

    @property
    def is_continuation(self) -> np.ndarray:
        ids = np.arange(self.vocab_size)
        return (ids >= FIRST_TOKEN) & (ids % 3 == 0)


def random_documents(count: int, seed: int, sentences: float = 12.0, tokens: float = 22.0) -> list[list[int]]:
    """Draw sentence lengths of documents: geometric numbers of sentences with log-normal lengths."""
    generator = np.random.default_rng(seed)
    sizes = generator.geometric(1 / sentences, count)
    return [np.maximum(generator.lognormal(np.log(tokens), 0.7, size).astype(int), 1).tolist() for size in sizes]
