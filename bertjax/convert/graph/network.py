"""The network as a graph: embeddings, layers, the vectors of texts, and the heads of tasks."""

from __future__ import annotations

import numpy as np

from bertjax.config import ModelConfig
from bertjax.convert.graph.attention import Attention
from bertjax.convert.graph.graph import Arrays, Graph, Value, activated, dense, mlp, norm
from bertjax.families.registry import family_of
from bertjax.model.attention.positions import sinusoids
from bertjax.model.attention.self_attention import layer_windows
from bertjax.model.heads import POOLER_OF_TOKENS
from bertjax.model.layers import ACTIVATIONS
from bertjax.model.network import head_of
from bertjax.model.pooling import Pooling
from bertjax.model.stack import layers_per_group

_FIRST, _STACK = "encoder/first_layer", "encoder/layers"


def add_encoder(graph: Graph, arrays: Arrays, config: ModelConfig, pad_id: int) -> Value:
    """Hidden states of the last layer, float32 [batch, length, D], from the graph's inputs.

    `pad_id` is the id of the padding token. No token is global: what marks tokens for a task is not in the graph.
    """
    attention = Attention(graph, arrays, config)
    x = _embeddings(graph, arrays, config, pad_id)
    behind = int(any(name.startswith(f"{_FIRST}/") for name in arrays))
    sizes = layers_per_group(config) if config.layer_groups else []
    groups = [group for group, size in enumerate(sizes) for _ in range(size)]
    for number, window in enumerate(layer_windows(config)):
        if number < behind:
            x = _layer(graph, arrays, config, attention, _FIRST, x, window)
            continue
        # Layers of a group share their weights, which then are in the file once.
        index = groups[number] if groups else number - behind
        named = f"{_STACK}/{index}"
        of_layer = {
            name.replace(_STACK, named): array[index] for name, array in arrays.items() if name.startswith(f"{_STACK}/")
        }
        x = _layer(graph, of_layer, config, attention, named, x, window)
    return norm(graph, arrays, config, "encoder/final_norm", x) if config.norm_place == "pre" else x


def _layer(
    graph: Graph, arrays: Arrays, config: ModelConfig, attention: Attention, name: str, x: Value, window: int
) -> Value:
    def normed(part: str, x: Value) -> Value:
        return norm(graph, arrays, config, f"{name}/{part}_norm", x)

    given, pre = x, config.norm_place == "pre"
    has_norm = f"{name}/attention_norm/scale" in arrays
    read = normed("attention", x) if pre and has_norm else x
    x = graph.node("Add", x, attention(arrays, f"{name}/attention", read, window))
    if pre:
        x = graph.node("Add", x, mlp(graph, arrays, config, f"{name}/mlp", normed("mlp", x)))
    else:
        x = normed("attention", x)
        x = normed("mlp", graph.node("Add", x, mlp(graph, arrays, config, f"{name}/mlp", x)))
    if f"{name}/convolution/kernel" not in arrays:
        return x
    return _with_convolution(graph, arrays, config, f"{name}/convolution", given, x)


