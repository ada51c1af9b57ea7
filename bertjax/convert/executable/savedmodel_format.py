"""SavedModel: a folder that TensorFlow Serving loads as a model, with the tokenizer."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.convert.executable.graph import Graph
from bertjax.convert.executable.runtime import Arrays, Precision, Run, Runtime, network_graph
from bertjax.convert.formats import Vectors
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.lean_import import import_tensorflow

SIGNATURE = "serving_default"  # the one that TensorFlow Serving calls
VERSION = "1"  # a served model has one folder per version
_VARIABLES = f"{VERSION}/variables/variables"
_WEIGHTS_FILE = f"{_VARIABLES}.data-00000-of-00001"


def write_savedmodel(model: TrainedModel, folder: Path, vectors: Vectors, precision: Precision = "float32") -> Path:
    """Write the model as version 1 for TensorFlow Serving; returns the file that holds the weights.

    The signature takes int32 inputs of any batch and length. The operators are TensorFlow's own, for any device.
    """
    tf = import_tensorflow(required=True)
    graph, module = network_graph(model, vectors), tf.Module()
    variables = {
        name: tf.Variable(array, trainable=False, name=name)
        for name, array in graph.constants.items()
        if array.dtype == np.float32 and array.ndim
    }
    module.weights = dict(variables)
    specs = {name: tf.TensorSpec((None, None), tf.int32, name=name) for name in graph.inputs}
    serve = tf.function(lambda **inputs: _outputs(graph, inputs | variables), autograph=False)
    signatures = {SIGNATURE: serve.get_concrete_function(**specs)}
    tf.saved_model.save(module, str(folder / VERSION), signatures=signatures)
    return folder / _WEIGHTS_FILE


def load(folder: Path) -> Run:
    """Load the signature of a folder."""
    tf = import_tensorflow(required=True)
    model = tf.saved_model.load(str(folder / VERSION))

    def run(inputs: Arrays) -> Arrays:
        outputs = model.signatures[SIGNATURE](**{name: tf.constant(x, tf.int32) for name, x in inputs.items()})
        return {name: x.numpy() for name, x in outputs.items()}

    return run


def _outputs(graph: Graph, tensors: Mapping[str, Any]) -> dict[str, Any]:
    """Execute a graph on tensors by name, its inputs and variables; the other constants are NumPy arrays."""
    operators, values = _operators(), dict(tensors)
    for name, array in graph.constants.items():
        values.setdefault(name, array.astype(np.int32) if array.dtype == np.int64 else array)
    for kind, inputs, output, attributes in graph.nodes:
        values[output] = operators[kind](*(values[name] for name in inputs), **attributes)
    return {name: values[name] for name in graph.outputs}


def _operators() -> dict[str, Callable[..., Any]]:
    """TensorFlow functions by the name of the ONNX operator, with its inputs and attributes."""
    tf = import_tensorflow(required=True)

    def size(x: Any, dim: int) -> Any:
        return tf.shape(x)[dim] if x.shape[dim] is None else x.shape[dim]

    def reshape(x: Any, sizes: np.ndarray) -> Any:
        return tf.reshape(x, [number or size(x, dim) for dim, number in enumerate(sizes.tolist())])

    def unsqueeze(x: Any, dims: np.ndarray) -> Any:
        for dim in dims.tolist():
            x = tf.expand_dims(x, dim)
        return x

    def slice_dim(x: Any, start: np.ndarray, stop: np.ndarray, dim: np.ndarray) -> Any:
        return x[(slice(None),) * dim.item() + (slice(start.item(), stop.item()),)]

    def layer_norm(x: Any, scale: Any, bias: Any = 0.0, *, axis: int, epsilon: float) -> Any:
        centred = x - tf.reduce_mean(x, axis, keepdims=True)
        return centred * tf.math.rsqrt(tf.reduce_mean(tf.square(centred), axis, keepdims=True) + epsilon) * scale + bias

    def convolution(x: Any, kernel: Any, *, pads: list[int], kernel_shape: list[int]) -> Any:
        """[B, D, L] by [D out, D in, taps]."""
        rows = tf.pad(tf.transpose(x, [0, 2, 1]), [[0, 0], pads, [0, 0]])
        return tf.transpose(tf.nn.conv1d(rows, tf.transpose(kernel, [2, 1, 0]), 1, "VALID"), [0, 2, 1])

    return {
        "Abs": tf.abs,
        "Add": tf.add,
        "And": tf.logical_and,
        "Cast": lambda x, to: tf.cast(x, tf.int32 if to == "integer" else to),
        "Concat": lambda *parts, axis: tf.concat(parts, axis),
        "Conv": convolution,
        "Cos": tf.cos,
        "CumSum": lambda x, axis: tf.cumsum(x, axis),
        "Div": tf.divide,
        "Equal": tf.equal,
        "Erf": tf.math.erf,
        "Expand": tf.broadcast_to,
        "Gather": lambda x, index, axis=0: tf.gather(x, index, axis=axis),
        "GatherElements": lambda x, index, axis: tf.gather(x, index, axis=axis, batch_dims=axis),
        "Identity": tf.identity,
        "LayerNormalization": layer_norm,
        "LessOrEqual": tf.less_equal,
        "MatMul": tf.matmul,
        "Max": tf.maximum,
        "Min": tf.minimum,
        "Mul": tf.multiply,
        "Not": tf.logical_not,
        "Range": tf.range,
        "ReduceL2": lambda x, axes, keepdims: tf.sqrt(tf.reduce_sum(x * x, axes, bool(keepdims))),
        "ReduceMax": lambda x, axes, keepdims: tf.reduce_max(x, axes, bool(keepdims)),
        "ReduceMean": lambda x, axes, keepdims: tf.reduce_mean(x, axes, bool(keepdims)),
        "Relu": tf.nn.relu,
        "Reshape": reshape,
        "Shape": tf.shape,
        "Sigmoid": tf.sigmoid,
        "Sin": tf.sin,
        "Slice": slice_dim,
        "Softmax": tf.nn.softmax,
        "Sqrt": tf.sqrt,
        "Sub": tf.subtract,
        "Tanh": tf.tanh,
        "Transpose": tf.transpose,
        "Unsqueeze": unsqueeze,
        "Where": tf.where,
    }


RUNTIME = Runtime(
    name="savedmodel",
    reference="TensorFlow",
    write=write_savedmodel,
    load=load,
    library="tensorflow",
    weights=(_WEIGHTS_FILE,),
    others=(f"{VERSION}/saved_model.pb", f"{VERSION}/fingerprint.pb", f"{_VARIABLES}.index"),
    imports="import tensorflow as tf",
    call='model = tf.saved_model.load(f"{{folder}}/1")\n'
    'outputs = model.signatures["serving_default"](**{{name: tf.constant(x) for name, x in inputs.items()}})\n'
    "{results} = (outputs[name].numpy() for name in [{names}])",
    dtype="int32",
)
FORMAT = RUNTIME.format()
