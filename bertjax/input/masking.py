"""The language model's part of a batch: which tokens are hidden, how, and what is to be predicted."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from bertjax.input.randomness import fold_in, hash64

_POSITION_BITS = 16
_POSITION_MASK = 2**_POSITION_BITS - 1
_LAST = np.uint64(2**64 - 1)
_LOW_HALF = 2**32 - 1


@dataclass(frozen=True)
class MaskRule:
    """How many tokens are hidden, and by what."""

    probability: float  # share of a sequence's tokens, [CLS] and [SEP] counted
    max_predictions: int  # P
    mask_id: int
    vocab_size: int  # random replacements come from all of it
    is_continuation: np.ndarray | None = None  # bool [vocab_size], tokens that go on with a word: mask whole words
    keep_share: float = 0.1  # of the chosen tokens; the paper's 80/10/10 (section 3.1)
    random_share: float = 0.1  # of them too; the rest become [MASK]


def mask_tokens(
    input_ids: np.ndarray,
    candidates: np.ndarray,
    keys: np.ndarray,
    rule: MaskRule,
    special: int | np.ndarray = 3,
    continues: np.ndarray | None = None,
) -> tuple[np.ndarray, dict[str, np.ndarray]]:
    """Hide tokens of each row and say what they were.

    Rule: create_masked_lm_predictions of google-research/bert, create_pretraining_data.py.

    `input_ids` int32[B, L]; `candidates` bool[B, L] is true where a token may be hidden, that is everywhere but on
    padding and on a row's special tokens, of which there are `special`, int64[B] or one number; `keys` uint64[B], one
    per sentence pair: all that the draws depend on; `continues`, bool for each candidate in order, says which go on
    with a word, where it is not the ids that tell.
    Returns the ids after masking, int32[B, L], and `mlm_positions`, `mlm_labels` int32[B, P] in ascending order of
    position, 0 on unused slots, and `mlm_weights` float32[B, P], 1 on used slots and 0 on the others.
    """
    available = np.count_nonzero(candidates, axis=1)
    wanted = np.rint((available + special) * rule.probability).astype(np.int64)  # half to even, as Python's round
    counts = np.minimum(np.clip(wanted, 1, rule.max_predictions), available)
    order_keys = fold_in(keys, "mask order")
    if rule.is_continuation is None:
        positions = _choose_tokens(candidates, counts, order_keys, rule.max_predictions)
    else:
        if continues is None:
            continues = rule.is_continuation[input_ids[candidates]]
        positions = _choose_words(candidates, continues, counts, order_keys, rule.max_predictions)
    is_used = positions < input_ids.shape[1]
    positions[~is_used] = 0  # [CLS], which is never hidden: there its own id is written back
    cells = positions + np.arange(len(positions))[:, None] * input_ids.shape[1]
    labels = input_ids.ravel()[cells]
    masked = input_ids.copy()
    masked.ravel()[cells] = np.where(is_used, _replace(labels, positions, keys, rule), labels)
    return masked, {
        "mlm_positions": positions.astype(np.int32),
        "mlm_labels": np.where(is_used, labels, 0),
        "mlm_weights": is_used.astype(np.float32),
    }


def next_tokens(input_ids: np.ndarray, sequence_ids: np.ndarray) -> dict[str, np.ndarray]:
    """What a left-to-right model is to predict: at every position the token after it (paper, section 5.1).

    Both int32[B, L]; nothing is hidden. Returns the same arrays as `mask_tokens`, for P = L - 1 predictions: one for
    every token but the last of its sequence.
    """
    has_next = (sequence_ids[:, 1:] == sequence_ids[:, :-1]) & (sequence_ids[:, 1:] > 0)
    positions = np.broadcast_to(np.arange(has_next.shape[1], dtype=np.int32), has_next.shape)
    return {
        "mlm_positions": np.where(has_next, positions, 0),
        "mlm_labels": np.where(has_next, input_ids[:, 1:], 0),
        "mlm_weights": has_next.astype(np.float32),
    }


def _choose_tokens(candidates: np.ndarray, counts: np.ndarray, keys: np.ndarray, slots: int) -> np.ndarray:
    """Positions int64[B, slots], ascending, of `counts` candidates drawn without replacement; L on unused slots."""
    order = _shuffle_key(candidates, keys)
    length = order.shape[1]
    positions = np.full((len(order), slots), length, np.int64)
    kept = min(slots, length)
    first = np.sort(np.partition(order, kept - 1, axis=1)[:, :kept], axis=1)
    positions[:, :kept] = first & _POSITION_MASK
    positions[np.arange(slots) >= counts[:, None]] = length
    positions.sort(axis=1)
    return positions


def _shuffle_key(is_drawn: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """uint64[B, n]: sorting a row shuffles its columns, those with `is_drawn` false last; low bits hold the column."""
    column = np.arange(is_drawn.shape[1], dtype=np.uint64)
    assert len(column) <= _POSITION_MASK
    order = hash64(keys[:, None], column)
    order &= ~np.uint64(_POSITION_MASK)
    order |= column
    np.copyto(order, _LAST, where=~is_drawn)
    return order


def _choose_words(
    candidates: np.ndarray, continues: np.ndarray, counts: np.ndarray, keys: np.ndarray, slots: int
) -> np.ndarray:
    """As `_choose_tokens`, in whole words: a word with more tokens than are still to be chosen is skipped.

    `continues` says of each candidate, in order, whether it belongs to the candidate before it: as in the reference
    even across a [SEP], and never the first one of a row.
    """
    batch, length = candidates.shape
    cells = np.flatnonzero(candidates)
    available = np.count_nonzero(candidates, axis=1)
    is_start = ~continues
    is_start[_before(available)[available > 0]] = True
    starts = np.flatnonzero(is_start)
    sizes = np.diff(starts, append=len(cells))
    row = cells[starts] // length
    words = np.bincount(row, minlength=batch)
    column = np.arange(len(starts)) - _before(words)[row]
    table = np.zeros((batch, max(words, default=0)), np.int64)
    table[row, column] = sizes
    is_chosen = np.repeat(_fill_greedily(table, counts, keys)[row, column], sizes)

    rows, columns = np.divmod(cells[is_chosen], length)
    positions = np.full((batch, slots), length, np.int64)
    positions[rows, np.arange(len(rows)) - _before(np.bincount(rows, minlength=batch))[rows]] = columns
    return positions


def _before(counts: np.ndarray) -> np.ndarray:
    """How many there are in all rows before each row."""
    return np.cumsum(counts) - counts


def _fill_greedily(sizes: np.ndarray, room: np.ndarray, keys: np.ndarray) -> np.ndarray:
    """Which of each row's things fit in its room, tried in random order: bool[B, n] from int64[B, n] and int64[B].

    A row with fewer than n things has size 0 in its last columns.
    """
    shuffled = np.sort(_shuffle_key(sizes > 0, keys), axis=1) & _POSITION_MASK
    order = np.minimum(shuffled, max(sizes.shape[1] - 1, 0)).astype(np.int64)  # past a row's things, a column of size 0
    left = room.copy()
    is_taken = np.zeros(sizes.shape[::-1], bool)
    for taken, size in zip(is_taken, np.take_along_axis(sizes, order, axis=1).T, strict=True):
        np.logical_and(size > 0, size <= left, out=taken)
        left -= size * taken
        if not left.any():
            break
    is_chosen = np.zeros(sizes.shape, bool)
    np.put_along_axis(is_chosen, order, is_taken.T, axis=1)
    return is_chosen


def _replace(labels: np.ndarray, positions: np.ndarray, keys: np.ndarray, rule: MaskRule) -> np.ndarray:
    """What is shown instead of the chosen tokens, int32[B, P]; each token is drawn for itself."""
    bits = hash64(fold_in(keys, "replacement")[:, None], positions)
    kind = (bits & _LOW_HALF) * 2.0**-32
    replacement = (bits >> 32) * rule.vocab_size >> 32
    shown = np.where(kind < rule.keep_share, labels, replacement.astype(np.int32))
    return np.where(kind < rule.keep_share + rule.random_share, shown, rule.mask_id)
