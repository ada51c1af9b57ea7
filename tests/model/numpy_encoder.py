"""The encoder and its MLM head with every option of the architecture, in NumPy and float64, one sequence at a time."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from bertjax.config import ModelConfig
from bertjax.model.network import Params
from bertjax.model.parameters import named_arrays


class Reference:
    """The network for one sequence in float64, written from the formulas, layer by layer."""

    def __init__(self, config: ModelConfig, params: Params) -> None:
        self.config = config
        self.params = {name: np.asarray(x, np.float64) for name, x in named_arrays(params).items()}

    def norm(self, x: np.ndarray, name: str, layer: Any = ()) -> np.ndarray:
        if self.config.norm == "layer":
            x = x - x.mean(-1, keepdims=True)
        wide = x / np.sqrt(np.square(x).mean(-1, keepdims=True) + self.config.layer_norm_eps)
        return wide * self.params[f"{name}/scale"][layer] + self.bias(name, layer, self.config.norm_bias)

    def dense(self, x: np.ndarray, name: str, layer: Any = (), has_bias: bool = True) -> np.ndarray:
        return np.tensordot(x, self.params[f"{name}/kernel"][layer], 1) + self.bias(name, layer, has_bias)

    def bias(self, name: str, layer: Any, has_bias: bool) -> Any:
        assert (f"{name}/bias" in self.params) is has_bias
        return self.params[f"{name}/bias"][layer] if has_bias else 0.0

    def activation(self, x: np.ndarray) -> np.ndarray:
        return {
            "gelu": lambda x: x * 0.5 * (1 + np.vectorize(math.erf)(x / math.sqrt(2))),
            "relu": lambda x: np.maximum(x, 0),
            "silu": lambda x: x / (1 + np.exp(-x)),
        }[self.config.hidden_act](x)

    def embedded(self, ids: np.ndarray, types: np.ndarray) -> np.ndarray:
        table, n = "encoder/embeddings", len(ids)
        x = self.params[f"{table}/word"][ids]
        if self.config.position_embedding == "learned":
            x = x + self.params[f"{table}/position"][:n]
        elif self.config.position_embedding == "sinusoidal":
            width = x.shape[1]
            angles = np.arange(n)[:, None] / 10_000 ** (2 * (np.arange(width) // 2) / width)
            waves = np.where(np.arange(width) % 2 == 0, np.sin(angles), np.cos(angles))
            x = x + waves * math.sqrt(2) * self.config.initializer_range
        if self.config.type_vocab_size:
            x = x + self.params[f"{table}/token_type"][np.minimum(types, self.config.type_vocab_size - 1)]
        if self.config.task_type_vocab_size:
            x = x + self.params[f"{table}/task_type"][0]
        x = self.norm(x, f"{table}/norm") if self.config.embedding_norm != "none" else x
        return self.dense(x, f"{table}/projection") if self.config.embedding_size else x

    def rotated(self, x: np.ndarray, theta: float) -> np.ndarray:
        """Multiply pairs of dims, as complex numbers, by e^(i position rate): [H, n, K]."""
        K, half = x.shape[-1], x.shape[-1] // 2
        first, second = (x[..., 0::2], x[..., 1::2]) if self.config.rope_interleaved else (x[..., :half], x[..., half:])
        rates = theta ** (-2 * np.arange(half) / K)
        turned = (first + 1j * second) * np.exp(1j * np.arange(x.shape[1])[:, None] * rates)
        if self.config.rope_interleaved:
            return np.stack([turned.real, turned.imag], -1).reshape(x.shape)
        return np.concatenate([turned.real, turned.imag], -1)

    def attended(self, x: np.ndarray, number: int, name: str, layer: Any) -> np.ndarray:
        config, n, heads, has_bias = self.config, len(x), {}, self.config.attention_bias == "all"
        is_global = config.window == 0 or (config.global_every > 0 and number % config.global_every == 0)
        for part in ("query", "key", "value"):
            heads[part] = self.dense(x, f"{name}/{part}", layer, has_bias).swapaxes(0, 1)
            if config.position_embedding == "rope" and part != "value":
                theta = config.rope_theta if is_global else config.rope_theta_local or config.rope_theta
                heads[part] = self.rotated(heads[part], theta)
        scores = np.einsum("hik,hjk->hij", heads["query"], heads["key"]) / math.sqrt(heads["key"].shape[-1])
        i, j = np.arange(n)[:, None], np.arange(n)
        if config.position_embedding == "alibi":
            assert config.num_attention_heads == 3
            scores = scores - np.array([2**-4, 2**-8, 2**-2])[:, None, None] * np.abs(i - j)
        hidden = np.zeros((n, n), bool) if is_global else np.abs(i - j) > config.window
        hidden |= config.causal & (j > i)
        scores = np.where(hidden, -np.inf, scores)
        weights = np.exp(scores - scores.max(-1, keepdims=True))
        mixed = np.einsum("hij,hjk->ihk", weights / weights.sum(-1, keepdims=True), heads["value"])
        out = np.einsum("ihk,hkd->id", mixed, self.params[f"{name}/output/kernel"][layer])
        return out + self.bias(f"{name}/output", layer, has_bias)

    def mlp(self, x: np.ndarray, name: str, layer: Any) -> np.ndarray:
        inner = self.dense(x, f"{name}/intermediate", layer, self.config.mlp_bias == "all")
        gated = self.config.mlp == "glu"
        inner = self.activation(inner[:, 0]) * inner[:, 1] if gated else self.activation(inner)
        return self.dense(inner, f"{name}/output", layer, self.config.mlp_bias != "none")

    def layer(self, x: np.ndarray, number: int) -> np.ndarray:
        config, stack = self.config, "encoder/layers"
        layer = number if not config.layer_groups else number * config.layer_groups // config.num_hidden_layers
        if not config.first_norm:
            stack, layer = ("encoder/layers", number - 1) if number else ("encoder/first_layer", ())
        if config.norm_place == "pre":
            has_norm = config.first_norm or number > 0
            inner = self.norm(x, f"{stack}/attention_norm", layer) if has_norm else x
            x = x + self.attended(inner, number, f"{stack}/attention", layer)
            return x + self.mlp(self.norm(x, f"{stack}/mlp_norm", layer), f"{stack}/mlp", layer)
        x = self.norm(x + self.attended(x, number, f"{stack}/attention", layer), f"{stack}/attention_norm", layer)
        return self.norm(x + self.mlp(x, f"{stack}/mlp", layer), f"{stack}/mlp_norm", layer)

    def __call__(self, ids: np.ndarray, types: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(hidden states [layers + 1, n, D], MLM logits [n, V])."""
        states = [self.embedded(ids, types)]
        for number in range(self.config.num_hidden_layers):
            states.append(self.layer(states[-1], number))
        if self.config.norm_place == "pre":
            states[-1] = self.norm(states[-1], "encoder/final_norm")
        if self.config.mlm_tied:
            has_bias = self.config.mlp_bias != "none"
            head = self.norm(
                self.activation(self.dense(states[-1], "mlm_head/transform", (), has_bias)), "mlm_head/norm"
            )
            logits = head @ self.params["encoder/embeddings/word"].T
        else:
            logits = states[-1] @ self.params["mlm_head/decoder"].T
        return np.stack(states), (logits + self.params["mlm_head/bias"])[:, : self.config.vocab_size]
