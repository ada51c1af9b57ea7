"""Rows as text: the words of both segments, and at a masked position the input token and the original."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertjax.input.batches import PairBatches
from bertjax.inspect.row_figures import RowKind
from bertjax.text.store.format import SplitView
from bertjax.tokenization.tokenizer import Tokenizer

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
