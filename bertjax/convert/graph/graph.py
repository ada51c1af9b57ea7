"""What a builder of graphs does, and the layers that all networks are made of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, Protocol

import numpy as np

from bertjax.config import ModelConfig

Value = Any  # ONNX: the name of a value; TensorFlow: a tensor
Arrays = Mapping[str, np.ndarray]  # our parameters by name


class Graph(Protocol):
    """Builds a graph. Operators, the order of their inputs and their attributes are those of ONNX, opset 17."""

    def input(self, name: str) -> Value:
        """An input, integers [batch, length]."""

    def weight(self, name: str, array: np.ndarray) -> Value:
        """A constant of the model; one that is there under the name already is taken."""

    def number(self, value: float) -> Value:
        """A constant float32 []."""

    def node(self, kind: str, *inputs: Value, **attributes: Any) -> Value:
        """What an operator makes of its inputs."""

    def cast(self, x: Value, dtype: Literal["float32", "bool", "integer"]) -> Value:
        """x in another dtype; "integer" is that of indices."""

    def positions(self, x: Value) -> Value:
        """0, 1, ... for each token of rows [batch, length]: integers [length]."""

    def reshape(self, x: Value, *sizes: int) -> Value:
        """x with dims of these sizes; 0 is the size that x has there, -1 what is left."""

    def unsqueeze(self, x: Value, *dims: int) -> Value:
        """x with dims of size 1 at these indices."""

    def part(self, x: Value, dim: int, start: int, stop: int) -> Value:
        """x from `start` to `stop` of a dim."""

    def broadcast(self, x: Value, like: Value) -> Value:
        """x of the shape of `like` but for the last dim, which is that of x."""

    def output(self, value: Value, name: str, shape: tuple[int | str, ...]) -> None:
        """Give a float32 value a name by which it can be requested; dims that are names may be of any size."""


def dense(graph: Graph, arrays: Arrays, name: str, x: Value, inputs: int = 0) -> Value:
    """x @ kernel + bias, if there is one; the kernel's first dims are `inputs` wide together (0: the first alone)."""
    kernel = arrays[f"{name}/kernel"]
    product = graph.node("MatMul", x, graph.weight(f"{name}/kernel", kernel.reshape(inputs or len(kernel), -1)))
    bias = arrays.get(f"{name}/bias")
    return product if bias is None else graph.node("Add", product, graph.weight(f"{name}/bias", bias.reshape(-1)))


def norm(graph: Graph, arrays: Arrays, config: ModelConfig, name: str, x: Value) -> Value:
    """LayerNorm over the last dim, or the division by the root mean square, as `config.norm` says."""
    scale = graph.weight(f"{name}/scale", arrays[f"{name}/scale"])
    if config.norm == "layer":
        bias = [graph.weight(f"{name}/bias", arrays[f"{name}/bias"])] if config.norm_bias else []
        return graph.node("LayerNormalization", x, scale, *bias, axis=-1, epsilon=config.layer_norm_eps)
    square = graph.node("ReduceMean", graph.node("Mul", x, x), axes=[-1], keepdims=1)
    root = graph.node("Sqrt", graph.node("Add", square, graph.number(config.layer_norm_eps)))
    y = graph.node("Mul", graph.node("Div", x, root), scale)
    return graph.node("Add", y, graph.weight(f"{name}/bias", arrays[f"{name}/bias"])) if config.norm_bias else y


def activated(graph: Graph, x: Value, activation: str) -> Value:
    """x under an activation of the layers, or tanh."""
    if activation in ("relu", "tanh"):
        return graph.node(activation.capitalize(), x)
    if activation == "silu":
        return graph.node("Mul", x, graph.node("Sigmoid", x))
    half = graph.node("Mul", x, graph.number(0.5))
    if activation == "gelu":
        inner = graph.node("Erf", graph.node("Mul", x, graph.number(0.5**0.5)))
    else:
        assert activation == "gelu_tanh", activation
        cube = graph.node("Mul", graph.node("Mul", x, x), x)
        bent = graph.node("Add", x, graph.node("Mul", cube, graph.number(0.044715)))
        inner = graph.node("Tanh", graph.node("Mul", bent, graph.number((2 / np.pi) ** 0.5)))
    return graph.node("Mul", half, graph.node("Add", inner, graph.number(1)))


def mlp(graph: Graph, arrays: Arrays, config: ModelConfig, name: str, x: Value) -> Value:
    """The two dense layers; with `config.mlp` glu the first has two halves, of which one is activated."""
    first = f"{name}/intermediate"
    if config.mlp == "dense":
        inner = activated(graph, dense(graph, arrays, first, x), config.hidden_act)
    else:
        gate, value = (dense(graph, _half(arrays, first, half), f"{first}/{half}", x) for half in (0, 1))
        inner = graph.node("Mul", activated(graph, gate, config.hidden_act), value)
    return dense(graph, arrays, f"{name}/output", inner)


def _half(arrays: Arrays, name: str, half: int) -> Arrays:
    """The parameters of one half of a gated layer: kernel [D, 2, F], bias [2, F]."""
    there = (part for part in ("kernel", "bias") if f"{name}/{part}" in arrays)
    return {f"{name}/{half}/{part}": arrays[f"{name}/{part}"].take(half, axis=-2) for part in there}
