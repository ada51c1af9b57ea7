"""EuroBERT (Boizard et al. 2025): Llama's layers without a causal mask, and an untied output matrix.

It has pre-norm RMSNorm, rotary positions, grouped queries, SwiGLU and no biases. The layers and keys that UltraBERT
shares are here. Source of the numbers: `config.json` of the published models; 610M is not verified.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.family import Class, Family, HuggingFace, Tensor, dense
from bertjax.families.hf_config import HfConfig, read_fields, write_fields
from bertjax.input.layout import Template

_LAYER = "model.layers.{}"
ENCODER = (
    Tensor("encoder/embeddings/word", "model.embed_tokens.weight", padded=True),
    Tensor("encoder/layers/attention_norm/scale", f"{_LAYER}.input_layernorm.weight"),
    Tensor("encoder/layers/attention/query/kernel", f"{_LAYER}.self_attn.q_proj.weight", 1),
    Tensor("encoder/layers/attention/key/kernel", f"{_LAYER}.self_attn.k_proj.weight", 1),
    Tensor("encoder/layers/attention/value/kernel", f"{_LAYER}.self_attn.v_proj.weight", 1),
    Tensor("encoder/layers/attention/output/kernel", f"{_LAYER}.self_attn.o_proj.weight", 2),
    Tensor("encoder/layers/mlp_norm/scale", f"{_LAYER}.post_attention_layernorm.weight"),
    Tensor(
        "encoder/layers/mlp/intermediate/kernel",
        f"{_LAYER}.mlp.gate_proj.weight",
        1,
        others=(f"{_LAYER}.mlp.up_proj.weight",),
    ),
    Tensor("encoder/layers/mlp/output/kernel", f"{_LAYER}.mlp.down_proj.weight", 1),
    Tensor("encoder/final_norm/scale", "model.norm.weight"),
)
_MLM = (Tensor("mlm_head/decoder", "lm_head.weight", padded=True),)
_SEQUENCE = (*dense("pooler/dense", "dense"), *dense("head/dense", "classifier"))

KEYS = {
    "hidden_dropout_prob": "hidden_dropout",  # a key of the published files that no class reads
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "rms_norm_eps",
}
_WITHOUT = ("type_vocab_size",)
CONSTANTS = {"attention_bias": False, "mlp_bias": False, "tie_word_embeddings": False}
ARCHITECTURE: dict[str, Any] = {
    "type_vocab_size": 0,
    "position_embedding": "rope",
    "embedding_norm": "none",
    "norm": "rms",
    "norm_bias": False,
    "norm_place": "pre",
    "attention_bias": "none",
    "mlp_bias": "none",
    "mlp": "glu",
    "mlm_tied": False,
    "mlm_bias": False,
}
_HEADS: dict[str, Any] = {"pooler": "gelu", "head_bias": "all"}
_THETA = 10_000.0  # if the file has none


def write_block(model: ModelConfig) -> dict[str, Any]:
    """Write the keys of a `config.json` that describe the layers, except for the rotary base."""
    written = write_fields(model, keys=KEYS, without=_WITHOUT, task_dropout="") | CONSTANTS
    return written | {"num_key_value_heads": model.key_value_heads}


def read_block(config: HfConfig, defaults: dict[str, Any]) -> dict[str, Any]:
    """Read the fields of ModelConfig that `write_block` writes."""
    config.require(CONSTANTS)
    defaults = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "hidden_act": "silu"} | defaults
    fields = read_fields(
        config, keys=KEYS, without=_WITHOUT, defaults=defaults, activations=("silu", "gelu", "gelu_tanh"), causal=False
    )
    heads = fields["num_attention_heads"]
    groups = heads if config.get("num_key_value_heads") is None else config.integer("num_key_value_heads", heads, 1)
    head_dim = config.get("head_dim")
    if heads % groups or (head_dim is not None and head_dim * heads != fields["hidden_size"]):
        raise ValueError(
            f"{config.where}: num_key_value_heads is {groups} and head_dim {head_dim}; bertjax imports models whose "
            f"key-value heads divide the {heads} heads, and whose heads together are as wide as hidden_size"
        )
    return fields | ARCHITECTURE | {"num_key_value_heads": 0 if groups == heads else groups}


def _to_hf_config(model: ModelConfig) -> dict[str, Any]:
    return write_block(model) | {
        "rope_parameters": {"rope_type": "default", "rope_theta": model.rope_theta},
        "classifier_pooling": "bos",
    }


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    """Read the fields; the key of the rotary base may be transformers 5's or the earlier one."""
    fields = read_block(config, {"max_position_embeddings": 8192, "layer_norm_eps": 1e-5})
    pooling, classes = config.get("classifier_pooling", "late"), config.get("architectures") or [""]
    if pooling != "bos" and str(classes[0]).endswith("ForSequenceClassification"):
        raise ValueError(
            f"{config.where}: classifier_pooling is {pooling!r}; bertjax has heads that read only the first "
            "token ('bos')"
        )
    if config.get("rope_scaling") is not None:
        raise ValueError(f"{config.where}: rope_scaling is {config.get('rope_scaling')!r}; bertjax has none")
    parameters = config.get("rope_parameters") or {}
    theta = rope_theta(config, parameters, config.get("rope_theta", _THETA))
    return fields | _HEADS | {"rope_theta": theta}


def rope_theta(config: HfConfig, parameters: dict[str, Any], default: float) -> float:
    """Read the rotary base from an entry of `rope_parameters`. Raises ValueError for another rope_type."""
    if not isinstance(parameters, dict) or parameters.get("rope_type", "default") != "default":
        raise ValueError(f"{config.where}: rope_parameters has {parameters!r}; bertjax has only rope_type 'default'")
    theta = parameters.get("rope_theta", default)
    if isinstance(theta, bool) or not isinstance(theta, int | float) or theta <= 0:
        raise ValueError(f"{config.where}: rope_theta is {theta!r}, which is not a number above 0")
    return float(theta)


_BASE = ModelConfig(
    family="eurobert",
    vocab_size=128_256,
    hidden_act="silu",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=8192,
    layer_norm_eps=1e-5,
    rope_theta=250_000.0,
    **ARCHITECTURE,
    **_HEADS,
)

EUROBERT = Family(
    name="eurobert",
    title="EuroBERT",
    presets={
        "base": _BASE,  # 210M
        "610m": replace(
            _BASE,
            hidden_size=1152,
            num_hidden_layers=26,
            num_attention_heads=18,
            num_key_value_heads=6,
            intermediate_size=4096,
        ),
        "2.1b": replace(
            _BASE,
            hidden_size=2304,
            num_hidden_layers=32,
            num_attention_heads=18,
            num_key_value_heads=6,
            intermediate_size=6144,
        ),
    },
    heads=("mlm_head",),
    template=Template(separators=1, token_types=False),
    huggingface=HuggingFace(
        model_type="eurobert",
        prefix="model.",
        beginning="EuroBert",
        encoder=ENCODER,
        pooler=(),
        pretraining=Class("EuroBertForMaskedLM", (*ENCODER, *_MLM), outputs={"mlm_head": "logits"}),
        own_heads={"ForSequenceClassification": _SEQUENCE},
        lacking=("ForQuestionAnswering", "ForMultipleChoice"),
        to_hf_config=_to_hf_config,
        from_hf_config=_from_hf_config,
        pad_token_id=128_001,
        token_ids={
            "pad_token_id": "pad",
            "bos_token_id": "cls",
            "eos_token_id": "sep",
            "mask_token_id": "mask",
        },
    ),
)
