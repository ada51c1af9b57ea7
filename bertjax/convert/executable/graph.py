"""A graph of ONNX operators, which ONNX stores and TensorFlow executes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np


@dataclass(frozen=True)
class Value:
    """An input, a constant or the output of a node; arithmetic adds nodes to its graph."""

    graph: Graph
    name: str

    def __add__(self, other: Operand) -> Value:
        return self.graph.node("Add", self, other)

    def __sub__(self, other: Operand) -> Value:
        return self.graph.node("Sub", self, other)

    def __mul__(self, other: Operand) -> Value:
        return self.graph.node("Mul", self, other)

    def __truediv__(self, other: Operand) -> Value:
        return self.graph.node("Div", self, other)

    def __matmul__(self, other: Value) -> Value:
        return self.graph.node("MatMul", self, other)

    def __and__(self, other: Value) -> Value:
        return self.graph.node("And", self, other)

    def cast(self, dtype: Literal["float32", "bool", "integer"]) -> Value:
        """Convert to another dtype; "integer" is the dtype of indices."""
        return self.graph.node("Cast", self, to=dtype)

    def reshape(self, *sizes: int) -> Value:
        """Change the shape; 0 keeps the size of a dim, -1 is inferred."""
        return self.graph.node("Reshape", self, sizes)

    def transpose(self, *perm: int) -> Value:
        """Reorder the dims."""
        return self.graph.node("Transpose", self, perm=[*perm])

    def unsqueeze(self, *dims: int) -> Value:
        """Insert dims of size 1 at these indices."""
        return self.graph.node("Unsqueeze", self, dims)

    def slice(self, dim: int, start: int, stop: int) -> Value:
        """Take a dim from `start` to `stop`."""
        return self.graph.node("Slice", self, (start,), (stop,), (dim,))

    def size(self, dim: int | tuple[int, ...]) -> Value:
        """The size of a dim, an integer [], or of several, integers [n]."""
        return self.graph.node("Gather", self.graph.node("Shape", self), dim)


# A float is a constant float32 [], an int an integer [], a tuple integers [n].
Operand = Value | float | int | tuple[int, ...]


class Node(NamedTuple):
    """An operator with the order of inputs and the attributes of ONNX, opset 17; Cast names a dtype of `Value.cast`."""

    kind: str
    inputs: tuple[str, ...]
    output: str
    attributes: dict[str, Any]


class Graph:
    """Nodes in the order of execution, with constants and outputs by name."""

    def __init__(self, inputs: tuple[str, ...]) -> None:
        """Take the names of the inputs, integers [batch, length]."""
        self.inputs = inputs
        self.nodes: list[Node] = []
        self.constants: dict[str, np.ndarray] = {}
        self.outputs: dict[str, tuple[int | str, ...]] = {}  # shapes; dims that are names may be of any size

    def input(self, name: str) -> Value:
        """Return an input by name."""
        assert name in self.inputs, name
        return Value(self, name)

    def constant(self, name: str, array: np.ndarray) -> Value:
        """Add a constant and return it; the first array under a name wins."""
        self.constants.setdefault(name, np.asarray(array, order="C"))
        return Value(self, name)

    def node(self, kind: str, *inputs: Operand, **attributes: Any) -> Value:
        """Add a node and return its output."""
        names = tuple(self._value(x).name for x in inputs)
        self.nodes.append(Node(kind, names, f"{kind}_{len(self.nodes)}", attributes))
        return Value(self, self.nodes[-1].output)

    def output(self, value: Value, name: str, *shape: int | str) -> None:
        """Name a float32 value as an output."""
        self.nodes.append(Node("Identity", (value.name,), name, {}))
        self.outputs[name] = shape

    def _value(self, x: Operand) -> Value:
        if isinstance(x, Value):
            return x
        if isinstance(x, float):
            return self.constant(f"float_{x:.9g}", np.array(x, np.float32))
        name = "ints_" + "_".join(map(str, x)) if isinstance(x, tuple) else f"int_{x}"
        return self.constant(name, np.array(x, np.int64))
