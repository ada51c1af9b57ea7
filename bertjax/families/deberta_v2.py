"""DeBERTa v2 and v3 (He et al. 2021, 2023): large distances share buckets, and distances use the tokens' projections.

Version 2 predicts masked tokens; its published sizes have a convolution. Version 3 detects replaced tokens; its
generator is a version 2 with half as many layers and no convolution, like the presets "base" and "large". transformers
has one model type for both versions and no class with a head for replaced tokens: a version 3 is exported as its
encoder. deberta.py describes the enhanced mask decoder.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.deberta import (
    ALIASES,
    ARCHITECTURE,
    IGNORED,
    MLM,
    SEQUENCE,
    TEMPLATE,
    TIED,
    embeddings,
    from_hf_config,
    layer,
    optional,
    to_hf_config,
)
from bertjax.families.family import Class, Family, HuggingFace, Tensor, dense, norm
from bertjax.families.hf_config import HfConfig


def _layer(ours: str, theirs: str) -> tuple[Tensor, ...]:
    attention = f"{theirs}.attention.self"
    return (
        *dense(f"{ours}/attention/query", f"{attention}.query_proj"),
        *dense(f"{ours}/attention/key", f"{attention}.key_proj"),
        *dense(f"{ours}/attention/value", f"{attention}.value_proj"),
        *optional(*dense(f"{ours}/attention/relative_key", f"{attention}.pos_key_proj")),
        *optional(*dense(f"{ours}/attention/relative_query", f"{attention}.pos_query_proj")),
        *layer(ours, theirs),
    )


_CONVOLUTION = (
    Tensor("encoder/first_layer/convolution/kernel", "deberta.encoder.conv.conv.weight", 2, keeps_dims=True),
    Tensor("encoder/first_layer/convolution/bias", "deberta.encoder.conv.conv.bias"),
    *norm("encoder/first_layer/convolution/norm", "deberta.encoder.conv.LayerNorm"),
)
_ENCODER = (
    *embeddings(),
    *optional(Tensor("encoder/relative/table", "deberta.encoder.rel_embeddings.weight")),
    *optional(*norm("encoder/relative/norm", "deberta.encoder.LayerNorm")),
    *optional(*_layer("encoder/first_layer", "deberta.encoder.layer.0"), *_CONVOLUTION),
    *_layer("encoder/layers", "deberta.encoder.layer.{}"),
)


_CONSTANTS = {"conv_groups": 1}


def _to_hf_config(model: ModelConfig) -> dict[str, Any]:
    convolution = {"conv_kernel_size": model.conv_kernel, "conv_act": "gelu"} if model.conv_kernel else {}
    return to_hf_config(model) | _CONSTANTS | convolution | {
        "position_buckets": model.relative_buckets or -1,
        "share_att_key": model.relative_shared,
        "norm_rel_ebd": "layer_norm" if model.relative_norm else "none",
    }  # fmt: skip


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    config.require(_CONSTANTS)
    taps = config.integer("conv_kernel_size", 0, least=-1)
    if taps > 0 and (act := config.get("conv_act", "tanh")) != "gelu":
        raise ValueError(f"{config.where}: conv_act is {act!r}; bertjax has only a convolution with 'gelu'")
    # DebertaV2Config's default sizes are xlarge.
    xlarge = {"hidden_size": 1536, "num_hidden_layers": 24, "num_attention_heads": 24, "intermediate_size": 6144}
    fields = from_hf_config(config, xlarge) | {"conv_kernel": max(taps, 0)}
    if fields["position_embedding"] != "relative":
        return fields
    return fields | {
        "relative_buckets": max(config.integer("position_buckets", -1, least=-1), 0),
        "relative_shared": bool(config.get("share_att_key", False)),
        "relative_norm": "layer_norm" in str(config.get("norm_rel_ebd", "none")).lower().split("|"),
    }


def _v3_from_hf_config(config: HfConfig) -> dict[str, Any]:
    return _from_hf_config(config) | {"rtd_context": True}


def _sized(width: int, depth: int, **fields: Any) -> ModelConfig:
    """A size with 64 dims per head."""
    return ModelConfig(
        vocab_size=128_100,
        hidden_size=width,
        num_hidden_layers=depth,
        num_attention_heads=width // 64,
        intermediate_size=4 * width,
        layer_norm_eps=1e-7,
        position_embedding="relative",
        relative_max=512,
        relative_buckets=256,
        relative_shared=True,
        relative_norm=True,
        **ARCHITECTURE,
        **fields,
    )


def _sizes(family: str, sizes: Mapping[str, tuple[int, int]], **fields: Any) -> dict[str, ModelConfig]:
    return {name: _sized(width, depth, family=family, **fields) for name, (width, depth) in sizes.items()}


_V2 = HuggingFace(
    model_type="deberta-v2",
    prefix="deberta.",
    beginning="DebertaV2",
    encoder=_ENCODER,
    pooler=(),
    pretraining=Class("DebertaV2ForMaskedLM", (*_ENCODER, *MLM), outputs={"mlm_head": "logits"}),
    own_heads={"ForSequenceClassification": SEQUENCE, "ForMultipleChoice": SEQUENCE},
    tied=TIED,
    aliases=ALIASES,
    ignored=IGNORED,
    to_hf_config=_to_hf_config,
    from_hf_config=_from_hf_config,
)

DEBERTA_V2 = Family(
    name="deberta-v2",
    title="DeBERTa v2",
    presets=_sizes("deberta-v2", {"base": (768, 12), "large": (1024, 24)})
    | _sizes("deberta-v2", {"xlarge": (1536, 24), "xxlarge": (1536, 48)}, conv_kernel=3),
    heads=("mlm_head",),
    template=TEMPLATE,
    huggingface=_V2,
)
DEBERTA_V3 = Family(
    name="deberta-v3",
    title="DeBERTa v3",
    presets=_sizes(
        "deberta-v3", {"xsmall": (384, 12), "small": (768, 6), "base": (768, 12), "large": (1024, 24)}, rtd_context=True
    ),
    heads=("rtd_head",),
    template=TEMPLATE,
    generator="deberta-v2",
    huggingface=replace(
        _V2,
        pretraining=Class("DebertaV2Model", _ENCODER, bare=True),
        left_out=("rtd_head", "generator"),
        ignored=(*IGNORED, "lm_predictions."),
        from_hf_config=_v3_from_hf_config,
    ),
)
