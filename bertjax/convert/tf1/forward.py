"""google-research/bert in NumPy: modeling.py and the heads of run_pretraining.py.

Written from the names in the checkpoint and independently of the model, so that a comparison proves the name and the
orientation of each tensor. It computes in float64.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from bertjax.config import ModelConfig

_CUBE, _ROOT = 0.044715, np.sqrt(2 / np.pi)
_UNSEEN = -10_000.0


class TensorflowBert:
    """The network over a checkpoint's arrays by name."""

    def __init__(self, arrays: Mapping[str, np.ndarray], config: ModelConfig) -> None:
        self._arrays, self._config = arrays, config

    def __call__(self, ids: np.ndarray, types: np.ndarray, mask: np.ndarray) -> dict[str, np.ndarray]:
        """The outputs for int arrays [B, L], by the part of the checkpoint that makes them.

        `bert` has hidden states [B, L, D]; `cls/predictions` has logits [B, L, V] and `cls/seq_relationship` logits
        [B, 2], if the checkpoint has these heads.
        """
        x = self._get("bert/embeddings/word_embeddings")[ids]
        x = x + self._get("bert/embeddings/token_type_embeddings")[types]
        x = self._norm("bert/embeddings", x + self._get("bert/embeddings/position_embeddings")[: ids.shape[1]])
        for number in range(self._config.num_hidden_layers):
            layer = f"bert/encoder/layer_{number}"
            attended = self._attention(f"{layer}/attention/self", x, mask)
            x = self._norm(f"{layer}/attention/output", self._dense(f"{layer}/attention/output/dense", attended) + x)
            inner = _gelu(self._dense(f"{layer}/intermediate/dense", x))
            x = self._norm(f"{layer}/output", self._dense(f"{layer}/output/dense", inner) + x)
        outputs = {"bert": x}
        if "cls/predictions/output_bias" in self._arrays:
            guess = self._norm("cls/predictions/transform", _gelu(self._dense("cls/predictions/transform/dense", x)))
            logits = guess @ self._get("bert/embeddings/word_embeddings").T
            outputs["cls/predictions"] = logits + self._get("cls/predictions/output_bias")
        if "cls/seq_relationship/output_bias" in self._arrays:
            pooled = np.tanh(self._dense("bert/pooler/dense", x[:, 0]))
            logits = pooled @ self._get("cls/seq_relationship/output_weights").T
            outputs["cls/seq_relationship"] = logits + self._get("cls/seq_relationship/output_bias")
        return outputs

    def _attention(self, name: str, x: np.ndarray, mask: np.ndarray) -> np.ndarray:
        rows, length, width = x.shape
        heads = self._config.num_attention_heads
        q, k, v = (
            self._dense(f"{name}/{part}", x).reshape(rows, length, heads, -1).transpose(0, 2, 1, 3)
            for part in ("query", "key", "value")
        )
        scores = q @ k.swapaxes(2, 3) / np.sqrt(width / heads) + (1 - mask[:, None, None]) * _UNSEEN
        shares = np.exp(scores - scores.max(axis=-1, keepdims=True))
        shares /= shares.sum(axis=-1, keepdims=True)
        return (shares @ v).transpose(0, 2, 1, 3).reshape(rows, length, width)

    def _dense(self, name: str, x: np.ndarray) -> np.ndarray:
        return x @ self._get(f"{name}/kernel") + self._get(f"{name}/bias")

    def _norm(self, name: str, x: np.ndarray) -> np.ndarray:
        centred = x - x.mean(axis=-1, keepdims=True)
        scaled = centred / np.sqrt(np.square(centred).mean(axis=-1, keepdims=True) + self._config.layer_norm_eps)
        return scaled * self._get(f"{name}/LayerNorm/gamma") + self._get(f"{name}/LayerNorm/beta")

    def _get(self, name: str) -> np.ndarray:
        return self._arrays[name].astype(np.float64)


def _gelu(x: np.ndarray) -> np.ndarray:
    return 0.5 * x * (1 + np.tanh(_ROOT * (x + _CUBE * x**3)))
