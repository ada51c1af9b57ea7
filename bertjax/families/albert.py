"""ALBERT (Lan et al. 2020): all layers share their parameters, and the tables are narrower than the layers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.family import Class, Family, HuggingFace, Tensor, dense, norm, tables
from bertjax.families.hf_config import HfConfig, read_fields, write_fields

_LAYER = "albert.encoder.albert_layer_groups.{}.albert_layers.0"
_ENCODER = (
    *tables("albert.embeddings"),
    *dense("encoder/embeddings/projection", "albert.encoder.embedding_hidden_mapping_in"),
    *dense("encoder/layers/attention/query", f"{_LAYER}.attention.query"),
    *dense("encoder/layers/attention/key", f"{_LAYER}.attention.key"),
    *dense("encoder/layers/attention/value", f"{_LAYER}.attention.value"),
    *dense("encoder/layers/attention/output", f"{_LAYER}.attention.dense", inputs=2),
    *norm("encoder/layers/attention_norm", f"{_LAYER}.attention.LayerNorm"),
    *dense("encoder/layers/mlp/intermediate", f"{_LAYER}.ffn"),
    *dense("encoder/layers/mlp/output", f"{_LAYER}.ffn_output"),
    *norm("encoder/layers/mlp_norm", f"{_LAYER}.full_layer_layer_norm"),
)
_POOLER = dense("pooler/dense", "albert.pooler")
_MLM = (
    *dense("mlm_head/transform", "predictions.dense"),
    *norm("mlm_head/norm", "predictions.LayerNorm"),
    Tensor("mlm_head/bias", "predictions.bias", padded=True),
)


_CONSTANTS = {"inner_group_num": 1}


def _to_hf_config(model: ModelConfig) -> dict[str, Any]:
    return write_fields(model, task_dropout="") | _CONSTANTS | {
        "embedding_size": model.embedding_size,
        "num_hidden_groups": model.layer_groups,
        "classifier_dropout_prob": model.task_dropout_prob,
    }  # fmt: skip


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    config.require(_CONSTANTS)
    # AlbertConfig's defaults are xxlarge, version 2.
    defaults = {
        "hidden_size": 4096,
        "num_attention_heads": 64,
        "intermediate_size": 16_384,
        "hidden_act": "gelu_new",
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout_prob": 0.1,
    }
    fields = read_fields(config, defaults=defaults, task_dropout="classifier_dropout_prob", causal=False)
    return fields | {
        "embedding_size": config.size("embedding_size", 128),
        "layer_groups": config.size("num_hidden_groups", 1),
    }


def _sizes() -> dict[str, ModelConfig]:
    """The four sizes of google-research/albert: "base" to "xxlarge" are version 1; names with "-v2" have no dropout."""
    base = ModelConfig(family="albert", vocab_size=30_000, embedding_size=128, layer_groups=1, hidden_act="gelu_tanh")
    wider = {"large": (1024, 24, 16), "xlarge": (2048, 24, 16), "xxlarge": (4096, 12, 64)}
    presets = {"base": base}
    for name, (width, depth, heads) in wider.items():
        presets[name] = replace(
            base,
            hidden_size=width,
            num_hidden_layers=depth,
            num_attention_heads=heads,
            intermediate_size=4 * width,
        )
    no_dropout: dict[str, Any] = dict.fromkeys(("hidden_dropout_prob", "attention_probs_dropout_prob"), 0.0)
    no_dropout["classifier_dropout_prob"] = 0.1
    presets["xxlarge"] = replace(presets["xxlarge"], **no_dropout)
    return presets | {f"{name}-v2": replace(preset, **no_dropout) for name, preset in presets.items()}


ALBERT = Family(
    name="albert",
    title="ALBERT",
    presets=_sizes(),
    heads=("pooler", "mlm_head", "sop_head"),
    huggingface=HuggingFace(
        model_type="albert",
        prefix="albert.",
        beginning="Albert",
        encoder=_ENCODER,
        pooler=_POOLER,
        pretraining=Class(
            "AlbertForPreTraining",
            (*_ENCODER, *_POOLER, *_MLM, *dense("sop_head/dense", "sop_classifier.classifier")),
            outputs={"mlm_head": "prediction_logits", "sop_head": "sop_logits"},
        ),
        partial=(Class("AlbertForMaskedLM", (*_ENCODER, *_MLM), outputs={"mlm_head": "logits"}),),
        tied={
            "predictions.decoder.weight": "albert.embeddings.word_embeddings.weight",
            "predictions.decoder.bias": "predictions.bias",
        },
        to_hf_config=_to_hf_config,
        from_hf_config=_from_hf_config,
        token_ids={"pad_token_id": "pad", "bos_token_id": "cls", "eos_token_id": "sep"},
    ),
)
