"""DistilBERT (Sanh et al. 2019): half of BERT's layers, no token types, no pooler, distilled from a BERT."""

from __future__ import annotations

from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.family import Class, Family, HuggingFace, Tensor, dense, norm, tables
from bertjax.families.hf_config import HfConfig, read_fields, write_fields
from bertjax.input.layout import Template

_LAYER = "distilbert.transformer.layer.{}"
_ENCODER = (
    *(tensor for tensor in tables("distilbert.embeddings") if tensor.ours != "encoder/embeddings/token_type"),
    *dense("encoder/layers/attention/query", f"{_LAYER}.attention.q_lin"),
    *dense("encoder/layers/attention/key", f"{_LAYER}.attention.k_lin"),
    *dense("encoder/layers/attention/value", f"{_LAYER}.attention.v_lin"),
    *dense("encoder/layers/attention/output", f"{_LAYER}.attention.out_lin", inputs=2),
    *norm("encoder/layers/attention_norm", f"{_LAYER}.sa_layer_norm"),
    *dense("encoder/layers/mlp/intermediate", f"{_LAYER}.ffn.lin1"),
    *dense("encoder/layers/mlp/output", f"{_LAYER}.ffn.lin2"),
    *norm("encoder/layers/mlp_norm", f"{_LAYER}.output_layer_norm"),
)
_MLM = (
    *dense("mlm_head/transform", "vocab_transform"),
    *norm("mlm_head/norm", "vocab_layer_norm"),
    Tensor("mlm_head/bias", "vocab_projector.bias", padded=True),
)
# The dense layer and ReLU before the classifier are a pooler under another name.
_CLASSES = (*dense("pooler/dense", "pre_classifier"), *dense("head/dense", "classifier"))
# BERT's layers from which a student of half the depth starts (transformers, extract_distilbert.py).
LAYERS_OF_BERT = (0, 2, 4, 7, 9, 11)
_KEYS = {
    "hidden_size": "dim",
    "num_hidden_layers": "n_layers",
    "num_attention_heads": "n_heads",
    "intermediate_size": "hidden_dim",
    "hidden_act": "activation",
    "hidden_dropout_prob": "dropout",
    "attention_probs_dropout_prob": "attention_dropout",
}
_CONSTANTS = {"sinusoidal_pos_embds": False}
_ARCHITECTURE: dict[str, Any] = {"pooler": "relu", "type_vocab_size": 0}
_WITHOUT = ("type_vocab_size", "layer_norm_eps")


def _to_hf_config(model: ModelConfig) -> dict[str, Any]:
    return write_fields(model, keys=_KEYS, without=_WITHOUT, task_dropout="") | _CONSTANTS


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    config.require(_CONSTANTS)
    defaults = {"num_hidden_layers": 6}
    fields = read_fields(config, keys=_KEYS, without=_WITHOUT, task_dropout="", defaults=defaults, causal=False)
    return fields | _ARCHITECTURE | {"layer_norm_eps": 1e-12}


DISTILBERT = Family(
    name="distilbert",
    title="DistilBERT",
    presets={"base": ModelConfig(family="distilbert", num_hidden_layers=6, **_ARCHITECTURE)},
    heads=("mlm_head",),
    template=Template(separators=1, token_types=False),
    huggingface=HuggingFace(
        model_type="distilbert",
        prefix="distilbert.",
        beginning="DistilBert",
        encoder=_ENCODER,
        pooler=(),
        pretraining=Class("DistilBertForMaskedLM", (*_ENCODER, *_MLM), outputs={"mlm_head": "logits"}),
        own_heads={"ForSequenceClassification": _CLASSES, "ForMultipleChoice": _CLASSES},
        tied={"vocab_projector.weight": "distilbert.embeddings.word_embeddings.weight"},
        to_hf_config=_to_hf_config,
        from_hf_config=_from_hf_config,
    ),
)
