"""ESM C (EvolutionaryScale 2024): Llama's layers for proteins, with LayerNorm and normed queries and keys.

The branches of a layer are divided by sqrt(layers / 36). transformers' classes also take chains (`sequence_id`), whose
positions continue; packed sequences of bertjax start at 0, which is the same under rotation.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.eurobert import rope_theta
from bertjax.families.family import Class, Family, HuggingFace, Tensor, dense, norm
from bertjax.families.hf_config import HfConfig, read_fields, write_fields
from bertjax.input.layout import Template

_LAYER = "esmc.layers.{}"
_ENCODER = (
    Tensor("encoder/embeddings/word", "esmc.embed_tokens.weight", padded=True),
    *norm("encoder/layers/attention_norm", f"{_LAYER}.input_layernorm"),
    Tensor("encoder/layers/attention/query/kernel", f"{_LAYER}.self_attn.q_proj.weight", 1),
    Tensor("encoder/layers/attention/key/kernel", f"{_LAYER}.self_attn.k_proj.weight", 1),
    Tensor("encoder/layers/attention/value/kernel", f"{_LAYER}.self_attn.v_proj.weight", 1),
    Tensor("encoder/layers/attention/output/kernel", f"{_LAYER}.self_attn.o_proj.weight", 2),
    Tensor("encoder/layers/attention/query_norm/scale", f"{_LAYER}.self_attn.q_norm.weight"),
    Tensor("encoder/layers/attention/key_norm/scale", f"{_LAYER}.self_attn.k_norm.weight"),
    *norm("encoder/layers/mlp_norm", f"{_LAYER}.post_attention_layernorm"),
    Tensor(
        "encoder/layers/mlp/intermediate/kernel",
        f"{_LAYER}.mlp.gate_proj.weight",
        1,
        others=(f"{_LAYER}.mlp.up_proj.weight",),
    ),
    Tensor("encoder/layers/mlp/output/kernel", f"{_LAYER}.mlp.down_proj.weight", 1),
    Tensor("encoder/final_norm/scale", "esmc.norm.weight"),
)
_MLM = (
    *dense("mlm_head/transform", "lm_head.dense"),
    *norm("mlm_head/norm", "lm_head.layer_norm"),
    Tensor("mlm_head/decoder", "lm_head.decoder.weight", padded=True),
    Tensor("mlm_head/bias", "lm_head.decoder.bias", padded=True),
)
# The dense layer and tanh before the classifier are a pooler under another name.
_SEQUENCE = (*dense("pooler/dense", "classifier.dense"), *dense("head/dense", "classifier.out_proj"))
_KEYS = {
    "hidden_dropout_prob": "hidden_dropout",  # a key that no class reads
    "attention_probs_dropout_prob": "attention_dropout",
}
_WITHOUT = ("type_vocab_size", "layer_norm_eps")
_CONSTANTS = {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False}
_ARCHITECTURE: dict[str, Any] = {
    "type_vocab_size": 0,
    "position_embedding": "rope",
    "embedding_norm": "none",
    "norm_place": "pre",
    "final_norm_bias": False,
    "layer_norm_eps": 1e-5,
    "attention_bias": "none",
    "qk_norm": True,
    "residual_depth": 36,
    "mlp_bias": "none",
    "head_bias": "all",
    "mlp": "glu",
    "mlm_tied": False,
    "mlm_transform": "gelu",
    "pooler": "tanh_of_tasks",
}


def _to_hf_config(model: ModelConfig) -> dict[str, Any]:
    return write_fields(model, keys=_KEYS, without=_WITHOUT) | _CONSTANTS | {
        "num_key_value_heads": model.key_value_heads,
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "classifier_dropout": model.task_dropout_prob,
    }  # fmt: skip


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    config.require(_CONSTANTS)
    defaults = {
        "hidden_size": 2560,
        "intermediate_size": 6912,
        "num_hidden_layers": 80,
        "num_attention_heads": 40,
        "max_position_embeddings": 2048,
        "hidden_act": "silu",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": 0.1,
    }
    fields = read_fields(config, keys=_KEYS, without=_WITHOUT, defaults=defaults, causal=False)
    if config.get("num_key_value_heads") not in (None, fields["num_attention_heads"]):
        raise ValueError(
            f"{config.where}: num_key_value_heads is {config.get('num_key_value_heads')!r}; ESM C has as many as "
            f"num_attention_heads, {fields['num_attention_heads']}"
        )
    theta = rope_theta(config, config.get("rope_parameters") or {}, ModelConfig.rope_theta)
    return fields | _ARCHITECTURE | {"rope_theta": theta}


_BASE = ModelConfig(
    family="esmc",
    vocab_size=64,
    hidden_size=960,
    num_hidden_layers=30,
    num_attention_heads=15,
    intermediate_size=2560,
    hidden_act="silu",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    classifier_dropout_prob=0.1,
    max_position_embeddings=2048,
    **_ARCHITECTURE,
)

ESMC = Family(
    name="esmc",
    title="ESM C",
    presets={
        "base": _BASE,  # 300M
        "600m": replace(_BASE, hidden_size=1152, num_hidden_layers=36, num_attention_heads=18, intermediate_size=3072),
        "6b": replace(_BASE, hidden_size=2560, num_hidden_layers=80, num_attention_heads=40, intermediate_size=6912),
    },
    heads=("mlm_head",),
    template=Template(separators=1, token_types=False),
    huggingface=HuggingFace(
        model_type="esmc",
        prefix="esmc.",
        beginning="Esmc",
        encoder=_ENCODER,
        pooler=(),
        pretraining=Class("EsmcForMaskedLM", (*_ENCODER, *_MLM), outputs={"mlm_head": "logits"}),
        own_heads={"ForSequenceClassification": _SEQUENCE, "ForTokenClassification": dense("head/dense", "score")},
        lacking=("ForQuestionAnswering", "ForMultipleChoice"),
        to_hf_config=_to_hf_config,
        from_hf_config=_from_hf_config,
        pad_token_id=1,
        token_ids={
            "pad_token_id": "pad",
            "bos_token_id": "cls",
            "eos_token_id": "sep",
            "mask_token_id": "mask",
        },
    ),
)
