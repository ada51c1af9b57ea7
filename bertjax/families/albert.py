"""ALBERT (Lan et al. 2020): all layers share their parameters, and the tables are narrower than the layers."""

from __future__ import annotations

from dataclasses import replace

from bertjax.config import ModelConfig
from bertjax.families.family import Class, Family, HuggingFace, Tensor, dense, norm, tables

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


def _sizes() -> dict[str, ModelConfig]:
    """The four sizes of google-research/albert: "base" and on of version 1, "base-v2" and on without dropout."""
    base = ModelConfig(family="albert", vocab_size=30_000, embedding_size=128, layer_groups=1, hidden_act="gelu_tanh")
    wider = {"large": (1024, 24, 16), "xlarge": (2048, 24, 16), "xxlarge": (4096, 12, 64)}
    found = {"base": base}
    for name, (width, depth, heads) in wider.items():
        found[name] = replace(
            base,
            hidden_size=width,
            num_hidden_layers=depth,
            num_attention_heads=heads,
            intermediate_size=4 * width,
        )
    without = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0, "classifier_dropout_prob": 0.1}
    found["xxlarge"] = replace(found["xxlarge"], **without)
    return found | {f"{name}-v2": replace(preset, **without) for name, preset in found.items()}


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
        fields={"embedding_size": "embedding_size", "layer_groups": "num_hidden_groups"},
        # AlbertConfig's defaults are xxlarge, version 2.
        defaults={
            "hidden_size": 4096,
            "num_hidden_layers": 12,
            "num_attention_heads": 64,
            "intermediate_size": 16_384,
            "hidden_act": "gelu_new",
            "hidden_dropout_prob": 0.0,
            "attention_probs_dropout_prob": 0.0,
            "embedding_size": 128,
            "num_hidden_groups": 1,
            "classifier_dropout_prob": 0.1,
        },
        constants={"inner_group_num": 1},
        task_dropout="classifier_dropout_prob",
        copies={"classifier_dropout_prob": "task_dropout_prob"},
        causal=False,
        token_ids={"pad_token_id": "pad", "bos_token_id": "cls", "eos_token_id": "sep"},
    ),
)
