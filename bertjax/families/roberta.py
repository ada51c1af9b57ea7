"""RoBERTa (Liu et al. 2019). XLM-R and CamemBERT share its architecture and names in transformers."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.bert import layers
from bertjax.families.family import Class, Family, HuggingFace, Tensor, dense, norm, tables
from bertjax.families.hf_config import HfConfig, read_fields
from bertjax.input.layout import Template

MLM = (
    *dense("mlm_head/transform", "lm_head.dense"),
    *norm("mlm_head/norm", "lm_head.layer_norm"),
    Tensor("mlm_head/bias", "lm_head.bias", padded=True),
)
# The dense layer and tanh before the classifier are a pooler under another name.
_SEQUENCE = (*dense("pooler/dense", "classifier.dense"), *dense("head/dense", "classifier.out_proj"))
ACTIVATIONS = ("gelu",)  # the MLM head always computes it
TEMPLATE = Template(separators=2, token_types=False)


def sizes(family: str, vocab_size: int) -> dict[str, ModelConfig]:
    """The two published sizes. 512 positions: transformers' 514 has two rows that no token uses."""
    base = ModelConfig(family=family, vocab_size=vocab_size, type_vocab_size=1, layer_norm_eps=1e-5, pooler="none")
    large = replace(base, hidden_size=1024, num_hidden_layers=24, num_attention_heads=16, intermediate_size=4096)
    return {"base": base, "large": large}


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    return read_fields(config, activations=ACTIVATIONS) | {"pooler": "none"}


def huggingface(
    model_type: str,
    beginning: str,
    prefix: str = "roberta.",
    more: tuple[Tensor, ...] = (),
) -> HuggingFace:
    """RoBERTa's tensor names with the model type and class names of one member.

    `more` are tensors of the encoder that RoBERTa lacks.
    """
    encoder = (*tables(f"{prefix}embeddings"), *layers(prefix), *more)
    return HuggingFace(
        model_type=model_type,
        prefix=prefix,
        beginning=beginning,
        encoder=encoder,
        pooler=dense("pooler/dense", f"{prefix}pooler.dense"),
        pretraining=Class(f"{beginning}ForMaskedLM", (*encoder, *MLM), outputs={"mlm_head": "logits"}),
        own_heads={"ForSequenceClassification": _SEQUENCE},
        tied={
            "lm_head.decoder.weight": f"{prefix}embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        from_hf_config=_from_hf_config,
        positions_from_padding=True,
        pad_token_id=1,
        token_ids={"pad_token_id": "pad", "bos_token_id": "cls", "eos_token_id": "sep"},
    )


_SIZES = sizes("roberta", 50_265)

ROBERTA = Family(
    name="roberta",
    title="RoBERTa",
    presets=_SIZES | {"distil": replace(_SIZES["base"], num_hidden_layers=6)},
    heads=("mlm_head",),
    template=TEMPLATE,
    huggingface=huggingface("roberta", "Roberta"),
)
