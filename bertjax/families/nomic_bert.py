"""Nomic-BERT (Nussbaum et al. 2024): BERT with rotary positions and SwiGLU, no biases in its layers, 2,048 tokens.

This is the network of transformers' class; files of the first releases have other keys and run their own code.
"""

from __future__ import annotations

from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.eurobert import rope_theta
from bertjax.families.family import Class, Family, HuggingFace, Tensor, dense, norm
from bertjax.families.hf_config import HfConfig, read_fields, write_fields

_LAYER = "nomic_bert.layers.{}"
_ENCODER = (
    Tensor("encoder/embeddings/word", "nomic_bert.embeddings.word_embeddings.weight", padded=True),
    Tensor("encoder/embeddings/token_type", "nomic_bert.embeddings.token_type_embeddings.weight"),
    *norm("encoder/embeddings/norm", "nomic_bert.embeddings.LayerNorm"),
    Tensor("encoder/layers/attention/query/kernel", f"{_LAYER}.self_attn.q_proj.weight", 1),
    Tensor("encoder/layers/attention/key/kernel", f"{_LAYER}.self_attn.k_proj.weight", 1),
    Tensor("encoder/layers/attention/value/kernel", f"{_LAYER}.self_attn.v_proj.weight", 1),
    Tensor("encoder/layers/attention/output/kernel", f"{_LAYER}.self_attn.o_proj.weight", 2),
    *norm("encoder/layers/attention_norm", f"{_LAYER}.post_attention_layernorm"),
    Tensor(
        "encoder/layers/mlp/intermediate/kernel",
        f"{_LAYER}.mlp.gate_proj.weight",
        1,
        others=(f"{_LAYER}.mlp.up_proj.weight",),
    ),
    Tensor("encoder/layers/mlp/output/kernel", f"{_LAYER}.mlp.down_proj.weight", 1),
    *norm("encoder/layers/mlp_norm", f"{_LAYER}.post_mlp_layernorm"),
)
_MLM = (
    *dense("mlm_head/transform", "cls.predictions.transform.dense"),
    *norm("mlm_head/norm", "cls.predictions.transform.layer_norm"),
    Tensor("mlm_head/bias", "cls.predictions.bias", padded=True),
)
_SEQUENCE = (*dense("pooler/dense", "nomic_bert.pooler.dense"), *dense("head/dense", "classifier"))
_THETA = 1_000.0
_ARCHITECTURE: dict[str, Any] = {
    "position_embedding": "rope",
    "attention_bias": "none",
    "mlp_bias": "none",
    "head_bias": "all",
    "mlp": "glu",
    "pooler": "tanh_of_tasks",
}
_OLD = "n_embd"  # a key of the first releases


def _to_hf_config(model: ModelConfig) -> dict[str, Any]:
    return write_fields(model) | {"rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta}}


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    if config.get(_OLD) is not None:
        raise ValueError(
            f"{config.where}: {_OLD} is a key of Nomic-BERT's first releases, which run their own code; save the "
            "model with transformers' NomicBertForMaskedLM first"
        )
    defaults = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "hidden_act": "silu"}
    fields = read_fields(config, defaults=defaults | {"max_position_embeddings": 2048}, causal=False)
    head_dim = config.get("head_dim")
    if head_dim is not None and head_dim * fields["num_attention_heads"] != fields["hidden_size"]:
        raise ValueError(f"{config.where}: head_dim is {head_dim}; bertjax has heads together as wide as hidden_size")
    theta = rope_theta(config, config.get("rope_parameters") or {}, config.get("rope_theta", _THETA))
    return fields | _ARCHITECTURE | {"rope_theta": theta}


NOMIC_BERT = Family(
    name="nomic-bert",
    title="Nomic-BERT",
    presets={
        "base": ModelConfig(
            family="nomic-bert",
            vocab_size=30_528,
            hidden_act="silu",
            hidden_dropout_prob=0.0,
            attention_probs_dropout_prob=0.0,
            max_position_embeddings=2048,
            rope_theta=_THETA,
            **_ARCHITECTURE,
        )
    },
    heads=("mlm_head",),
    huggingface=HuggingFace(
        model_type="nomic_bert",
        prefix="nomic_bert.",
        beginning="NomicBert",
        encoder=_ENCODER,
        pooler=(),
        pretraining=Class("NomicBertForMaskedLM", (*_ENCODER, *_MLM), outputs={"mlm_head": "logits"}),
        own_heads={"ForSequenceClassification": _SEQUENCE},
        lacking=("ForQuestionAnswering", "ForMultipleChoice"),
        tied={
            "cls.predictions.decoder.weight": "nomic_bert.embeddings.word_embeddings.weight",
            "cls.predictions.decoder.bias": "cls.predictions.bias",
        },
        to_hf_config=_to_hf_config,
        from_hf_config=_from_hf_config,
    ),
)
