"""XLM-R XL and XXL (Goyal et al. 2021): XLM-R with pre-norm layers and a final norm, without a norm of embeddings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.family import Class, Family, Tensor, dense, norm
from bertjax.families.hf_config import HfConfig, read_fields
from bertjax.families.roberta import ACTIVATIONS, MLM, TEMPLATE, huggingface

_LAYER = "roberta.encoder.layer.{}"
_ENCODER = (
    Tensor("encoder/embeddings/word", "roberta.embeddings.word_embeddings.weight", padded=True),
    Tensor("encoder/embeddings/position", "roberta.embeddings.position_embeddings.weight", positions=True),
    Tensor("encoder/embeddings/token_type", "roberta.embeddings.token_type_embeddings.weight"),
    *norm("encoder/layers/attention_norm", f"{_LAYER}.attention.self_attn_layer_norm"),
    *dense("encoder/layers/attention/query", f"{_LAYER}.attention.self.query"),
    *dense("encoder/layers/attention/key", f"{_LAYER}.attention.self.key"),
    *dense("encoder/layers/attention/value", f"{_LAYER}.attention.self.value"),
    *dense("encoder/layers/attention/output", f"{_LAYER}.attention.output.dense", inputs=2),
    *norm("encoder/layers/mlp_norm", f"{_LAYER}.LayerNorm"),
    *dense("encoder/layers/mlp/intermediate", f"{_LAYER}.intermediate.dense"),
    *dense("encoder/layers/mlp/output", f"{_LAYER}.output.dense"),
    *norm("encoder/final_norm", "roberta.encoder.LayerNorm"),
)
_ARCHITECTURE: dict[str, Any] = {"embedding_norm": "none", "norm_place": "pre", "pooler": "none"}
_SIZES = {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 10240}
_DEFAULTS = {"max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    fields = read_fields(config, defaults=_SIZES | _DEFAULTS, activations=ACTIVATIONS, causal=False)
    return fields | _ARCHITECTURE


_XL = ModelConfig(
    family="xlm-roberta-xl", vocab_size=250_880, type_vocab_size=1, layer_norm_eps=1e-5, **_SIZES, **_ARCHITECTURE
)
_LIKE_ROBERTA = huggingface("xlm-roberta-xl", "XLMRobertaXL")

XLM_ROBERTA_XL = Family(
    name="xlm-roberta-xl",
    title="XLM-R XL",
    presets={
        "base": _XL,  # XL
        "xxl": replace(_XL, hidden_size=4096, num_hidden_layers=48, intermediate_size=16384),
    },
    heads=("mlm_head",),
    template=TEMPLATE,
    huggingface=replace(
        _LIKE_ROBERTA,
        encoder=_ENCODER,
        pretraining=Class("XLMRobertaXLForMaskedLM", (*_ENCODER, *MLM), outputs={"mlm_head": "logits"}),
        from_hf_config=_from_hf_config,
    ),
)
