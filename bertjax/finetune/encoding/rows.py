"""Examples as rows of tokens, with the special tokens of the model's family."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bertjax.input.layout import BERT, Template
from bertjax.text.ragged import range_indices
from bertjax.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class TaskRows:
    """n rows of unequal length without padding; row i has the tokens [offsets[i], offsets[i + 1]) of each flat array.

    Attention is within equal `sequence_ids` (from 1; 0 is padding), where positions restart. `token_type_ids` are 0 for
    [CLS] A [SEP] and 1 for B [SEP], or 0 everywhere, depending on the template. Every kind of task has `input_ids`,
    `token_type_ids` and `sequence_ids` in `tokens`, int32; `cls_positions` in `rows`, int32 [n, sequences in a row];
    and in one of them `label_weights`, float32, which are 0 without a label. Kinds add further arrays.
    """

    offsets: np.ndarray  # int64 [n + 1]
    tokens: dict[str, np.ndarray]  # [offsets[n]] each
    rows: dict[str, np.ndarray]  # [n, ...] each
    positions: tuple[str, ...] = ("cls_positions",)  # arrays of `rows` that hold positions in the row

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens in each row: int64 [n]."""
        return np.diff(self.offsets)

    @property
    def longest_sequence(self) -> int:
        """Number of tokens in the longest sequence."""
        return int(np.diff(self.rows["cls_positions"], append=self.lengths[:, None]).max())

    def extended(
        self,
        tokens: Mapping[str, np.ndarray] | None = None,
        rows: Mapping[str, np.ndarray] | None = None,
        positions: tuple[str, ...] = (),
    ) -> TaskRows:
        """Return rows with additional arrays."""
        return replace(
            self,
            tokens={**self.tokens, **(tokens or {})},
            rows={**self.rows, **(rows or {})},
            positions=self.positions + positions,
        )

    def tokens_at(
        self, numbers: np.ndarray, begin: np.ndarray, shape: tuple[int, int], pad_id: int
    ) -> dict[str, np.ndarray]:
        """Copy rows into tables of a shape: row `numbers[i]` begins at cell `begin[i]`, int64 [n] each.

        Cells are counted in row-major order. The rest is padding: `pad_id` in `input_ids`, 0 in other tables.
        """
        sizes = self.lengths[numbers]
        source, target = range_indices(self.offsets[numbers], sizes), range_indices(begin, sizes)
        tables = {}
        for key, flat in self.tokens.items():
            tables[key] = np.full(shape, pad_id if key == "input_ids" else 0, flat.dtype)
            tables[key].ravel()[target] = flat[source]
        return tables


@dataclass(frozen=True)
class Segments:
    """The k segments of a row, each followed by [SEP]; the examples below show BERT's template."""

    text: np.ndarray  # int64 [k]: index of the example's text
    opens: np.ndarray  # bool [k]: whether the segment begins a sequence, with [CLS]

    @classmethod
    def one_sequence(cls, texts: int) -> Segments:
        """Put all texts in one sequence: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]."""
        return cls(np.arange(texts), np.arange(texts) == 0)

    @classmethod
    def sequence_each(cls, texts: int) -> Segments:
        """Make a sequence of each text: [CLS] A [SEP] [CLS] B [SEP]."""
        return cls(np.arange(texts), np.ones(texts, bool))

    @classmethod
    def first_with_each(cls, texts: int) -> Segments:
        """Make a sequence of the first text with each other one: [CLS] A [SEP] B [SEP] [CLS] A [SEP] C [SEP]."""
        others = np.arange(1, texts)
        return cls(np.stack([np.zeros_like(others), others], 1).ravel(), np.tile([True, False], len(others)))

    def lengths(self, sizes: np.ndarray, template: Template = BERT) -> np.ndarray:
        """Sum the sizes of segments, [n, k], to tokens per sequence, special ones included: int64 [n, sequences]."""
        return np.add.reduceat(sizes + _before(self.opens, template) + 1, np.flatnonzero(self.opens), axis=1)


def _before(opens: np.ndarray, template: Template) -> np.ndarray:
    """Count the special tokens before each segment, int64 [k]: [CLS], or all separators but the [SEP] after A."""
    return np.where(opens, 1, template.separators - 1)


def join_segments(
    ids: np.ndarray,
    begin: np.ndarray,
    sizes: np.ndarray,
    opens: np.ndarray,
    tokenizer: Tokenizer,
    template: Template = BERT,
) -> TaskRows:
    """Make rows of k segments, with special tokens around them.

    Segment j of row i has the tokens [begin[i, j], begin[i, j] + sizes[i, j]) of `ids`; both are int64 [n, k]. A
    segment that `opens` a sequence, bool [k], begins with [CLS]; other segments begin with all but one of the
    template's separators. Each ends with [SEP].
    """
    before = _before(opens, template)
    lengths = (sizes + before + 1).ravel()
    ends = np.cumsum(lengths)
    starts = ends - lengths
    opening = np.tile(opens, len(sizes))
    input_ids = np.full(ends[-1], tokenizer.sep_id, np.int32)
    input_ids[starts[opening]] = tokenizer.cls_id
    text = range_indices(starts + np.tile(before, len(sizes)), sizes.ravel())
    input_ids[text] = ids[range_indices(begin.ravel(), sizes.ravel())]
    offsets = np.append(0, ends[len(opens) - 1 :: len(opens)]).astype(np.int64)
    cls_positions = starts.reshape(sizes.shape)[:, opens] - offsets[:-1, None]
    tokens = {
        "input_ids": input_ids,
        "token_type_ids": np.repeat(~opening & template.token_types, lengths).astype(np.int32),
        "sequence_ids": np.repeat(np.tile(np.cumsum(opens), len(sizes)), lengths).astype(np.int32),
    }
    return TaskRows(offsets, tokens, {"cls_positions": cls_positions.astype(np.int32)})


def too_long(where: str, length: int, max_length: int) -> ValueError:
    """Make the error for an example of `length` tokens, special ones included, under --strict-length."""
    return ValueError(
        f"{where}: {length} tokens, special ones included, over the max length of {max_length}; raise --max-length, "
        "shorten the example, or leave --strict-length out"
    )
