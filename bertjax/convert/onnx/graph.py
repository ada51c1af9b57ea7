"""A network as an ONNX graph, node by node, from its options and our parameters: the encoder, and heads on it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from bertjax.config import ModelConfig
from bertjax.model.attention.positions import sinusoids
from bertjax.model.heads import POOLERS_OF_TASKS
from bertjax.model.network import head_of
from bertjax.model.pooling import Pooling

OPSET = 17  # the first with LayerNormalization; onnxruntime has it since 1.12
_IR_VERSION = 8  # of that time
_LOWEST = np.finfo(np.float32).min
_TINY = 1e-12

Arrays = Mapping[str, np.ndarray]  # our parameters by name


def inputs_of(config: ModelConfig) -> tuple[str, ...]:
    """The inputs of a graph, int64 [batch, length]; a network of one token type is not told of it."""
    return "input_ids", "attention_mask", *(["token_type_ids"] if config.type_vocab_size > 1 else [])


class Graph:
    """Nodes and weights of a graph that is being built; a value is known by its name."""

    def __init__(self, inputs: tuple[str, ...]) -> None:
        self._inputs = inputs
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
        """The graph as a model."""
        dims = ("batch", "length")
        inputs = [helper.make_tensor_value_info(name, TensorProto.INT64, dims) for name in self._inputs]
        weights = [numpy_helper.from_array(array, name) for name, array in self._weights.items()]
        graph = helper.make_graph(self._nodes, "bert", inputs, self._outputs, weights)
        opset = helper.make_opsetid("", OPSET)
        return helper.make_model(
            graph, opset_imports=[opset], ir_version=_IR_VERSION, producer_name=producer, producer_version=version
        )


def add_encoder(graph: Graph, arrays: Arrays, config: ModelConfig) -> str:
    """Hidden states of the last layer, float32 [batch, length, D], from the graph's inputs.

    A token sees the tokens whose attention_mask is 1; in a causal model, those of them up to itself.
    """
    assert not config.window, "transformers' classes have no windows, and the exporter asks for one"
    length = graph.node("Slice", graph.node("Shape", "input_ids"), graph.integers(1), graph.integers(2))
    x = _embeddings(graph, arrays, config, length)
    seen = _seen(graph, length, config.causal)
    for number in range(config.num_hidden_layers):
        # Layers of a group share their weights, which then are in the file once.
        place = number * config.layer_groups // config.num_hidden_layers if config.layer_groups else number
        layer = {
            name.replace("layers", f"layers/{place}"): x[place] for name, x in arrays.items() if "/layers/" in name
        }
        name = f"encoder/layers/{place}"
        attended = _attention(graph, layer, config, f"{name}/attention", x, seen)
        x = _norm(graph, layer, config, f"{name}/attention_norm", graph.node("Add", x, attended))
        inner = _activated(graph, _dense(graph, layer, f"{name}/mlp/intermediate", x), config.hidden_act)
        outer = _dense(graph, layer, f"{name}/mlp/output", inner)
        x = _norm(graph, layer, config, f"{name}/mlp_norm", graph.node("Add", x, outer))
    return x


def add_pooling(graph: Graph, arrays: Arrays, hidden: str, pooling: Pooling, normalize: bool) -> str:
    """One vector per row, float32 [batch, D], as `bertjax.model.pooling` has it, scaled to length 1 if asked for."""
    real = graph.node("Unsqueeze", "attention_mask", graph.integers(2))
    if pooling == "cls":
        x = _first(graph, hidden)
    elif pooling == "pooler":
        x = _pooled(graph, arrays, hidden)
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


def _first(graph: Graph, hidden: str) -> str:
    return graph.node("Gather", hidden, graph.weight("first", np.array(0, np.int64)), axis=1)


def _pooled(graph: Graph, arrays: Arrays, hidden: str, pooler: str = "tanh") -> str:
    x = _dense(graph, arrays, "pooler/dense", _first(graph, hidden))
    return _activated(graph, x, pooler) if pooler in POOLERS_OF_TASKS else graph.node("Tanh", x)


def add_head(graph: Graph, arrays: Arrays, hidden: str, config: ModelConfig) -> None:
    """The outputs of the head of a task, float32, under the names that they have in transformers.

    `logits` are [batch, labels], for a head of tokens [batch, length, labels], and for choices [batch, 1] with one of
    them in a row; a span's are `start_logits` and `end_logits` [batch, length].
    """
    head = head_of(config)
    x, shape = hidden, ("batch", "length")
    if not head.per_token:
        x, shape = _pooled(graph, arrays, hidden, config.pooler), ("batch",)
    logits = _dense(graph, arrays, "head/dense", x)
    if len(head.outputs) == 1:
        graph.output(logits, head.outputs[0], (*shape, len(arrays["head/dense/bias"])))
        return
    for place, name in enumerate(head.outputs):
        number = graph.weight(f"place_{place}", np.array(place, np.int64))
        graph.output(graph.node("Gather", logits, number, axis=len(shape)), name, shape)


def _embeddings(graph: Graph, arrays: Arrays, config: ModelConfig, length: str) -> str:
    where = "encoder/embeddings"

    def table(name: str, array: np.ndarray) -> str:
        return graph.weight(f"{where}/{name}", array)

    words = table("word", arrays[f"{where}/word"][: config.vocab_size])
    x = graph.node("Gather", words, "input_ids")
    if config.type_vocab_size:
        types = table("token_type", arrays[f"{where}/token_type"])
        # The row of the only type is added to every token.
        x = graph.node("Add", x, graph.node("Gather", types, "token_type_ids") if config.type_vocab_size > 1 else types)
    if config.task_type_vocab_size:
        x = graph.node("Add", x, table("task_type", arrays[f"{where}/task_type"][0]))
    fixed = config.position_embedding == "sinusoidal"
    positions = table("position", np.asarray(sinusoids(config)) if fixed else arrays[f"{where}/position"])
    # The first rows of the table, as many as there are tokens.
    x = graph.node("Add", x, graph.node("Slice", positions, graph.integers(0), length, graph.integers(0)))
    x = _norm(graph, arrays, config, f"{where}/norm", x)
    return _dense(graph, arrays, f"{where}/projection", x) if config.embedding_size else x


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


def _attention(graph: Graph, arrays: Arrays, config: ModelConfig, name: str, x: str, seen: str) -> str:
    heads, head_dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads
    split = graph.integers(0, 0, heads, head_dim)

    def projected(which: str, order: list[int]) -> str:
        y = graph.node("Reshape", _dense(graph, arrays, f"{name}/{which}", x), split)
        return graph.node("Transpose", y, perm=order)

    query, value = projected("query", [0, 2, 1, 3]), projected("value", [0, 2, 1, 3])
    scores = graph.node("MatMul", query, projected("key", [0, 2, 3, 1]))
    scores = graph.node("Mul", scores, graph.number(head_dim**-0.5))
    scores = graph.node("Where", seen, scores, graph.weight("lowest", np.array(_LOWEST)))
    mixed = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), value)
    joined = graph.node("Transpose", mixed, perm=[0, 2, 1, 3])
    joined = graph.node("Reshape", joined, graph.integers(0, 0, -1))
    return _dense(graph, arrays, f"{name}/output", joined)


def _dense(graph: Graph, arrays: Arrays, name: str, x: str) -> str:
    """x @ kernel + bias; a kernel may have two dims of heads in front or behind."""
    bias = arrays[f"{name}/bias"].reshape(-1)
    kernel = arrays[f"{name}/kernel"].reshape(-1, len(bias))
    product = graph.node("MatMul", x, graph.weight(f"{name}/kernel", kernel))
    return graph.node("Add", product, graph.weight(f"{name}/bias", bias))


def _norm(graph: Graph, arrays: Arrays, config: ModelConfig, name: str, x: str) -> str:
    scale, bias = (graph.weight(f"{name}/{part}", arrays[f"{name}/{part}"]) for part in ("scale", "bias"))
    return graph.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=config.layer_norm_eps)


def _activated(graph: Graph, x: str, activation: str) -> str:
    if activation == "relu":
        return graph.node("Relu", x)
    if activation == "silu":
        return graph.node("Mul", x, graph.node("Sigmoid", x))
    half = graph.node("Mul", x, graph.number(0.5))
    if activation == "gelu":
        inner = graph.node("Erf", graph.node("Mul", x, graph.weight("root_half", np.array(0.5**0.5, np.float32))))
    else:
        cube = graph.node("Mul", graph.node("Mul", x, x), x)
        bent = graph.node("Add", x, graph.node("Mul", cube, graph.weight("cubic", np.array(0.044715, np.float32))))
        root = graph.weight("root_two_by_pi", np.array((2 / np.pi) ** 0.5, np.float32))
        inner = graph.node("Tanh", graph.node("Mul", bent, root))
    return graph.node("Mul", half, graph.node("Add", inner, graph.number(1)))
