"""A graph as TensorFlow traces it: every node is computed at once, on tensors or in the graph of a function."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

import numpy as np

from bertjax.storage.lean_import import import_tensorflow

tf = import_tensorflow(required=True)


def _normed(x: Any, scale: Any, bias: Any = None, *, axis: int, epsilon: float) -> Any:
    assert axis == -1
    centred = x - tf.reduce_mean(x, -1, keepdims=True)
    y = centred * tf.math.rsqrt(tf.reduce_mean(tf.square(centred), -1, keepdims=True) + epsilon) * scale
    return y if bias is None else y + bias


def _convolved(x: Any, kernel: Any, *, pads: list[int], kernel_shape: list[int]) -> Any:
    """[B, D, L] by [D out, D in, taps]."""
    rows = tf.pad(tf.transpose(x, [0, 2, 1]), [[0, 0], pads, [0, 0]])
    return tf.transpose(tf.nn.conv1d(rows, tf.transpose(kernel, [2, 1, 0]), 1, "VALID"), [0, 2, 1])


_REDUCED: dict[str, Callable] = {
    "ReduceMean": tf.reduce_mean,
    "ReduceMax": tf.reduce_max,
    "ReduceL2": lambda x, axes, keepdims: tf.sqrt(tf.reduce_sum(tf.square(x), axes, keepdims)),
}
# By ONNX's names of operators, with its order of inputs and its attributes.
_OPERATORS: dict[str, Callable] = {
    "Abs": tf.abs,
    "Add": tf.add,
    "And": tf.logical_and,
    "Concat": lambda *parts, axis: tf.concat(parts, axis),
    "Conv": _convolved,
    "Cos": tf.cos,
    "CumSum": lambda x, axis: tf.cumsum(x, axis),
    "Div": tf.divide,
    "Equal": tf.equal,
    "Erf": tf.math.erf,
    "Gather": lambda x, index, axis=0: tf.gather(x, index, axis=axis),
    "GatherElements": lambda x, index, axis: tf.gather(x, index, axis=axis, batch_dims=axis),
    "LayerNormalization": _normed,
    "LessOrEqual": tf.less_equal,
    "MatMul": tf.matmul,
    "Max": tf.maximum,
    "Min": tf.minimum,
    "Mul": tf.multiply,
    "Not": tf.logical_not,
    "Relu": tf.nn.relu,
    "Sigmoid": tf.sigmoid,
    "Sin": tf.sin,
    "Softmax": lambda x, axis: tf.nn.softmax(x, axis),
    "Sqrt": tf.sqrt,
    "Sub": tf.subtract,
    "Tanh": tf.tanh,
    "Transpose": lambda x, perm: tf.transpose(x, perm),
    "Where": tf.where,
    **{
        kind: lambda x, axes, keepdims, reduced=reduced: reduced(x, axes, bool(keepdims))
        for kind, reduced in _REDUCED.items()
    },
}


class TensorflowGraph:
    """A `bertjax.convert.graph.graph.Graph` of tensors; `outputs` has those that were given a name.

    `variables` holds the weights by name, and is filled with those that it lacks: the first graph is built eagerly, as
    a function that is traced may make none.
    """

    def __init__(self, inputs: Mapping[str, Any], variables: dict[str, Any]) -> None:
        self._inputs, self._variables = inputs, variables
        self.outputs: dict[str, Any] = {}

    def input(self, name: str) -> Any:
        """One of the inputs that the graph was made with."""
        return self._inputs[name]

    def weight(self, name: str, array: np.ndarray) -> Any:
        """A constant, kept under its name."""
        if array.dtype.kind == "i":
            return tf.constant(array, tf.int32)
        if name not in self._variables:
            self._variables[name] = tf.Variable(array, trainable=False, name=name)
        return self._variables[name]

    def number(self, value: float) -> Any:
        """A constant float32 []."""
        return tf.constant(value, tf.float32)

    def node(self, kind: str, *inputs: Any, **attributes: Any) -> Any:
        """The operator's output."""
        return _OPERATORS[kind](*inputs, **attributes)

    def cast(self, x: Any, dtype: Literal["float32", "bool", "integer"]) -> Any:
        """x in another dtype."""
        return tf.cast(x, tf.int32 if dtype == "integer" else dtype)

    def positions(self, x: Any) -> Any:
        """0, 1, ... for each token of rows."""
        return tf.range(tf.shape(x)[1])

    def reshape(self, x: Any, *sizes: int) -> Any:
        """x in another shape; 0 keeps a size."""
        return tf.reshape(x, [size or _size(x, dim) for dim, size in enumerate(sizes)])

    def unsqueeze(self, x: Any, *dims: int) -> Any:
        """x with dims of size 1 at these indices."""
        for dim in dims:
            x = tf.expand_dims(x, dim)
        return x

    def part(self, x: Any, dim: int, start: int, stop: int) -> Any:
        """x from `start` to `stop` of a dim."""
        return x[(slice(None),) * dim + (slice(start, stop),)]

    def broadcast(self, x: Any, like: Any) -> Any:
        """x as often as `like` has rows."""
        return tf.broadcast_to(x, [*(_size(like, dim) for dim in range(like.shape.rank - 1)), _size(x, -1)])

    def output(self, value: Any, name: str, shape: tuple[int | str, ...]) -> None:
        """Name an output."""
        self.outputs[name] = tf.identity(value, name)


def _size(x: Any, dim: int) -> Any:
    """The size of a dim: a number where it is known."""
    known = x.shape[dim]
    return tf.shape(x)[dim] if known is None else known
