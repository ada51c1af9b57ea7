"""Global tokens of a task's rows: they attend to their whole sequence, and all of it attends to them.

Longformer (arXiv 2004.05150, section 3.1) marks [CLS] for classification and the question for question answering. The
parts below are the defaults of its classes in transformers.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from bertjax.config import ModelConfig
from bertjax.finetune.encoding.rows import TaskRows
from bertjax.input.layout import Template
from bertjax.text.ragged import before_in_row, range_indices
from bertjax.training.objectives.objective import GLOBAL_POSITIONS

_MULTIPLE = 8  # counts of global tokens above one are rounded up to a multiple, to compile fewer programs


class Sequences(NamedTuple):
    """The bounds of sequences in flat arrays of tokens: int64 [sequences] each."""

    begin: np.ndarray  # [CLS]
    separator: np.ndarray  # the first [SEP], or `end`
    second: np.ndarray  # the first token of the second segment, or `end`
    end: np.ndarray  # after the last token


@dataclass(frozen=True)
class Part:
    """A range of tokens in every sequence, from `begin` up to `end`, exclusive."""

    begin: Callable[[Sequences], np.ndarray]
    end: Callable[[Sequences], np.ndarray]


FIRST_TOKEN = Part(lambda bounds: bounds.begin, lambda bounds: bounds.begin + 1)
FIRST_SEGMENT = Part(lambda bounds: bounds.begin, lambda bounds: bounds.separator)  # with [CLS]
SECOND_SEGMENT = Part(lambda bounds: bounds.second, lambda bounds: bounds.end)  # with its [SEP]


def global_positions(
    part: Part, offsets: np.ndarray, input_ids: np.ndarray, sequence_ids: np.ndarray, sep_id: int, template: Template
) -> np.ndarray:
    """Find the positions of a part's tokens in each row, ascending: int32 [n, G], -1 in unused slots.

    `offsets` int64 [n + 1] and both ids int32 [offsets[n]] are as in `TaskRows`.
    """
    rows, lengths = len(offsets) - 1, np.diff(offsets)
    row = np.repeat(np.arange(rows), lengths)
    begin = np.flatnonzero(np.diff(row, prepend=-1) | np.diff(sequence_ids, prepend=0))
    end = np.append(begin[1:], len(row))
    separators = np.append(np.flatnonzero(input_ids == sep_id), len(row))
    separator = np.minimum(separators[np.searchsorted(separators, begin)], end)
    bounds = Sequences(begin, separator, np.minimum(separator + template.separators, end), end)
    first = part.begin(bounds)
    sizes = part.end(bounds) - first
    tokens = range_indices(first, sizes)
    counts = np.bincount(row[tokens], minlength=rows)
    most = int(counts.max(initial=1))
    table = np.full((rows, most if most == 1 else -(-most // _MULTIPLE) * _MULTIPLE), -1, np.int32)
    table[row[tokens], before_in_row(row[tokens], np.ones_like(tokens))] = tokens - offsets[row[tokens]]
    return table


def with_global_tokens(
    rows: TaskRows, part: Part | None, model: ModelConfig, sep_id: int, template: Template
) -> TaskRows:
    """Add the positions of global tokens: [CLS] if `model.global_tokens` is "first", `part` if it is "marked"."""
    if model.global_tokens == "first":
        positions = rows.rows["cls_positions"]
    elif model.global_tokens == "marked" and part is not None:
        flat = rows.tokens["input_ids"], rows.tokens["sequence_ids"]
        positions = global_positions(part, rows.offsets, *flat, sep_id, template)
    else:
        return rows
    return rows.extended(rows={GLOBAL_POSITIONS: positions}, positions=(GLOBAL_POSITIONS,))