def _with_convolution(graph: Graph, arrays: Arrays, config: ModelConfig, name: str, given: Value, x: Value) -> Value:
    """What `bertjax.model.convolution` adds to the output x of a layer, of what the layer was given."""
    real = graph.cast(graph.unsqueeze(graph.input("attention_mask"), 2), "float32")
    kernel = arrays[f"{name}/kernel"].transpose(2, 0, 1)  # [D out, D in, taps]
    taps = kernel.shape[2]
    rows = graph.node("Transpose", graph.node("Mul", given, real), perm=[0, 2, 1])
    pads = [taps // 2, taps - 1 - taps // 2]
    made = graph.node("Conv", rows, graph.weight(f"{name}/kernel", kernel), pads=pads, kernel_shape=[taps])
    made = graph.node("Add", graph.node("Transpose", made, perm=[0, 2, 1]), _weight(graph, arrays, f"{name}/bias"))
    return norm(graph, arrays, config, f"{name}/norm", graph.node("Add", x, activated(graph, made, "gelu")))


def _weight(graph: Graph, arrays: Arrays, name: str) -> Value:
    return graph.weight(name, arrays[name])


def _embeddings(graph: Graph, arrays: Arrays, config: ModelConfig, pad_id: int) -> Value:
    where, ids = "encoder/embeddings", graph.input("input_ids")
    words = graph.weight(f"{where}/word", arrays[f"{where}/word"][: config.vocab_size])
    x = graph.node("Gather", words, ids)
    if config.type_vocab_size > 1:
        types = graph.node("Gather", _weight(graph, arrays, f"{where}/token_type"), graph.input("token_type_ids"))
        x = graph.node("Add", x, types)
    elif config.type_vocab_size:
        # The row of the only type is added to every token.
        x = graph.node("Add", x, _weight(graph, arrays, f"{where}/token_type"))
    if config.task_type_vocab_size:
        x = graph.node("Add", x, graph.weight(f"{where}/task_type", arrays[f"{where}/task_type"][0]))
    if config.position_embedding in ("learned", "sinusoidal"):
        fixed = config.position_embedding == "sinusoidal"
        table = np.asarray(sinusoids(config)) if fixed else arrays[f"{where}/position"]
        positions = graph.positions(ids)
        known = family_of(config.family).huggingface
        if known is not None and known.positions_from_padding:
            table, positions = np.pad(table, [(1, 0), (0, 0)]), _counted_tokens(graph, ids, pad_id)
        x = graph.node("Add", x, graph.node("Gather", graph.weight(f"{where}/position", table), positions))
    if config.embedding_norm != "none":
        x = norm(graph, arrays, config, f"{where}/norm", x)
    return dense(graph, arrays, f"{where}/projection", x) if config.embedding_size else x


def _counted_tokens(graph: Graph, ids: Value, pad_id: int) -> Value:
    """1, 2, ... for the tokens of each row that are not padding, and 0 for padding: integers [batch, length].

    transformers counts positions so for RoBERTa and its relatives, wherever the padding is.
    """
    pad, dim = (graph.weight(f"int_{value}", np.array(value, np.int64)) for value in (pad_id, 1))
    is_pad = graph.node("Equal", graph.cast(ids, "integer"), pad)
    real = graph.cast(graph.node("Not", is_pad), "integer")
    return graph.node("Mul", graph.node("CumSum", real, dim), real)


_TINY = 1e-12


def add_pooling(
    graph: Graph, arrays: Arrays, config: ModelConfig, hidden: Value, pooling: Pooling, normalize: bool
) -> Value:
    """One vector per row, float32 [batch, D], as `bertjax.model.pooling` has it, scaled to length 1 if requested."""
    mask = graph.input("attention_mask")
    if pooling == "cls":
        x = _first(graph, hidden)
    elif pooling == "pooler":
        x = _pooled(graph, arrays, config, _first(graph, hidden))
    elif pooling == "max":
        is_real = graph.cast(graph.unsqueeze(mask, 2), "bool")
        x = graph.node("Where", is_real, hidden, graph.number(-np.inf))
        x = graph.node("ReduceMax", x, axes=[1], keepdims=0)
    else:
        share = graph.cast(graph.unsqueeze(mask, 2), "float32")
        # A mean times the length, as that mean needs no length: what is padding adds zero to both.
        total, count = (
            graph.node("ReduceMean", part, axes=[1], keepdims=0) for part in (graph.node("Mul", hidden, share), share)
        )
        x = graph.node("Div", total, graph.node("Max", count, graph.number(_TINY)))
    if not normalize:
        return x
    length = graph.node("ReduceL2", x, axes=[1], keepdims=1)
    return graph.node("Div", x, graph.node("Max", length, graph.number(_TINY)))


def _first(graph: Graph, hidden: Value) -> Value:
    return graph.node("Gather", hidden, graph.weight("int_0", np.array(0, np.int64)), axis=1)


def _pooled(graph: Graph, arrays: Arrays, config: ModelConfig, x: Value) -> Value:
    """The pooler of `bertjax.model.heads` on vectors."""
    activation = config.pooler.removesuffix("_norm")
    x = activated(graph, dense(graph, arrays, "pooler/dense", x), activation if activation in ACTIVATIONS else "tanh")
    return norm(graph, arrays, config, "pooler/norm", x) if config.pooler == POOLER_OF_TOKENS else x


def add_head(graph: Graph, arrays: Arrays, config: ModelConfig, hidden: Value) -> None:
    """The outputs of the head of a task, float32, under the names that they have in transformers.

    `logits` are [batch, labels], for a head of tokens [batch, length, labels], and for choices [batch, 1] with one of
    them in a row; a span's are `start_logits` and `end_logits` [batch, length].
    """
    head = head_of(config)
    x, shape = (hidden, ("batch", "length")) if head.per_token else (_first(graph, hidden), ("batch",))
    if not head.per_token or config.pooler == POOLER_OF_TOKENS:
        x = _pooled(graph, arrays, config, x)
    logits = dense(graph, arrays, "head/dense", x)
    if len(head.outputs) == 1:
        graph.output(logits, head.outputs[0], (*shape, len(arrays["head/dense/bias"])))
        return
    for index, name in enumerate(head.outputs):
        number = graph.weight(f"int_{index}", np.array(index, np.int64))
        graph.output(graph.node("Gather", logits, number, axis=len(shape)), name, shape)
