"""Parse pretraining records of google-research/bert into rows of a batch.

create_pretraining_data.py writes a tf.train.Example per row: ids, mask, segments, masked tokens and the next-sentence
label. Our rows have the same values under other names.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np

from bertjax.config import DataConfig
from bertjax.input.layout import Vocabulary
from bertjax.input.targets.nsp import RECORDED_LABEL
from bertjax.input.targets.registry import TARGETS
from bertjax.input.tfrecords.record_files import tensorflow
from bertjax.text.ragged import range_indices

Name = Callable[[int], str]  # index of a record that was read -> its name, for messages

_TOKEN_FEATURES = ("input_ids", "input_mask", "segment_ids")
_PREDICTION_FEATURES = ("masked_lm_positions", "masked_lm_ids", "masked_lm_weights")
_FEATURES = (*_TOKEN_FEATURES, *_PREDICTION_FEATURES, RECORDED_LABEL)
_LEAST_MASKED = 10  # masked tokens; with 80 % [MASK], the probability that none of them is [MASK] is 1e-7


class RowShape(NamedTuple):
    """The sizes of a row."""

    tokens: int
    predictions: int

    @classmethod
    def of(cls, data: DataConfig) -> RowShape:
        """Take the sizes from a config."""
        return cls(data.sequence_length, data.max_predictions)

    def __str__(self) -> str:
        return f"{self.tokens} tokens and {self.predictions} predictions"


@dataclass(frozen=True)
class Segments:
    """The segments of rows, concatenated, with the interface of a token store's sentences."""

    ids: np.ndarray  # int32 [tokens]
    lengths: np.ndarray  # int64 [segments], above 0

    @property
    def num_sentences(self) -> int:
        """The number of segments."""
        return len(self.lengths)

    @cached_property
    def sentence_offsets(self) -> np.ndarray:
        """First token of each segment, and the number of tokens: int64 [segments + 1]."""
        return np.concatenate([np.zeros(1, np.int64), np.cumsum(self.lengths)])

    def tokens(self, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The ids of ranges [start, start + length), concatenated in order: int32 [sum of lengths]."""
        return self.ids[range_indices(starts, lengths)]


# Objective -> function that converts the features of records to its arrays
RECORDED = {name: target.from_records for name, target in TARGETS.items() if target.from_records}


def record_shape(record: bytes, name: str) -> RowShape:
    """The sizes of a record's row.

    Raises ValueError if it is not a tf.train.Example, lacks a feature, or has features of different lengths;
    ModuleNotFoundError without TensorFlow.
    """
    tf = tensorflow()
    any_length = {key: tf.io.FixedLenSequenceFeature([], _dtype(tf, key), allow_missing=True) for key in _FEATURES}
    try:
        sizes = {key: len(values) for key, values in tf.io.parse_single_example(record, any_length).items()}
    except UnicodeDecodeError:  # from TensorFlow's own message, which quotes the record
        raise ValueError(f"{name}: not a record of create_pretraining_data.py (a name in it is not UTF-8)") from None
    except tf.errors.InvalidArgumentError as error:
        reason = error.message.partition("}} ")[2].partition(", value:")[0].partition(" [Op:")[0]
        raise ValueError(f"{name}: not a record of create_pretraining_data.py ({reason})") from None
    if missing := [key for key in _FEATURES if not sizes[key]]:
        raise ValueError(
            f"{name}: no feature {', '.join(missing)}; create_pretraining_data.py of google-research/bert writes "
            f"{', '.join(_FEATURES)}"
        )
    shape = RowShape(sizes["input_ids"], sizes["masked_lm_ids"])
    for key in _FEATURES:
        if sizes[key] != _size(key, shape):
            raise ValueError(f"{name}: {key} has {sizes[key]} values, but a row of {shape} needs {_size(key, shape)}")
    return shape


def parse(records: Sequence[bytes], shape: RowShape, name: Name) -> dict[str, np.ndarray]:
    """Parse B records of one shape to their features by name, int64 and float32 [B, n].

    Raises ValueError with the name of the first record of another shape, and like `record_shape`.
    """
    tf = tensorflow()
    features = {key: tf.io.FixedLenFeature([_size(key, shape)], _dtype(tf, key)) for key in _FEATURES}
    try:
        return {key: values.numpy() for key, values in tf.io.parse_example(list(records), features).items()}
    except (tf.errors.InvalidArgumentError, UnicodeDecodeError):
        for number, record in enumerate(records):
            if (other := record_shape(record, name(number))) != shape:
                raise ValueError(
                    f"{name(number)}: a row of {other}, in a file that begins with a row of {shape}; give each size of "
                    "rows its own files"
                ) from None
        raise


def rows_from_features(
    features: dict[str, np.ndarray], vocabulary: Vocabulary, name: Name, objectives: Sequence[str] = tuple(RECORDED)
) -> dict[str, np.ndarray]:
    """Convert the features of B records to the arrays of `bertjax.input.batches.batch_spec`.

    Raises ValueError with the record, the feature and the value if a value is invalid.
    """
    _require_valid(features, vocabulary, name)
    ids, mask, segments = (features[key].astype(np.int32) for key in _TOKEN_FEATURES)
    rows = {
        "input_ids": np.where(mask > 0, ids, np.int32(vocabulary.pad_id)),
        "token_type_ids": segments,
        "sequence_ids": mask,
    }
    for objective in objectives:
        rows |= RECORDED[objective](features)
    return rows


def require_special_tokens(rows: dict[str, np.ndarray], vocabulary: Vocabulary, name: Name) -> None:
    """Raise ValueError unless [CLS], [SEP] and [MASK] are where the right vocabulary would have them."""
    ids, mask = rows["input_ids"], rows["sequence_ids"]
    last = np.maximum(mask.sum(axis=1) - 1, 0)
    for at, token_id, token in ((0 * last, vocabulary.cls_id, "[CLS]"), (last, vocabulary.sep_id, "[SEP]")):
        tokens = ids[np.arange(len(ids)), at]
        for number in np.flatnonzero(tokens != token_id).tolist():
            raise ValueError(
                f"{name(number)}: input_ids[{at[number]}]={tokens[number]} should be {token}, which is {token_id} in "
                "data.vocab; give the vocab.txt that the records were made with"
            )
    inputs = np.take_along_axis(ids, rows["mlm_positions"], axis=1)[rows["mlm_weights"] > 0]
    if len(inputs) >= _LEAST_MASKED and vocabulary.mask_id not in inputs:
        raise ValueError(
            f"{name(0)}: none of the {len(inputs)} tokens masked here and in the next records is [MASK], which is "
            f"{vocabulary.mask_id} in data.vocab; give the vocab.txt that the records were made with"
        )


def unmasked_segments(rows: dict[str, np.ndarray], vocabulary: Vocabulary) -> Segments:
    """The text of sentence pairs: their segments without special tokens and masks."""
    ids, segments = rows["input_ids"].copy(), rows["token_type_ids"]
    row, slot = np.nonzero(rows["mlm_weights"])
    ids[row, rows["mlm_positions"][row, slot]] = rows["mlm_labels"][row, slot]
    is_text = (rows["sequence_ids"] > 0) & (ids != vocabulary.cls_id) & (ids != vocabulary.sep_id)
    lengths = np.bincount((2 * np.arange(len(ids))[:, None] + segments)[is_text])
    return Segments(ids[is_text], lengths[lengths > 0])


def _require_valid(features: dict[str, np.ndarray], vocabulary: Vocabulary, name: Name) -> None:
    """Raise ValueError for the first value out of its range."""
    length, entries = features["input_ids"].shape[1], vocabulary.vocab_size
    in_vocabulary = (entries, f"data.vocab has {entries:,} entries; give the vocab.txt that the records were made with")
    yes_or_no = (2, "it must be 0 or 1")
    bounds = {
        "input_ids": in_vocabulary,
        "masked_lm_ids": in_vocabulary,
        "input_mask": yes_or_no,
        "segment_ids": yes_or_no,
        RECORDED_LABEL: yes_or_no,
        "masked_lm_positions": (length, f"the row has {length} tokens"),
    }
    for key, (bound, reason) in bounds.items():
        _require((features[key] >= 0) & (features[key] < bound), features, key, reason, name)
    weights = features["masked_lm_weights"]
    _require((weights >= 0) & (weights <= 1), features, "masked_lm_weights", "it must be between 0 and 1", name)
    on_token = np.take_along_axis(features["input_mask"], features["masked_lm_positions"], axis=1) > 0
    _require(on_token | (weights == 0), features, "masked_lm_positions", "this position is padding", name)


def _require(is_valid: np.ndarray, features: dict[str, np.ndarray], key: str, reason: str, name: Name) -> None:
    for number, index in np.argwhere(~is_valid).tolist():
        raise ValueError(f"{name(number)}: {key}[{index}]={features[key][number, index]}; {reason}")


def _size(key: str, shape: RowShape) -> int:
    return shape.tokens if key in _TOKEN_FEATURES else shape.predictions if key in _PREDICTION_FEATURES else 1


def _dtype(tf: Any, key: str) -> Any:
    return tf.float32 if key == "masked_lm_weights" else tf.int64
