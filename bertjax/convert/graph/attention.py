"""Attention as a graph, over the whole square: masks, windows, and the encodings of positions."""

from __future__ import annotations

import numpy as np

from bertjax.config import ModelConfig
from bertjax.convert.graph.graph import Arrays, Graph, Value, dense, norm
from bertjax.model.attention.positions import alibi_slopes
from bertjax.model.attention.relative import distance_row, score_scale
from bertjax.model.attention.self_attention import layer_windows

_LOWEST = np.finfo(np.float32).min
_PLACED = (0, 2, 1, 3)  # [B, L, H, K] -> [B, H, L, K] and back


class Attention:
    """The attention of every layer of a network; what layers share is in the graph once."""

    def __init__(self, graph: Graph, arrays: Arrays, config: ModelConfig) -> None:
        """A token sees the tokens whose attention_mask is 1; in a causal model, those of them up to itself."""
        self.graph, self.config = graph, config
        self.heads, self.head_dim = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        positions = graph.positions(graph.input("input_ids"))
        distance = graph.node("Sub", graph.unsqueeze(positions, 1), graph.unsqueeze(positions, 0))  # i - j: [L, L]
        windows = sorted({*layer_windows(config)})
        self.seen = {window: self._seen(distance, window) for window in windows}
        if config.position_embedding == "rope":
            self.angles = {window: self._angles(positions, window) for window in windows}
        elif config.position_embedding == "alibi":
            slopes = np.array(alibi_slopes(self.heads), np.float32)[:, None, None]
            far = graph.cast(graph.node("Abs", distance), "float32")
            self.fall = graph.node("Mul", graph.weight("slopes", slopes), far)
        elif config.position_embedding == "relative":
            self._add_distances(arrays, distance)

    def _seen(self, distance: Value, window: int) -> Value:
        """Which tokens (last dim) each token sees: bool, broadcast to [B, H, L, L]."""
        graph = self.graph
        seen = graph.unsqueeze(graph.cast(graph.input("attention_mask"), "bool"), 1, 2)
        if self.config.causal:
            seen = graph.node("And", seen, graph.node("LessOrEqual", self._integer(0), distance))
        if window:
            near = graph.node("LessOrEqual", graph.node("Abs", distance), self._integer(window))
            seen = graph.node("And", seen, near)
        return seen

    def _integer(self, value: int) -> Value:
        return self.graph.weight(f"int_{value}", np.array(value, np.int64))

    def _angles(self, positions: Value, window: int) -> tuple[Value, Value]:
        """Cosines and sines of every position, [L, K / 2], as `bertjax.model.attention.positions.rotated` has them."""
        config, graph, K = self.config, self.graph, self.head_dim
        theta = config.rope_theta_local if window and config.rope_theta_local else config.rope_theta
        rates = np.float32(1) / np.float32(theta) ** (np.arange(0, K, 2, dtype=np.float32) / np.float32(K))
        column = graph.cast(graph.unsqueeze(positions, 1), "float32")
        angles = graph.node("Mul", column, graph.weight(f"rates_{theta:g}", rates))
        return graph.node("Cos", angles), graph.node("Sin", angles)

    def _add_distances(self, arrays: Arrays, distance: Value) -> None:
        """The vectors of distances, and which of them is that of each pair of tokens."""
        config, graph, name = self.config, self.graph, "encoder/relative"
        reach = config.relative_max  # what is farther has the row of this distance
        rows = distance_row(config, np.arange(-reach, reach + 1)).astype(np.int64)
        near = graph.node("Max", graph.node("Min", distance, self._integer(reach)), self._integer(-reach))
        index_of_distance = graph.node("Add", near, self._integer(reach))
        index = graph.node("Gather", graph.weight("rows_of_distances", rows), index_of_distance)
        self.index = graph.unsqueeze(index, 0, 1)
        self.turned_index = graph.node("Transpose", self.index, perm=[0, 1, 3, 2])
        table = graph.weight(f"{name}/table", arrays[f"{name}/table"])
        self.distances = norm(graph, arrays, config, f"{name}/norm", table) if config.relative_norm else table

    def __call__(self, arrays: Arrays, name: str, x: Value, window: int) -> Value:
        """What the attention of a layer adds, [B, L, D]."""
        graph, config = self.graph, self.config
        if config.position_embedding == "rope":
            arrays = self._halves_apart(arrays, name)
        query, key, value = (self._projected(arrays, f"{name}/{role}", x) for role in ("query", "key", "value"))
        if config.position_embedding == "rope":
            query, key = (self._turned(part, *self.angles[window]) for part in (query, key))
        scores = graph.node("MatMul", query, graph.node("Transpose", key, perm=[0, 1, 3, 2]))
        scale = self.head_dim**-0.5
        if config.position_embedding == "relative":
            scores, scale = self._with_distances(arrays, name, scores, query, key), score_scale(self.head_dim)
        scores = graph.node("Mul", scores, graph.number(scale))
        if config.position_embedding == "alibi":
            scores = graph.node("Sub", scores, self.fall)
        scores = graph.node("Where", self.seen[window], scores, graph.number(_LOWEST))
        mixed = graph.node("MatMul", graph.node("Softmax", scores, axis=-1), value)
        joined = graph.reshape(graph.node("Transpose", mixed, perm=[*_PLACED]), 0, 0, config.hidden_size)
        return dense(graph, arrays, f"{name}/output", joined, config.hidden_size)

    def _projected(self, arrays: Arrays, name: str, x: Value) -> Value:
        y = self.graph.reshape(dense(self.graph, arrays, name, x), 0, 0, self.heads, self.head_dim)
        return self.graph.node("Transpose", y, perm=[*_PLACED])

    def _halves_apart(self, arrays: Arrays, name: str) -> Arrays:
        """Of pairs of neighbouring dims all first ones, then all second ones: scores do not depend on the order."""
        if not self.config.rope_interleaved:
            return arrays
        order = np.concatenate([np.arange(0, self.head_dim, 2), np.arange(1, self.head_dim, 2)])
        names = [key for key in arrays if key.startswith((f"{name}/query/", f"{name}/key/"))]
        return {**arrays, **{key: arrays[key][..., order] for key in names}}

    def _turned(self, x: Value, cos: Value, sin: Value) -> Value:
        """Each dim with the one half a head further, turned by their angle: [B, H, L, K]."""
        graph, half = self.graph, self.head_dim // 2
        first, second = graph.part(x, 3, 0, half), graph.part(x, 3, half, 2 * half)
        along = graph.node("Sub", graph.node("Mul", first, cos), graph.node("Mul", second, sin))
        across = graph.node("Add", graph.node("Mul", second, cos), graph.node("Mul", first, sin))
        return graph.node("Concat", along, across, axis=-1)

    def _with_distances(self, arrays: Arrays, name: str, scores: Value, query: Value, key: Value) -> Value:
        """Scores with the terms of `bertjax.model.attention.positions.relative_terms`, all before the scale."""
        graph, prefix = self.graph, "" if self.config.relative_shared else "relative_"
        of_queries = self._of_distances(arrays, f"{name}/{prefix}key")
        of_keys = self._of_distances(arrays, f"{name}/{prefix}query")
        to_positions = self._taken(graph.node("MatMul", query, of_queries), self.index)
        to_content = self._taken(graph.node("MatMul", key, of_keys), self.turned_index)
        to_content = graph.node("Transpose", to_content, perm=[0, 1, 3, 2])
        return graph.node("Add", scores, graph.node("Add", to_positions, to_content))

    def _of_distances(self, arrays: Arrays, name: str) -> Value:
        """Queries or keys made of the vectors of distances: [H, K, S]."""
        y = dense(self.graph, arrays, name, self.distances)
        return self.graph.node("Transpose", self.graph.reshape(y, 0, self.heads, self.head_dim), perm=[1, 2, 0])

    def _taken(self, products: Value, index: Value) -> Value:
        """Of a row of products with every vector, [B, H, L, S], those that each pair of tokens has: [B, H, L, L]."""
        return self.graph.node("GatherElements", products, self.graph.broadcast(index, products), axis=3)
