"""Statistics of training rows, with one sentence pair per row and packed; and some rows as a person reads them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.batches import PairBatches
from bertjax.text.store.format import SplitView
from bertjax.tokenization.tokenizer import Tokenizer

SAMPLE_ROWS = 4096
_ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class RowKind:
    """A kind of rows to measure: the data config that makes them, and the seed."""

    name: str  # such as `stage 1`; empty: chosen by length
    data: DataConfig
    seed: int


@dataclass(frozen=True)
class Rows:
    """Statistics of rows made one way."""

    per_epoch: int
    sampled: int
    tokens: int  # real ones of the sample, special tokens counted, padding not
    cells: int  # of the sample: rows x length
    masked: int  # tokens to predict
    pairs: int
    next_pairs: int  # pairs whose B follows A

    @property
    def padding(self) -> float:
        """The share of padding."""
        return 1 - self.tokens / self.cells

    @property
    def mask_rate(self) -> float:
        """Tokens to predict for each real token."""
        return self.masked / self.tokens

    @property
    def is_next(self) -> float | None:
        """The share of the pairs whose B follows A; None where rows have no pairs."""
        return self.next_pairs / self.pairs if self.pairs else None

    @property
    def pairs_per_row(self) -> float:
        """The mean number of sentence pairs per row."""
        return self.pairs / self.sampled


@dataclass(frozen=True)
class RowFigures:
    """One kind of rows, unpacked and packed; rows of running text are full without packing."""

    kind: RowKind
    single: Rows
    packed: Rows | None


def measure_rows(split: SplitView, tokenizer: Tokenizer, kind: RowKind) -> RowFigures:
    """Make the first SAMPLE_ROWS rows of a run both ways, or those of one epoch if it has fewer; they are in random
    order.

    Raises ValueError if the split has too few documents.
    """

    def packed(packing: Literal["none", "pairs"]) -> Rows:
        return _measured(PairBatches(split, tokenizer, replace(kind.data, packing=packing), kind.seed), kind.data)

    return RowFigures(kind, packed("none"), packed("pairs") if kind.data.rows == "pairs" else None)


def _measured(batches: PairBatches, data: DataConfig) -> Rows:
    sampled = min(SAMPLE_ROWS, batches.rows_per_epoch)
    sums = np.zeros(4, np.int64)
    for start in range(0, sampled, _ROWS_AT_ONCE):
        rows = batches.rows(np.arange(start, min(start + _ROWS_AT_ONCE, sampled)))
        is_pair = rows["pair_weights"] > 0
        parts = rows["sequence_ids"] > 0, rows["mlm_weights"] > 0, is_pair, is_pair & (rows["pair_labels"] == 0)
        sums += [np.count_nonzero(part) for part in parts]
    tokens, masked, pairs, next_pairs = sums.tolist()
    return Rows(batches.rows_per_epoch, sampled, tokens, sampled * data.sequence_length, masked, pairs, next_pairs)


LABELS = ("IsNext", "NotNext")
NO_PAIR = "running text"


@dataclass(frozen=True)
class Piece:
    """A token of the input; `original` is the label at a masked position."""

    shown: str
    original: str | None = None

    def __str__(self) -> str:
        return self.shown if self.original is None else f"[{self.shown.strip('[]') or self.shown}:{self.original}]"


@dataclass(frozen=True)
class ReadablePair:
    """A sentence pair of a row, without [CLS] and [SEP]; running text is all A."""

    row: int  # its number in the run
    label: str
    a: tuple[Piece, ...]
    b: tuple[Piece, ...]


def readable_rows(split: SplitView, tokenizer: Tokenizer, kind: RowKind, number: int) -> tuple[ReadablePair, ...]:
    """The pairs of the first `number` rows of a run, or of one epoch if it has fewer."""
    batches = PairBatches(split, tokenizer, kind.data, kind.seed)
    numbers = np.arange(min(number, batches.rows_per_epoch))
    rows = batches.rows(numbers)
    # With next-token prediction nothing is masked.
    is_hidden = kind.data.predict == "masked"
    return tuple(
        pair
        for n in numbers.tolist()
        for pair in _pairs(n, {key: values[n] for key, values in rows.items()}, tokenizer, is_hidden)
    )


def joined(pieces: tuple[Piece, ...]) -> str:
    """Pieces as text: a piece that continues a word follows without a space."""
    return "".join(glue + text for glue, text in zip(glues(pieces), map(_bare, pieces), strict=True))


def glues(pieces: tuple[Piece, ...]) -> list[str]:
    """The separator before each piece: empty for the first and for one that continues a word, else a space."""
    return ["" if n == 0 or _continues(piece) else " " for n, piece in enumerate(pieces)]


def _continues(piece: Piece) -> bool:
    return (piece.original or piece.shown).startswith("##")


def _bare(piece: Piece) -> str:
    return str(piece) if piece.original is not None else piece.shown.removeprefix("##")


def _pairs(number: int, row: dict[str, np.ndarray], tokenizer: Tokenizer, is_hidden: bool) -> list[ReadablePair]:
    used = row["mlm_weights"] > 0
    originals = dict(zip(row["mlm_positions"][used].tolist(), row["mlm_labels"][used].tolist(), strict=True))
    pairs = []
    for slot in range(row["sequence_ids"].max()):
        inside = row["sequence_ids"] == slot + 1
        first, second = (np.flatnonzero(inside & (row["token_type_ids"] == segment)) for segment in (0, 1))
        a, b = (
            tuple(
                Piece(
                    tokenizer.shown[row["input_ids"][place]],
                    tokenizer.shown[originals[place]] if is_hidden and place in originals else None,
                )
                for place in places.tolist()
            )
            for places in (first[1:-1], second[:-1])
        )
        pairs.append(
            ReadablePair(number, LABELS[int(row["pair_labels"][slot])] if row["pair_weights"][slot] else NO_PAIR, a, b)
        )
    return pairs
