"""Our parameters and those of Hugging Face's BERTs: which array is which, as one table read in both directions."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import jax
import numpy as np

from bertjax.config import ModelConfig
from bertjax.model.encoder import sinusoids
from bertjax.model.network import HEADS, Network, Params, abstract_network, head_of
from bertjax.training.checkpoint import named_arrays

_SHOWN = 5  # tensor names in a message


@dataclass(frozen=True)
class Tensor:
    """One array under both names.

    `theirs` with {} stands for one array per layer, which are stacked in ours. `inputs` is the number of leading dims
    of a kernel that it multiplies; theirs is a matrix [outputs, inputs]. 0 is for vectors and tables, which have the
    same elements in the same order. The first dim of a `padded` array is longer in ours than the vocabulary.
    """

    ours: str
    theirs: str
    inputs: int = 0
    padded: bool = False

    @property
    def per_layer(self) -> bool:
        """Whether theirs is one array per layer."""
        return "{}" in self.theirs

    def their_shape(self, shape: tuple[int, ...], vocab_size: int) -> tuple[int, ...]:
        """The shape of theirs, given that of ours in one layer."""
        if self.inputs:
            return math.prod(shape[self.inputs :]), math.prod(shape[: self.inputs])
        if self.padded:
            return vocab_size, *shape[1:]
        return (math.prod(shape),) if self.per_layer else shape


def _dense(ours: str, theirs: str, inputs: int = 1) -> tuple[Tensor, Tensor]:
    return Tensor(f"{ours}/kernel", f"{theirs}.weight", inputs), Tensor(f"{ours}/bias", f"{theirs}.bias")


def _norm(ours: str, theirs: str) -> tuple[Tensor, Tensor]:
    return Tensor(f"{ours}/scale", f"{theirs}.weight"), Tensor(f"{ours}/bias", f"{theirs}.bias")


_ENCODER: tuple[Tensor, ...] = (
    Tensor("encoder/embeddings/word", "bert.embeddings.word_embeddings.weight", padded=True),
    Tensor("encoder/embeddings/position", "bert.embeddings.position_embeddings.weight"),
    Tensor("encoder/embeddings/token_type", "bert.embeddings.token_type_embeddings.weight"),
    *_norm("encoder/embeddings/norm", "bert.embeddings.LayerNorm"),
    *_dense("encoder/layers/attention/query", "bert.encoder.layer.{}.attention.self.query"),
    *_dense("encoder/layers/attention/key", "bert.encoder.layer.{}.attention.self.key"),
    *_dense("encoder/layers/attention/value", "bert.encoder.layer.{}.attention.self.value"),
    *_dense("encoder/layers/attention/output", "bert.encoder.layer.{}.attention.output.dense", inputs=2),
    *_norm("encoder/layers/attention_norm", "bert.encoder.layer.{}.attention.output.LayerNorm"),
    *_dense("encoder/layers/mlp/intermediate", "bert.encoder.layer.{}.intermediate.dense"),
    *_dense("encoder/layers/mlp/output", "bert.encoder.layer.{}.output.dense"),
    *_norm("encoder/layers/mlp_norm", "bert.encoder.layer.{}.output.LayerNorm"),
)
_POOLED = (*_ENCODER, *_dense("pooler/dense", "bert.pooler.dense"))

# The output matrix of the MLM head is the word embeddings, and stored once, as transformers does.
_PRETRAINING = (
    *_POOLED,
    *_dense("mlm_head/transform", "cls.predictions.transform.dense"),
    *_norm("mlm_head/norm", "cls.predictions.transform.LayerNorm"),
    Tensor("mlm_head/bias", "cls.predictions.bias", padded=True),
    *_dense("nsp_head/dense", "cls.seq_relationship"),
)


def architecture(config: ModelConfig) -> str:
    """The class of transformers that is a model of this config."""
    return _class_of(head_of(config))


def head_named(architecture: str) -> type[Network] | None:
    """The head of a task whose models are of this class of transformers; None if there is none."""
    return next((head for head in HEADS.values() if head.outputs and _class_of(head) == architecture), None)


def has_class(config: ModelConfig) -> bool:
    """Whether transformers has a class for a model of this config."""
    return not (config.features or config.lstm_size)


def tensors_of(config: ModelConfig) -> tuple[Tensor, ...]:
    """Every array of a model of this config. Raises ValueError for one that transformers has no class for."""
    if not has_class(config):
        raise ValueError(
            f"model.features={config.features}, model.lstm_size={config.lstm_size}: transformers has no such network; "
            "bertjax alone can use the feature-based variant"
        )
    head = head_of(config)
    if not head.of_task:
        return _PRETRAINING
    own = _dense("head/dense", head.transformers_head) if head.transformers_head else ()
    return (*(_POOLED if head.pooled else _ENCODER), *own)


def _class_of(head: type[Network]) -> str:
    return f"Bert{head.transformers}"


def to_huggingface_tensors(params: Params, config: ModelConfig) -> dict[str, np.ndarray]:
    """Our parameters as Hugging Face's float32 tensors by name, without the vocabulary's padding.

    Fixed positions are written as the table that would have to be learned to be them.
    """
    arrays = named_arrays(params)
    if config.position_embedding == "sinusoidal":
        arrays["encoder/embeddings/position"] = sinusoids(config)
    table = tensors_of(config)
    assert set(arrays) == {tensor.ours for tensor in table}, "the table and the model have different parameters"
    tensors: dict[str, np.ndarray] = {}
    for tensor in table:
        array = np.asarray(jax.device_get(arrays[tensor.ours]))
        for number, layer in enumerate(array if tensor.per_layer else [array]):
            tensors[tensor.theirs.format(number)] = _theirs(tensor, layer, config.vocab_size)
    return tensors


def from_huggingface_tensors(tensors: Mapping[str, np.ndarray], config: ModelConfig) -> Params:
    """Hugging Face's tensors as our parameters: NumPy float32, layers stacked, the vocabulary padded with zeros.

    Raises ValueError naming the tensors that are missing, left over, or of another shape than `config` says.
    """
    wanted = their_shapes(config)
    missing, extra = sorted(wanted.keys() - tensors.keys()), sorted(tensors.keys() - wanted.keys())
    if missing or extra:
        raise ValueError(
            f"the tensors are not those of a {architecture(config)} with num_hidden_layers={config.num_hidden_layers}: "
            f"missing {_some(missing)}; left over {_some(extra)}"
        )
    for name, shape in wanted.items():
        if tensors[name].shape != shape:
            raise ValueError(f"tensor {name} has shape {tensors[name].shape}; by the model's config it is {shape}")
    shapes = abstract_network(config)[1]
    by_name = {tensor.ours: tensor for tensor in tensors_of(config)}
    arrays = [_ours(by_name[name], tensors, leaf.shape) for name, leaf in named_arrays(shapes).items()]
    return jax.tree.unflatten(jax.tree.structure(shapes), arrays)


def their_shapes(config: ModelConfig) -> dict[str, tuple[int, ...]]:
    """Name -> shape of every tensor of Hugging Face's that a model of this config has; no array is made."""
    arrays = named_arrays(abstract_network(config)[1])
    shapes: dict[str, tuple[int, ...]] = {}
    for tensor in tensors_of(config):
        ours = arrays[tensor.ours].shape
        layers, one = (ours[0], ours[1:]) if tensor.per_layer else (1, ours)
        shapes |= {tensor.theirs.format(n): tensor.their_shape(one, config.vocab_size) for n in range(layers)}
    return shapes


def _theirs(tensor: Tensor, array: np.ndarray, vocab_size: int) -> np.ndarray:
    """One of our arrays, of one layer, as theirs; contiguous."""
    shape = tensor.their_shape(array.shape, vocab_size)
    if tensor.padded:
        array = array[:vocab_size]
    return np.ascontiguousarray(array.reshape(shape[::-1]).T if tensor.inputs else array.reshape(shape))


def _ours(tensor: Tensor, tensors: Mapping[str, np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Their array, or the arrays of all layers, as ours of the given shape."""
    numbers = range(shape[0] if tensor.per_layer else 1)
    arrays = [np.asarray(tensors[tensor.theirs.format(number)], np.float32) for number in numbers]
    if tensor.inputs:
        arrays = [array.T for array in arrays]
    if tensor.per_layer:
        return np.stack(arrays).reshape(shape)
    (array,) = arrays
    if tensor.padded:
        array = np.pad(array, [(0, shape[0] - len(array)), *[(0, 0)] * (array.ndim - 1)])
    return array.reshape(shape)


def _some(names: list[str]) -> str:
    more = len(names) - _SHOWN
    return (", ".join(names[:_SHOWN]) or "nothing") + (f" and {more} more" if more > 0 else "")
