"""BERT as an ONNX graph, node by node: the encoder, and what may stand on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bertjax.config import ModelConfig
from bertjax.model.network import Network
from bertjax.model.pooling import Pooling

OPSET = 17  # the first with LayerNormalization; onnxruntime has it since 1.12
_IR_VERSION = 8  # of that time
_LOWEST = np.finfo(np.float32).min
_TINY = 1e-12

INPUTS = ("input_ids", "attention_mask", "token_type_ids")  # int64 [batch, length]


class Graph:
    """Nodes and weights of a graph that is being built; a value is known by its name."""

    def __init__(self) -> None:
        self._nodes: list[onnx.NodeProto] = []
        self._weights: dict[str, np.ndarray] = {}
        self._outputs: list[onnx.ValueInfoProto] = []

    def weight(self, name: str, array: np.ndarray) -> str:
        """A constant of the model; one that is there under the name already is taken."""
        self._weights.setdefault(name, np.asarray(array, order="C"))
        return name

    def node(self, kind: str, *inputs: str, **attributes: Any) -> str:
        """What an operator makes of its inputs."""
        name = f"{kind}_{len(self._nodes)}"
        self._nodes.append(helper.make_node(kind, list(inputs), [name], name=name, **attributes))
        return name

    def integers(self, *values: int) -> str:
        """A constant int64 vector."""
        return self.weight("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def number(self, value: float) -> str:
        """A constant float32."""
        return self.weight(f"float_{value:g}", np.array(value, np.float32))

    def output(self, value: str, name: str, shape: tuple[int | str, ...]) -> None:
        """Give a value a name by which it can be asked for; dims that are names may be of any size."""
        self._nodes.append(helper.make_node("Identity", [value], [name], name=name))
        self._outputs.append(helper.make_tensor_value_info(name, TensorProto.FLOAT, shape))

    def model(self, producer: str, version: str) -> onnx.ModelProto:
        """The graph as a model with BERT's three inputs."""
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, ("batch", "length")) for name in INPUTS]
        weights = [numpy_helper.from_array(array, name) for name, array in self._weights.items()]
        graph = helper.make_graph(self._nodes, "bert", inputs, self._outputs, weights)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(
            graph, opset_imports=[opset], ir_version=_IR_VERSION, producer_name=producer, producer_version=version
        )


def add_encoder(graph: Graph, tensors: Mapping[str, np.ndarray], config: ModelConfig) -> str:
    """Hidden states of the last layer, float32 [batch, length, D], from the three inputs.

    `tensors` are transformers' BertModel's. A token sees the tokens whose attention_mask is 1; in a causal model, those
    of them up to itself.
    """
    length = graph.node("Slice", graph.node("Shape", "input_ids"), graph.integers(1), graph.integers(2))
    x = _embeddings(graph, tensors, config, length)
    seen = _seen(graph, length, config.causal)
    for number in range(config.num_hidden_layers):
        layer = f"encoder.layer.{number}"
        attended = _attention(graph, tensors, config, f"{layer}.attention", x, seen)
        x = _norm(graph, tensors, config, f"{layer}.attention.output.LayerNorm", graph.node("Add", x, attended))
        inner = _activated(graph, _dense(graph, tensors, f"{layer}.intermediate.dense", x), config.hidden_act)
        outer = _dense(graph, tensors, f"{layer}.output.dense", inner)
        x = _norm(graph, tensors, config, f"{layer}.output.LayerNorm", graph.node("Add", x, outer))
    return x


def add_pooling(graph: Graph, tensors: Mapping[str, np.ndarray], hidden: str, pooling: Pooling, normalize: bool) -> str:
    """One vector per row, float32 [batch, D], as `bertjax.model.pooling` has it, scaled to length 1 if asked for."""
    real = graph.node("Unsqueeze", "attention_mask", graph.integers(2))
    if pooling in ("cls", "pooler"):
        x = graph.node("Gather", hidden, graph.weight("first", np.array(0, np.int64)), axis=1)
        if pooling == "pooler":
            x = graph.node("Tanh", _dense(graph, tensors, "pooler.dense", x))
    elif pooling == "max":
        is_real = graph.node("Cast", real, to=TensorProto.BOOL)
        x = graph.node("Where", is_real, hidden, graph.number(-np.inf))
        x = graph.node("ReduceMax", x, axes=[1], keepdims=0)
    else:
        share = graph.node("Cast", real, to=TensorProto.FLOAT)
        total = graph.node("ReduceSum", graph.node("Mul", hidden, share), graph.integers(1), keepdims=0)
        count = graph.node("ReduceSum", share, graph.integers(1), keepdims=0)
        x = graph.node("Div", total, graph.node("Max", count, graph.number(1)))
    if not normalize:
        return x
    length = graph.node("ReduceL2", x, axes=[1], keepdims=1)
    return graph.node("Div", x, graph.node("Max", length, graph.number(_TINY)))


