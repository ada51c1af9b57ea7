"""DeBERTa in NumPy, for one sequence at a time and in float64, by the formulas of the papers."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.special import erf

from bertjax.config import ModelConfig

Array = np.ndarray


def gelu(x: Array) -> Array:
    return 0.5 * x * (1 + erf(x / math.sqrt(2)))


def dense(x: Array, part: dict[str, Array]) -> Array:
    """Contract the last dim of x with the first of the kernel, and add the bias, if any."""
    return x @ part["kernel"] + part.get("bias", 0.0)


def table_row(config: ModelConfig, distance: int) -> int:
    """The bucket of a distance i - j; buckets count from 0."""
    span, middle = config.relative_buckets or config.relative_max, config.relative_buckets // 2
    if middle and abs(distance) > middle:
        share = math.log(abs(distance) / middle) / math.log((config.relative_max - 1) / middle)
        distance = int(math.copysign(math.ceil(share * (middle - 1) - 1e-9) + middle, distance))
    return min(max(distance + span, 0), 2 * span - 1)


class Deberta:
    """The network for a config and its parameters; takes the ids of one sequence, [n]."""

    def __init__(self, config: ModelConfig, params: Any) -> None:
        def wide(tree: Any) -> Any:
            return {k: wide(v) for k, v in tree.items()} if isinstance(tree, dict) else np.asarray(tree, np.float64)

        self.config, self.params = config, wide(params)
        self.encoder = self.params["encoder"]
        tables = self.encoder["embeddings"]
        self.words = tables["word"] + tables.get("word_difference", 0.0)

    def norm(self, x: Array, part: dict[str, Array]) -> Array:
        centred = x - x.mean(-1, keepdims=True)
        deviation = np.sqrt((centred**2).mean(-1, keepdims=True) + self.config.layer_norm_eps)
        return centred / deviation * part["scale"] + part["bias"]

    def layer(self, number: int) -> dict[str, Any]:
        first = self.encoder.get("first_layer")
        if first and number == 0:
            return first

        def one(tree: Any) -> Any:
            return {k: one(v) for k, v in tree.items()} if isinstance(tree, dict) else tree[number - bool(first)]

        return one(self.encoder["layers"])

    def embedded(self, ids: Array) -> Array:
        return self.norm(self.words[ids], self.encoder["embeddings"]["norm"])

    def attended(self, part: dict[str, Any], x: Array, query_input: Array) -> Array:
        """Compute attention with every score as three separate products."""
        config, n = self.config, len(x)
        heads, width = config.num_attention_heads, config.hidden_size // config.num_attention_heads
        table = self.encoder["relative"]["table"]
        if config.relative_norm:
            table = self.norm(table, self.encoder["relative"]["norm"])

        def project(vectors: Array, role: str) -> Array:
            kernel = part[role]["kernel"]
            y = vectors @ kernel.reshape(len(kernel), -1) + part[role].get("bias", np.zeros(1)).reshape(-1)
            return y.reshape(len(vectors), heads, width)

        q, k, v = project(query_input, "query"), project(x, "key"), project(x, "value")
        prefix = "" if config.relative_shared else "relative_"
        relative_q, relative_k = project(table, f"{prefix}query"), project(table, f"{prefix}key")
        out = np.zeros((n, heads, width))
        for i in range(n):
            for h in range(heads):
                scores = []
                for j in range(n):
                    row = table_row(config, i - j)
                    scores.append(q[i, h] @ k[j, h] + q[i, h] @ relative_k[row, h] + k[j, h] @ relative_q[row, h])
                weights = np.exp(np.array(scores) / math.sqrt(3 * width))
                out[i, h] = (weights / weights.sum()) @ v[:, h]
        kernel = part["output"]["kernel"]
        return out.reshape(n, -1) @ kernel.reshape(-1, kernel.shape[-1]) + part["output"]["bias"]

    def run_layer(self, number: int, x: Array, query_input: Array | None = None) -> Array:
        part, residual = self.layer(number), x if query_input is None else query_input
        y = self.norm(residual + self.attended(part["attention"], x, residual), part["attention_norm"])
        y = self.norm(y + dense(gelu(dense(y, part["mlp"]["intermediate"])), part["mlp"]["output"]), part["mlp_norm"])
        if "convolution" not in part:
            return y
        kernel = part["convolution"]["kernel"]  # [D, taps, D]
        reach = kernel.shape[1] // 2
        around = np.pad(x, [(reach, reach), (0, 0)])
        context = np.stack([np.einsum("td,dte->e", around[i : i + 2 * reach + 1], kernel) for i in range(len(x))])
        return self.norm(y + gelu(context + part["convolution"]["bias"]), part["convolution"]["norm"])

    def encoded(self, ids: Array, layers: int = 0) -> Array:
        x = self.embedded(ids)
        for number in range(layers or self.config.num_hidden_layers):
            x = self.run_layer(number, x)
        return x

    def mlm_logits(self, ids: Array) -> Array:
        """Compute MLM logits, with the enhanced decoder if the model has one."""
        if "mask_decoder" in self.params:
            last = self.config.num_hidden_layers - 1
            below = self.encoded(ids, last)
            x = self.run_layer(last, below, below + self.params["mask_decoder"]["position"][: len(ids)])
            x = self.run_layer(last, below, x)
        else:
            x = self.encoded(ids)
        head = self.params["mlm_head"]
        x = self.norm(gelu(dense(x, head["transform"])), head["norm"])
        return (x @ self.words.T + head["bias"])[:, : self.config.vocab_size]

    def rtd_logits(self, ids: Array) -> Array:
        x, head = self.encoded(ids), self.params["rtd_head"]
        x = self.norm(x[:1] + x, head["norm"])
        return dense(gelu(dense(x, head["dense"])), head["prediction"])[:, 0]
