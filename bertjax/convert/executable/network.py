"""Build a network as a graph: embeddings, dense attention, layers, text vectors and task heads."""

from __future__ import annotations

import re
from collections.abc import Mapping
from functools import cached_property

import numpy as np

from bertjax.config import ModelConfig
from bertjax.convert.executable.graph import Graph, Value
from bertjax.families.registry import get_family
from bertjax.model.attention.positions import alibi_slopes, sinusoids
from bertjax.model.attention.relative import distance_row, score_scale
from bertjax.model.attention.score_bias import distance_bucket
from bertjax.model.attention.self_attention import layer_windows
from bertjax.model.heads import TOKEN_POOLER
from bertjax.model.layers import ACTIVATIONS
from bertjax.model.network import network_class
from bertjax.model.pooling import Pooling
from bertjax.model.stack import layers_per_group

_LOWEST = float(np.finfo(np.float32).min)
_TINY = 1e-12
_STACK = "encoder/layers/"
_ROTATED = re.compile(r"/attention/(query|key)/")  # parameters whose outputs are rotated


class NetworkGraph(Graph):
    """The encoder of a config over parameters by name; `hidden` is its last layer, float32 [batch, length, D].

    A token sees the tokens whose attention_mask is 1; in a causal model, those up to itself. No token is global: the
    graph has no input for the tokens that a task marks.
    """

    def __init__(self, config: ModelConfig, params: Mapping[str, np.ndarray], pad_id: int) -> None:
        super().__init__(input_names(config))
        self.config = config
        self.params = {name: array for name, array in params.items() if not name.startswith(_STACK)}
        for name in params.keys() - self.params:
            part = name.removeprefix(_STACK)
            self.params |= {f"{_STACK}{number}/{part}": array for number, array in enumerate(params[name])}
        self.heads, self.head_dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        if config.rope_interleaved:
            # All first dims of the rotated pairs, then all second ones: scores do not depend on the order.
            order = np.concatenate([np.arange(0, self.head_dim, 2), np.arange(1, self.head_dim, 2)])
            self.params |= {name: x[..., order] for name, x in self.params.items() if _ROTATED.search(name)}
        windows = layer_windows(config)
        self.visible = {window: self._visible(window) for window in sorted(set(windows))}
        if config.position_embedding == "rope":
            self.angles = {window: self._angles(window) for window in sorted(set(windows))}
        elif config.position_embedding == "alibi":
            slopes = self.constant("slopes", np.array(alibi_slopes(self.heads), np.float32)[:, None, None])
            self.alibi = slopes * self.node("Abs", self.distances).cast("float32")
        elif config.position_embedding == "relative":
            self._add_relative_positions()
        if config.score_bias_buckets:
            self._add_score_bias()

        # Layers of a group share their weights, which are in the graph once.
        sizes = layers_per_group(config) if config.layer_groups else [1] * config.num_hidden_layers
        names = [f"{_STACK}{group}" for group, size in enumerate(sizes) for _ in range(size)]
        if any(name.startswith("encoder/first_layer/") for name in params):
            names = ["encoder/first_layer", *names[:-1]]
        x = self._embeddings(pad_id)
        for name, window in zip(names, windows, strict=True):
            x = self._layer(name, x, window)
        self.hidden = self._norm("encoder/final_norm", x) if config.norm_place == "pre" else x

    @cached_property
    def positions(self) -> Value:
        """0, 1, ... for the tokens of a row: integers [L]."""
        return self.node("Range", 0, self.input("input_ids").size(1), 1)

    @cached_property
    def distances(self) -> Value:
        """i - j for tokens i and j: integers [L, L]."""
        return self.positions.unsqueeze(1) - self.positions.unsqueeze(0)

    # Layers

    def param(self, name: str) -> Value:
        """Return a parameter by our name, with the number of a layer after `encoder/layers/`."""
        return self.constant(name, self.params[name])

    def dense(self, name: str, x: Value, inputs: int = 1) -> Value:
        """x @ kernel + bias, if there is one; the kernel's first `inputs` dims are contracted with x."""
        kernel = self.params[f"{name}/kernel"]
        y = x @ self.constant(f"{name}/kernel", kernel.reshape(np.prod(kernel.shape[:inputs]), -1))
        bias = self.params.get(f"{name}/bias")
        return y if bias is None else y + self.constant(f"{name}/bias", bias.reshape(-1))

    def _norm(self, name: str, x: Value) -> Value:
        """LayerNorm over the last dim, or division by the root mean square."""
        eps, scale = self.config.layer_norm_eps, self.param(f"{name}/scale")
        bias = [self.param(f"{name}/bias")] if f"{name}/bias" in self.params else []
        if self.config.norm == "layer":
            return self.node("LayerNormalization", x, scale, *bias, axis=-1, epsilon=eps)
        y = x / self.node("Sqrt", self.node("ReduceMean", x * x, axes=[-1], keepdims=1) + eps) * scale
        return y + bias[0] if bias else y

    def _activation(self, name: str, x: Value) -> Value:
        if name in ("relu", "tanh"):
            return self.node(name.capitalize(), x)
        if name == "silu":
            return x * self.node("Sigmoid", x)
        if name == "gelu":
            inner = self.node("Erf", x * 0.5**0.5)
        else:
            assert name == "gelu_tanh", name
            inner = self.node("Tanh", (x + x * x * x * 0.044715) * (2 / np.pi) ** 0.5)
        return x * 0.5 * (inner + 1.0)

    def _mlp(self, name: str, x: Value) -> Value:
        """Two dense layers; with `mlp` glu, half of the first's outputs are activated and gate the other half."""
        x, activation = self.dense(f"{name}/intermediate", x), self.config.hidden_act
        if self.config.mlp == "dense":
            x = self._activation(activation, x)
        else:
            half = self.config.intermediate_size
            x = self._activation(activation, x.slice(2, 0, half)) * x.slice(2, half, 2 * half)
        return self.dense(f"{name}/output", x)

    def _layer(self, name: str, x: Value, window: int) -> Value:
        layer_input = x
        if self.config.norm_place == "pre":
            has_norm = f"{name}/attention_norm/scale" in self.params
            normed = self._norm(f"{name}/attention_norm", x) if has_norm else x
            x = x + self._residual_branch(self._attention(f"{name}/attention", normed, window))
            x = x + self._residual_branch(self._mlp(f"{name}/mlp", self._norm(f"{name}/mlp_norm", x)))
        else:
            x = self._norm(f"{name}/attention_norm", x + self._attention(f"{name}/attention", x, window))
            x = self._norm(f"{name}/mlp_norm", x + self._mlp(f"{name}/mlp", x))
        if f"{name}/convolution/kernel" in self.params:
            x = self._norm(f"{name}/convolution/norm", x + self._convolution(f"{name}/convolution", layer_input))
        return x

    def _residual_branch(self, branch: Value) -> Value:
        """Scale a branch for the residual stream."""
        depth = self.config.residual_depth
        return branch / (self.config.num_hidden_layers / depth) ** 0.5 if depth else branch

    def _convolution(self, name: str, x: Value) -> Value:
        """Equivalent to `bertjax.model.convolution`."""
        real = self.input("attention_mask").unsqueeze(2).cast("float32")
        kernel = self.params[f"{name}/kernel"].transpose(2, 0, 1)  # [D out, D in, taps]
        taps = kernel.shape[2]
        pads, columns = [taps // 2, taps - 1 - taps // 2], (x * real).transpose(0, 2, 1)
        y = self.node("Conv", columns, self.constant(f"{name}/kernel", kernel), pads=pads, kernel_shape=[taps])
        return self._activation("gelu", y.transpose(0, 2, 1) + self.param(f"{name}/bias"))

    # Attention

    def _visible(self, window: int) -> Value:
        """Which tokens (last dim) each token sees: bool, broadcast to [B, H, L, L]."""
        visible = self.input("attention_mask").cast("bool").unsqueeze(1, 2)
        if self.config.causal:
            visible = visible & self.node("LessOrEqual", 0, self.distances)
        return visible & self.node("LessOrEqual", self.node("Abs", self.distances), window) if window else visible

    def _angles(self, window: int) -> tuple[Value, Value]:
        """Cosines and sines of every position, [L, K / 2], as in `bertjax.model.attention.positions.rotated`."""
        config, K = self.config, self.head_dim
        theta = config.rope_theta_local if window and config.rope_theta_local else config.rope_theta
        rates = np.float32(1) / np.float32(theta) ** (np.arange(0, K, 2, dtype=np.float32) / np.float32(K))
        angles = self.positions.unsqueeze(1).cast("float32") * self.constant(f"rates_{theta:g}", rates)
        return self.node("Cos", angles), self.node("Sin", angles)

    def _add_relative_positions(self) -> None:
        """Set the vectors of distances [S, D] and, for each pair of tokens, the index of its vector [1, 1, L, L]."""
        config, reach = self.config, self.config.relative_max  # pairs farther apart have the vector of this distance
        rows = distance_row(config, np.arange(-reach, reach + 1)).astype(np.int64)
        near = self.node("Max", self.node("Min", self.distances, reach), -reach)
        index = self.node("Gather", self.constant("rows_of_distances", rows), near + reach)
        self.relative_index = index.unsqueeze(0, 1)
        self.relative_index_turned = self.relative_index.transpose(0, 1, 3, 2)
        table = self.param("encoder/relative/table")
        self.relative_vectors = self._norm("encoder/relative/norm", table) if config.relative_norm else table

    def _add_score_bias(self) -> None:
        """Set the bias of every pair of tokens, [H, L, L]."""
        reach = self.config.max_position_embeddings
        buckets = distance_bucket(self.config, np.arange(-reach, reach + 1)).astype(np.int64)
        near = self.node("Max", self.node("Min", self.distances, reach), -reach)
        index = self.node("Gather", self.constant("buckets_of_distances", buckets), near + reach)
        self.score_bias = self.node("Gather", self.param("encoder/score_bias/table"), index).transpose(2, 0, 1)

    def _attention(self, name: str, x: Value, window: int) -> Value:
        """The output of a layer's attention, [B, L, D]."""
        position, scale = self.config.position_embedding, self.head_dim**-0.5
        query, key, value = (self._projection(f"{name}/{role}", x) for role in ("query", "key", "value"))
        if position == "rope":
            query, key = (self._rotated(part, *self.angles[window]) for part in (query, key))
        scores = query @ key.transpose(0, 1, 3, 2)
        if position == "relative":
            scores, scale = scores + self._relative_scores(name, query, key), score_scale(self.head_dim)
        scores = scores * float(scale)
        if position == "alibi":
            scores = scores - self.alibi
        if self.config.score_bias_buckets:
            scores = scores + self.score_bias
        weights = self.node("Softmax", self.node("Where", self.visible[window], scores, _LOWEST), axis=-1)
        mixed = (weights @ value).transpose(0, 2, 1, 3).reshape(0, 0, self.config.hidden_size)
        return self.dense(f"{name}/output", mixed, inputs=2)

    def _projection(self, name: str, x: Value) -> Value:
        """Queries, keys or values, [B, H, L, K]."""
        heads = self.params[f"{name}/kernel"].shape[1]
        y = self.dense(name, x)
        y = self._norm(f"{name}_norm", y) if f"{name}_norm/scale" in self.params else y
        y = y.reshape(0, 0, heads, self.head_dim).transpose(0, 2, 1, 3)
        if heads == self.heads:
            return y
        # Grouped queries: each head of keys and values serves several heads of queries.
        groups = np.repeat(np.arange(heads), self.heads // heads)
        return self.node("Gather", y, self.constant("key_value_heads", groups), axis=1)

    def _rotated(self, x: Value, cos: Value, sin: Value) -> Value:
        """Rotate each dim with the one half a head further: [B, H, L, K]."""
        half = self.head_dim // 2
        first, second = x.slice(3, 0, half), x.slice(3, half, 2 * half)
        return self.node("Concat", first * cos - second * sin, second * cos + first * sin, axis=-1)

    def _relative_scores(self, name: str, query: Value, key: Value) -> Value:
        """The terms of `bertjax.model.attention.positions.relative_terms` before the scale, [B, H, L, L]."""
        prefix = "" if self.config.relative_shared else "relative_"
        to_positions = self._relative_products(query, f"{name}/{prefix}key", self.relative_index)
        to_content = self._relative_products(key, f"{name}/{prefix}query", self.relative_index_turned)
        return to_positions + to_content.transpose(0, 1, 3, 2)

    def _relative_products(self, x: Value, name: str, index: Value) -> Value:
        """Products of queries or keys with a projection of the vectors of distances, for each pair of tokens."""
        vectors = self.dense(name, self.relative_vectors).reshape(0, self.heads, self.head_dim)
        products = x @ vectors.transpose(1, 2, 0)  # [B, H, L, S]
        shape = self.node("Concat", products.size((0, 1, 2)), index.size((3,)), axis=0)
        return self.node("GatherElements", products, self.node("Expand", index, shape), axis=3)

    # Embeddings

    def _embeddings(self, pad_id: int) -> Value:
        config, ids, prefix = self.config, self.input("input_ids"), "encoder/embeddings"
        words = self.constant(f"{prefix}/word", self.params[f"{prefix}/word"][: config.vocab_size])
        x = self.node("Gather", words, ids)
        if config.token_dropout:
            masked = self.node("Equal", ids.cast("integer"), config.mask_token_id).cast("float32")
            real = self.input("attention_mask").cast("float32")
            # The length of the row cancels.
            count, size = (self.node("ReduceMean", part, axes=[1], keepdims=1) for part in (masked * real, real))
            rest = self.node("Max", count / size * -1.0 + 1.0, 1e-6)
            x = x * ((masked * -1.0 + 1.0) / rest * (1.0 - config.token_dropout)).unsqueeze(2)
        if config.type_vocab_size > 1:
            x = x + self.node("Gather", self.param(f"{prefix}/token_type"), self.input("token_type_ids"))
        elif config.type_vocab_size:  # every token has the only type
            x = x + self.param(f"{prefix}/token_type")
        if config.task_type_vocab_size:
            x = x + self.constant(f"{prefix}/task_type", self.params[f"{prefix}/task_type"][0])
        if config.position_embedding in ("learned", "sinusoidal"):
            learned = config.position_embedding == "learned"
            table = self.params[f"{prefix}/position"] if learned else np.asarray(sinusoids(config))
            hf = get_family(config.family).huggingface
            if hf is not None and hf.positions_from_padding:
                # 1, 2, ... for real tokens, regardless of padding between them, and 0 for padding, as in transformers.
                real = self.node("Not", self.node("Equal", ids.cast("integer"), pad_id)).cast("integer")
                positions, table = self.node("CumSum", real, 1) * real, np.pad(table, [(1, 0), (0, 0)])
            else:
                positions = self.positions
            x = x + self.node("Gather", self.constant(f"{prefix}/position", table), positions)
        if config.embedding_norm != "none":
            x = self._norm(f"{prefix}/norm", x)
        return self.dense(f"{prefix}/projection", x) if config.embedding_size else x

    # Vectors and heads

    def vectors(self, pooling: Pooling, normalize: bool) -> Value:
        """One vector per row, [batch, D], as in `bertjax.model.pooling`, scaled to length 1 if requested."""
        hidden, mask = self.hidden, self.input("attention_mask").unsqueeze(2)
        if pooling in ("cls", "pooler"):
            x = self.node("Gather", hidden, 0, axis=1)
            x = self._pooler(x) if pooling == "pooler" else x
        elif pooling == "max":
            x = self.node("Where", mask.cast("bool"), hidden, -np.inf)
            x = self.node("ReduceMax", x, axes=[1], keepdims=0)
        else:
            real = mask.cast("float32")
            # The length of the row cancels; padding adds zero to both means.
            total, count = (self.node("ReduceMean", part, axes=[1], keepdims=0) for part in (hidden * real, real))
            x = total / self.node("Max", count, _TINY)
        return x / self.node("Max", self.node("ReduceL2", x, axes=[1], keepdims=1), _TINY) if normalize else x

    def _pooler(self, x: Value) -> Value:
        """The pooler of `bertjax.model.heads` on vectors."""
        if self.config.pooler == "cls":
            return x
        activation = self.config.pooler.removesuffix("_norm")
        x = self._activation(activation if activation in ACTIVATIONS else "tanh", self.dense("pooler/dense", x))
        return self._norm("pooler/norm", x) if self.config.pooler == TOKEN_POOLER else x

    def add_head(self) -> None:
        """Add the outputs of a task's head under their names in transformers.

        `logits` are [batch, labels], for token heads [batch, length, labels], and for multiple choice [batch, 1], with
        one choice per row. Span heads have `start_logits` and `end_logits` [batch, length].
        """
        head, x = network_class(self.config), self.hidden
        dims = ("batch", "length") if head.per_token else ("batch",)
        if not head.per_token:
            x = self.node("Gather", x, 0, axis=1)
        if not head.per_token or self.config.pooler == TOKEN_POOLER:
            x = self._pooler(x)
        logits = self.dense("head/dense", x)
        if len(head.outputs) == 1:
            self.output(logits, head.outputs[0], *dims, len(self.params["head/dense/bias"]))
            return
        for index, name in enumerate(head.outputs):
            self.output(self.node("Gather", logits, index, axis=len(dims)), name, *dims)


def input_names(config: ModelConfig) -> tuple[str, ...]:
    """The inputs of an executable export, integers [batch, length]; a network with one token type takes no types."""
    return "input_ids", "attention_mask", *(["token_type_ids"] if config.type_vocab_size > 1 else [])
