"""Statistics of training rows, with one sentence pair per row and packed; and some rows in readable form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Literal

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.batches import RowBatches
from bertjax.input.layout import BERT, Template
from bertjax.input.targets.registry import OF_BERT, choose_pairing
from bertjax.text.store.format import SplitView
from bertjax.tokenization.tokenizer import Tokenizer

SAMPLE_ROWS = 4096
_ROWS_AT_ONCE = 512


@dataclass(frozen=True)
class RowKind:
    """A kind of rows to measure, with the settings that make them."""

    name: str  # such as `stage 1`; empty: named by length
    data: DataConfig
    seed: int
    objectives: tuple[str, ...] = OF_BERT
    template: Template = BERT

    @property
    def pair_names(self) -> tuple[str, str]:
        """The names of labels 0 and 1 of its pairs."""
        return choose_pairing(self.objectives).names

    def batches(self, split: SplitView, tokenizer: Tokenizer) -> RowBatches:
        """Make the run's batches of a split."""
        return RowBatches(split, tokenizer, self.data, self.seed, objectives=self.objectives, template=self.template)


@dataclass(frozen=True)
class Rows:
    """Statistics of rows made one way."""

    per_epoch: int
    sampled: int
    tokens: int  # of the sample, with special tokens, without padding
    cells: int  # of the sample: rows x length
    masked: int  # tokens to predict
    pairs: int  # with a label
    zero_labels: int  # pairs with label 0

    @property
    def padding(self) -> float:
        """The share of padding."""
        return 1 - self.tokens / self.cells

    @property
    def mask_rate(self) -> float:
        """Tokens to predict per real token."""
        return self.masked / self.tokens

    @property
    def label_0(self) -> float | None:
        """The share of label 0 among the labelled pairs; None if no pair has a label."""
        return self.zero_labels / self.pairs if self.pairs else None

    @property
    def pairs_per_row(self) -> float:
        """The mean number of sentence pairs per row."""
        return self.pairs / self.sampled


@dataclass(frozen=True)
class RowFigures:
    """One kind of rows, unpacked and packed; running text is packed only if the config packs."""

    kind: RowKind
    single: Rows
    packed: Rows | None


def measure_rows(split: SplitView, tokenizer: Tokenizer, kind: RowKind) -> RowFigures:
    """Measure the first SAMPLE_ROWS rows of a run, or of one epoch if it is shorter, unpacked and packed.

    Rows are in random order. Raises ValueError if the split has too few documents.
    """

    def measure(packing: Literal["none", "pairs"]) -> Rows:
        batches = replace(kind, data=replace(kind.data, packing=packing)).batches(split, tokenizer)
        sampled = min(SAMPLE_ROWS, batches.rows_per_epoch)
        sums = np.zeros(4, np.int64)
        for start in range(0, sampled, _ROWS_AT_ONCE):
            rows = batches.rows(np.arange(start, min(start + _ROWS_AT_ONCE, sampled)))
            labels = _labels(rows)
            parts = rows["sequence_ids"] > 0, rows["mlm_weights"] > 0, labels >= 0, labels == 0
            sums += [np.count_nonzero(part) for part in parts]
        tokens, masked, pairs, zeros = sums.tolist()
        cells = sampled * kind.data.sequence_length
        return Rows(batches.rows_per_epoch, sampled, tokens, cells, masked, pairs, zeros)

    is_packed = kind.data.rows == "pairs" or kind.data.packing == "pairs"
    return RowFigures(kind, measure("none"), measure("pairs") if is_packed else None)


def _labels(rows: Mapping[str, np.ndarray]) -> np.ndarray:
    """The label of each sequence of rows, -1 without one: int [B, S]."""
    if "pair_labels" not in rows:  # no objective uses pairs
        return np.full((*rows["sequence_ids"].shape[:-1], rows["sequence_ids"].max()), -1)
    return np.where(rows["pair_weights"] > 0, rows["pair_labels"], -1)


@dataclass(frozen=True)
class Piece:
    """A token of the input; `original` is the label at a masked position."""

    token: str
    original: str | None = None

    def __str__(self) -> str:
        return self.token if self.original is None else f"[{self.token.strip('[]') or self.token}:{self.original}]"


@dataclass(frozen=True)
class ReadablePair:
    """A sentence pair of a row, without [CLS] and [SEP]; running text is all A."""

    row: int  # its number in the run
    label: str
    a: tuple[Piece, ...]
    b: tuple[Piece, ...]


def readable_rows(split: SplitView, tokenizer: Tokenizer, kind: RowKind, number: int) -> tuple[ReadablePair, ...]:
    """The pairs of the first `number` rows of a run, or of one epoch if it is shorter."""
    batches = kind.batches(split, tokenizer)
    numbers = np.arange(min(number, batches.rows_per_epoch))
    rows = batches.rows(numbers)
    return tuple(
        pair
        for n in numbers.tolist()
        for pair in pairs_of_row(n, {key: values[n] for key, values in rows.items()}, tokenizer, kind)
    )


def join_pieces(pieces: tuple[Piece, ...]) -> str:
    """Join pieces to text, without a space before a piece that continues a word."""
    texts = (str(piece) if piece.original is not None else piece.token.removeprefix("##") for piece in pieces)
    return "".join(glue + text for glue, text in zip(piece_separators(pieces), texts, strict=True))


def piece_separators(pieces: tuple[Piece, ...]) -> list[str]:
    """The separator before each piece: empty for the first and for continuations, else a space."""
    return ["" if n == 0 or (piece.original or piece.token).startswith("##") else " " for n, piece in enumerate(pieces)]


def pairs_of_row(number: int, row: dict[str, np.ndarray], tokenizer: Tokenizer, kind: RowKind) -> list[ReadablePair]:
    """The pairs of row `number` of a run, given its arrays."""
    originals = {}
    if "mlm_weights" in row:
        # Next-token prediction masks nothing.
        used = (row["mlm_weights"] > 0) & (kind.data.predict == "masked")
        originals = dict(zip(row["mlm_positions"][used].tolist(), row["mlm_labels"][used].tolist(), strict=True))
    whole = row["input_ids"].copy()
    whole[[*originals]] = [*originals.values()]
    labels = _labels(row)
    pairs = []
    for slot in range(row["sequence_ids"].max()):
        inside = np.flatnonzero(row["sequence_ids"] == slot + 1)
        end = len(inside) - 1  # of A
        if kind.data.rows == "pairs":
            end = int(np.argmax(whole[inside] == tokenizer.sep_id))
        a, b = (
            tuple(
                Piece(
                    tokenizer.display_texts[row["input_ids"][position]],
                    tokenizer.display_texts[originals[position]] if position in originals else None,
                )
                for position in positions.tolist()
            )
            for positions in (inside[1:end], inside[end + kind.template.separators : -1])
        )
        label = int(labels[slot])
        unlabelled = "a pair" if kind.data.rows == "pairs" else "running text"
        label_name = kind.pair_names[label] if label >= 0 else unlabelled
        pairs.append(ReadablePair(number, label_name, a, b))
    return pairs
