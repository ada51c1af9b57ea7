"""Hugging Face's tensor names and those of google-research/bert's TensorFlow 1 checkpoints, in both directions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import numpy as np

# (a part of Hugging Face's name, the same part of TensorFlow's), tried in order.
_PARTS = (
    (r"bert\.encoder\.layer\.(\d+)\.", r"bert/encoder/layer_\1/"),
    (r"bert\.embeddings\.(\w+_embeddings)\.weight", r"bert/embeddings/\1"),
    (r"bert\.pooler\.dense\.", r"bert/pooler/dense/"),
    (r"cls\.seq_relationship\.weight", r"cls/seq_relationship/output_weights"),
    (r"cls\.seq_relationship\.bias", r"cls/seq_relationship/output_bias"),
    (r"cls\.predictions\.bias", r"cls/predictions/output_bias"),
)
_KERNEL = "/kernel"


def tensorflow_name(name: str) -> str:
    """TensorFlow's name of a tensor that Hugging Face names so."""
    for pattern, replacement in _PARTS:
        name = re.sub(pattern, replacement, name)
    name = name.replace(".", "/")
    if "LayerNorm/" in name:
        return name.replace("LayerNorm/weight", "LayerNorm/gamma").replace("LayerNorm/bias", "LayerNorm/beta")
    return re.sub(r"/weight$", _KERNEL, name)


def to_tensorflow(tensors: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Hugging Face's tensors under TensorFlow's names; a kernel is [inputs, outputs] there."""
    return {tensorflow_name(name): _transposed(tensorflow_name(name), array) for name, array in tensors.items()}


def from_tensorflow(arrays: Mapping[str, np.ndarray], names: Iterable[str]) -> dict[str, np.ndarray]:
    """TensorFlow's arrays under Hugging Face's names, for those of `names` that are there."""
    theirs = {name: tensorflow_name(name) for name in names}
    return {ours: _transposed(name, arrays[name]) for ours, name in theirs.items() if name in arrays}


def _transposed(name: str, array: np.ndarray) -> np.ndarray:
    # The next-sentence weights are [labels, D] in both, as they are multiplied transposed in TensorFlow.
    return np.ascontiguousarray(array.T) if name.endswith(_KERNEL) else array