def add_head(graph: Graph, tensors: Mapping[str, np.ndarray], hidden: str, head: type[Network]) -> None:
    """The outputs of the head of a task, float32, under the names that they have in transformers.

    `logits` are [batch, labels], for a head of tokens [batch, length, labels], and for choices [batch, 1] with one of
    them in a row; a span's are `start_logits` and `end_logits` [batch, length].
    """
    x, shape = hidden, ("batch", "length")
    if not head.per_token:
        x, shape = add_pooling(graph, tensors, hidden, "pooler", False), ("batch",)
    logits = _dense(graph, tensors, head.transformers_head, x)
    if len(head.outputs) == 1:
        graph.output(logits, head.outputs[0], (*shape, len(tensors[f"{head.transformers_head}.bias"])))
        return
    for place, name in enumerate(head.outputs):
        number = graph.weight(f"place_{place}", np.array(place, np.int64))
        graph.output(graph.node("Gather", logits, number, axis=len(shape)), name, shape)


def _embeddings(graph: Graph, tensors: Mapping[str, np.ndarray], config: ModelConfig, length: str) -> str:
    def table(name: str) -> str:
        return graph.weight(f"embeddings.{name}", tensors[f"embeddings.{name}.weight"])

    word = graph.node("Gather", table("word_embeddings"), "input_ids")
    kind = graph.node("Gather", table("token_type_embeddings"), "token_type_ids")
    # The first rows of the table, as many as there are tokens.
    places = graph.node("Slice", table("position_embeddings"), graph.integers(0), length, graph.integers(0))
    x = graph.node("Add", graph.node("Add", word, kind), places)
    return _norm(graph, tensors, config, "embeddings.LayerNorm", x)


def _seen(graph: Graph, length: str, causal: bool) -> str:
    """Which tokens (last dim) each token sees: bool, broadcast to [batch, heads, length, length]."""
    real = graph.node("Cast", "attention_mask", to=TensorProto.BOOL)
    real = graph.node("Unsqueeze", real, graph.integers(1, 2))
    if not causal:
        return real
    scalar = graph.node("Squeeze", length)
    places = graph.node("Range", graph.weight("zero", np.array(0, np.int64)), scalar, graph.weight("one", np.array(1)))
    before = graph.node("LessOrEqual", places, graph.node("Unsqueeze", places, graph.integers(1)))
    return graph.node("And", real, before)


def _attention(
    graph: Graph, tensors: Mapping[str, np.ndarray], config: ModelConfig, name: str, x: str, seen: str
) -> str:
    heads, head_dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    split = graph.integers(0, 0, heads, head_dim)

    def projected(which: str, order: list[int]) -> str:
        y = graph.node("Reshape", _dense(graph, tensors, f"{name}.self.{which}", x), split)
        return graph.node("Transpose", y, perm=order)

    query, value = projected("query", [0, 2, 1, 3]), projected("value", [0, 2, 1, 3])
    scores = graph.node("MatMul", query, projected("key", [0, 2, 3, 1]))
    scores = graph.node("Mul", scores, graph.number(head_dim**-0.5))
    scores = graph.node("Where", seen, scores, graph.weight("lowest", np.array(_LOWEST)))
    mixed = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), value)
    joined = graph.node("Transpose", mixed, perm=[0, 2, 1, 3])
    return _dense(graph, tensors, f"{name}.output.dense", graph.node("Reshape", joined, graph.integers(0, 0, -1)))


def _dense(graph: Graph, tensors: Mapping[str, np.ndarray], name: str, x: str) -> str:
    product = graph.node("MatMul", x, graph.weight(f"{name}.weight", tensors[f"{name}.weight"].T))
    return graph.node("Add", product, graph.weight(f"{name}.bias", tensors[f"{name}.bias"]))


def _norm(graph: Graph, tensors: Mapping[str, np.ndarray], config: ModelConfig, name: str, x: str) -> str:
    scale, bias = (graph.weight(f"{name}.{part}", tensors[f"{name}.{part}"]) for part in ("weight", "bias"))
    return graph.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=config.layer_norm_eps)


def _activated(graph: Graph, x: str, activation: str) -> str:
    half = graph.node("Mul", x, graph.number(0.5))
    if activation == "gelu":
        inner = graph.node("Erf", graph.node("Mul", x, graph.weight("root_half", np.array(0.5**0.5, np.float32))))
    else:
        cube = graph.node("Mul", graph.node("Mul", x, x), x)
        bent = graph.node("Add", x, graph.node("Mul", cube, graph.weight("cubic", np.array(0.044715, np.float32))))
        root = graph.weight("root_two_by_pi", np.array((2 / np.pi) ** 0.5, np.float32))
        inner = graph.node("Tanh", graph.node("Mul", bent, root))
    return graph.node("Mul", half, graph.node("Add", inner, graph.number(1)))
