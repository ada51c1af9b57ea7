"""ELECTRA (Clark et al. 2020): a discriminator that detects the tokens replaced by a small generator.

transformers has a class for each of the two. Fine-tuning and vectors of texts start from the discriminator.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.bert import layers
from bertjax.families.family import Class, Family, HuggingFace, Tensor, dense, norm, tables
from bertjax.families.hf_config import HfConfig, read_fields, write_fields

_PROJECTION = dense("encoder/embeddings/projection", "electra.embeddings_project")
_ENCODER = (
    *tables("electra.embeddings"),
    *(replace(tensor, optional=True) for tensor in _PROJECTION),
    *layers("electra."),
)
_RTD = (
    *dense("rtd_head/dense", "discriminator_predictions.dense"),
    *dense("rtd_head/prediction", "discriminator_predictions.dense_prediction"),
)
_MLM = (
    *dense("mlm_head/transform", "generator_predictions.dense"),
    *norm("mlm_head/norm", "generator_predictions.LayerNorm"),
    Tensor("mlm_head/bias", "generator_lm_head.bias", padded=True),
)
# The dense layer and GELU before the classifier are a pooler under other names.
_SEQUENCE = (*dense("pooler/dense", "classifier.dense"), *dense("head/dense", "classifier.out_proj"))
_CHOICE = (*dense("pooler/dense", "sequence_summary.summary"), *dense("head/dense", "classifier"))

_SUMMARY = {"summary_type": "first", "summary_use_proj": True, "summary_activation": "gelu"}

_BASE = ModelConfig(family="electra", pooler="gelu")
_SMALL = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}


def _to_hf_config(model: ModelConfig) -> dict[str, Any]:
    return write_fields(model) | {"embedding_size": model.embedding_size or model.hidden_size}


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    # Some heads compute GELU and ignore `hidden_act`. ElectraConfig's defaults are the small discriminator.
    fields = read_fields(config, defaults=_SMALL, activations=("gelu",), causal=False)
    width = config.size("embedding_size", 128)
    return fields | {"embedding_size": 0 if width == fields["hidden_size"] else width, "pooler": "gelu"}


ELECTRA = Family(
    name="electra",
    title="ELECTRA",
    presets={
        "small": replace(_BASE, embedding_size=128, **_SMALL),
        "base": _BASE,
        "large": replace(_BASE, **_LARGE),
    },
    heads=("rtd_head",),
    generator="electra-generator",
    huggingface=HuggingFace(
        model_type="electra",
        prefix="electra.",
        beginning="Electra",
        encoder=_ENCODER,
        pooler=(),
        pretraining=Class("ElectraForPreTraining", (*_ENCODER, *_RTD), outputs={"rtd_head": "logits"}),
        left_out=("generator",),
        own_heads={"ForSequenceClassification": _SEQUENCE, "ForMultipleChoice": _CHOICE},
        head_constants={"ForMultipleChoice": _SUMMARY},
        to_hf_config=_to_hf_config,
        from_hf_config=_from_hf_config,
    ),
)
# Widths of generators as shares of the discriminator's (section 3.2).
GENERATOR_WIDTHS = {"small": 1 / 4, "base": 1 / 3, "large": 1 / 4}
_GENERATOR_SIZE = {"hidden_size": 256, "num_attention_heads": 4, "intermediate_size": 1024}

ELECTRA_GENERATOR = Family(
    name="electra-generator",
    title="an ELECTRA's generator",
    presets={
        "small": replace(
            _BASE,
            family="electra-generator",
            embedding_size=128,
            hidden_size=64,
            num_attention_heads=1,
            intermediate_size=256,
        ),
        "base": replace(_BASE, family="electra-generator", embedding_size=768, **_GENERATOR_SIZE),
        "large": replace(
            _BASE, family="electra-generator", embedding_size=1024, num_hidden_layers=24, **_GENERATOR_SIZE
        ),
    },
    heads=("mlm_head",),
    huggingface=replace(
        ELECTRA.transformers,
        pretraining=Class("ElectraForMaskedLM", (*_ENCODER, *_MLM), outputs={"mlm_head": "logits"}),
        left_out=(),
        tied={"generator_lm_head.weight": "electra.embeddings.word_embeddings.weight"},
    ),
)
