"""Which tokens of a task's rows are global: they see all of their sequence, and all of it sees them.

Longformer (arXiv 2004.05150, section 3.1) marks [CLS] where texts are classified and the question where it is answered;
the parts below are those that its classes in transformers mark if they are given no mask.
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

_ROUNDED = 8  # numbers of global tokens above one are rounded up to a multiple, for each is a program to compile


class Sequences(NamedTuple):
    """The bounds of sequences in flat arrays of tokens: int64 [sequences] each."""

    begin: np.ndarray  # [CLS]
    separator: np.ndarray  # the first [SEP], `end` if there is none
    second: np.ndarray  # the first token of the second segment, `end` where there is none
    end: np.ndarray  # after the last token


@dataclass(frozen=True)
class Part:
    """A range of tokens in every sequence, from `begin` up to `end`, exclusive."""

    begin: Callable[[Sequences], np.ndarray]
    end: Callable[[Sequences], np.ndarray]


FIRST_TOKEN = Part(lambda of: of.begin, lambda of: of.begin + 1)
FIRST_SEGMENT = Part(lambda of: of.begin, lambda of: of.separator)  # with [CLS]
SECOND_SEGMENT = Part(lambda of: of.second, lambda of: of.end)  # with its [SEP]


def global_positions(
    part: Part, offsets: np.ndarray, input_ids: np.ndarray, sequence_ids: np.ndarray, sep_id: int, template: Template
) -> np.ndarray:
    """The positions of a part's tokens in each row, ascending: int32 [n, G], -1 in unused slots.

    The rows are as `TaskRows` has them: `offsets` int64 [n + 1], ids int32 [offsets[n]].
    """
    rows, lengths = len(offsets) - 1, np.diff(offsets)
    row = np.repeat(np.arange(rows), lengths)
    begin = np.flatnonzero(np.diff(row, prepend=-1) | np.diff(sequence_ids, prepend=0))
    end = np.append(begin[1:], len(row))
    separators = np.append(np.flatnonzero(input_ids == sep_id), len(row))
    separator = np.minimum(separators[np.searchsorted(separators, begin)], end)
    of = Sequences(begin, separator, np.minimum(separator + template.separators, end), end)
    first = part.begin(of)
    sizes = part.end(of) - first
    tokens = range_indices(first, sizes)
    counts = np.bincount(row[tokens], minlength=rows)
    most = int(counts.max(initial=1))
    table = np.full((rows, most if most == 1 else -(-most // _ROUNDED) * _ROUNDED), -1, np.int32)
    table[row[tokens], before_in_row(row[tokens], np.ones_like(tokens))] = tokens - offsets[row[tokens]]
    return table


def with_global_tokens(
    rows: TaskRows, part: Part | None, model: ModelConfig, sep_id: int, template: Template
) -> TaskRows:
    """The rows with the positions that a model with global tokens needs.

    With `model.global_tokens` first they are those of [CLS], with marked those of the part that the kind of task names.
    """
    if model.global_tokens == "first":
        positions = rows.rows["cls_positions"]
    elif model.global_tokens == "marked" and part is not None:
        flat = rows.tokens["input_ids"], rows.tokens["sequence_ids"]
        positions = global_positions(part, rows.offsets, *flat, sep_id, template)
    else:
        return rows
    return rows.extended(rows={GLOBAL_POSITIONS: positions}, positions=(GLOBAL_POSITIONS,))
