"""Examples as rows of tokens, with special tokens where the template of the model's family puts them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from bertjax.input.layout import BERT, Template
from bertjax.text.ragged import range_indices
from bertjax.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class TaskRows:
    """n rows of unequal length, without padding: tokens of row i are [offsets[i], offsets[i + 1]) of each flat array.

    Attention is only within equal `sequence_ids` (from 1; 0 is padding, which no row has), where positions restart;
    `token_type_ids` are 0 for [CLS] A [SEP] and 1 for B [SEP], or 0 everywhere by the template. Every kind of task has
    `input_ids`, `token_type_ids` and `sequence_ids` in `tokens`, int32, and in `rows` `cls_positions`, int32 [n,
    sequences in a row]. What else there is says the kind; an array `label_weights` float32, 0 where there is no label,
    is in one of them.
    """

    offsets: np.ndarray  # int64 [n + 1]
    tokens: dict[str, np.ndarray]  # [offsets[n]] each
    rows: dict[str, np.ndarray]  # [n, ...] each
    positions: tuple[str, ...] = ("cls_positions",)  # those of `rows` that hold positions in the row

    def __len__(self) -> int:
        return len(self.offsets) - 1

    @property
    def lengths(self) -> np.ndarray:
        """Number of tokens in each row: int64 [n]."""
        return np.diff(self.offsets)

    @property
    def longest_sequence(self) -> int:
        """Tokens of the longest sequence."""
        return int(np.diff(self.rows["cls_positions"], append=self.lengths[:, None]).max())

    def extended(
        self,
        tokens: Mapping[str, np.ndarray] | None = None,
        rows: Mapping[str, np.ndarray] | None = None,
        positions: tuple[str, ...] = (),
    ) -> TaskRows:
        """These rows with more arrays."""
        return replace(
            self,
            tokens={**self.tokens, **(tokens or {})},
            rows={**self.rows, **(rows or {})},
            positions=self.positions + positions,
        )

    def tokens_at(
        self, numbers: np.ndarray, begin: np.ndarray, shape: tuple[int, int], pad_id: int
    ) -> dict[str, np.ndarray]:
        """The tokens of some rows in tables of a shape: those of row `numbers[i]` from cell `begin[i]` on, int64 [n].

        Cells are counted along the rows of a table. Elsewhere is padding: `pad_id` for `input_ids`, 0 for the others.
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
    """The k segments of a row, each of which a [SEP] ends; shown below in BERT's template."""

    text: np.ndarray  # int64 [k]: index of the example's text that it holds
    opens: np.ndarray  # bool [k]: it begins a sequence, with [CLS]

    @classmethod
    def one_sequence(cls, texts: int) -> Segments:
        """All texts of an example in one sequence: [CLS] A [SEP], or [CLS] A [SEP] B [SEP]."""
        return cls(np.arange(texts), np.arange(texts) == 0)

    @classmethod
    def sequence_each(cls, texts: int) -> Segments:
        """A sequence for each text: [CLS] A [SEP] [CLS] B [SEP]."""
        return cls(np.arange(texts), np.ones(texts, bool))

    @classmethod
    def first_with_each(cls, texts: int) -> Segments:
        """A sequence for each text but the first, which begins all: [CLS] A [SEP] B [SEP] [CLS] A [SEP] C [SEP]."""
        others = np.arange(1, texts)
        return cls(np.stack([np.zeros_like(others), others], 1).ravel(), np.tile([True, False], len(others)))

    def lengths(self, sizes: np.ndarray, template: Template = BERT) -> np.ndarray:
        """Tokens of each sequence, special ones included, int64 [n, sequences], of segments of int64 [n, k] tokens."""
        return np.add.reduceat(sizes + _before(self.opens, template) + 1, np.flatnonzero(self.opens), axis=1)


def _before(opens: np.ndarray, template: Template) -> np.ndarray:
    """Special tokens before the text of each segment, int64 [k]: [CLS], or all separators but the [SEP] after A."""
    return np.where(opens, 1, template.separators - 1)


def rows_of_segments(
    ids: np.ndarray,
    begin: np.ndarray,
    sizes: np.ndarray,
    opens: np.ndarray,
    tokenizer: Tokenizer,
    template: Template = BERT,
) -> TaskRows:
    """Rows of k segments each, with the special tokens around them.

    Segment j of row i is the tokens [begin[i, j], begin[i, j] + sizes[i, j]) of `ids`; both are int64 [n, k]. Where
    `opens`, bool [k], [CLS] comes before it, and a [SEP] comes after each; one that does not open a sequence has the
    rest of the template's separators before it.
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
    """The error for an example of `length` tokens, special ones included, under --strict-length."""
    return ValueError(
        f"{where}: {length} tokens, special ones included, over the max length of {max_length}; raise --max-length, "
        "shorten the example, or leave --strict-length out"
    )
