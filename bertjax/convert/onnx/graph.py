"""A graph as ONNX writes it down."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

OPSET = 17  # the first with LayerNormalization; onnxruntime has it since 1.12
_IR_VERSION = 8  # of that time
_DTYPES = {"float32": TensorProto.FLOAT, "bool": TensorProto.BOOL, "integer": TensorProto.INT64}


class OnnxGraph:
    """Nodes and weights of a `bertjax.convert.graph.graph.Graph` that is being built; a value is known by its name."""

    def __init__(self, inputs: tuple[str, ...]) -> None:
        self._inputs = inputs
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, np.ndarray] = {}
        self._outputs: list[onnx.ValueInfoProto] = []

    def input(self, name: str) -> str:
        """One of the inputs that the graph was made with."""
        assert name in self._inputs, name
        return name

    def weight(self, name: str, array: np.ndarray) -> str:
        """A constant, kept under its name."""
        self._weights.setdefault(name, np.asarray(array, order="C"))
        return name

    def number(self, value: float) -> str:
        """A constant float32 []."""
        return self.weight(f"float_{value:.9g}", np.array(value, np.float32))

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """The operator's output."""
        name = f"{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def cast(self, x: str, dtype: Literal["float32", "bool", "integer"]) -> str:
        """x in another dtype."""
        return self.node("Cast", x, to=_DTYPES[dtype])

    def positions(self, x: str) -> str:
        """0, 1, ... for each token of rows."""
        zero, one = (self.weight(f"int_{value}", np.array(value, np.int64)) for value in (0, 1))
        return self.node("Range", zero, self.node("Gather", self.node("Shape", x), one), one)

    def reshape(self, x: str, *sizes: int) -> str:
        """x in another shape; 0 keeps a size."""
        return self.node("Reshape", x, self._integers(*sizes))

    def unsqueeze(self, x: str, *dims: int) -> str:
        """x with dims of size 1 at these indices."""
        return self.node("Unsqueeze", x, self._integers(*dims))

    def part(self, x: str, dim: int, start: int, stop: int) -> str:
        """x from `start` to `stop` of a dim."""
        return self.node("Slice", x, *(self._integers(value) for value in (start, stop, dim)))

    def broadcast(self, x: str, like: str) -> str:
        """x as often as `like` has rows."""
        dims = [
            self.node("Slice", self.node("Shape", of), self._integers(start), self._integers(stop))
            for of, start, stop in ((like, 0, -1), (x, -1, np.iinfo(np.int64).max))
        ]
        return self.node("Expand", x, self.node("Concat", *dims, axis=0))

    def output(self, value: str, name: str, shape: tuple[int | str, ...]) -> None:
        """Name an output."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def _integers(self, *values: int) -> str:
        """A constant int64 vector."""
        return self.weight("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def model(self, producer: str, version: str) -> onnx.ModelProto:
        """The graph as a model."""
        dims = ("batch", "length")
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, dims) for name in self._inputs]
        weights = [numpy_helper.from_array(array, name) for name, array in self._weights.items()]
        graph = helper.make_graph(self._nodes, "bert", inputs, self._outputs, weights)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(
            graph, opset_imports=[opset], ir_version=_IR_VERSION, producer_name=producer, producer_version=version
        )
