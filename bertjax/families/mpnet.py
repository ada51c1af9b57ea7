"""MPNet (Song et al. 2020): BERT without token types, with a learned bias of each attention score by distance.

Like transformers' class, this is a masked language model. The paper's permuted language modelling needs two streams,
which this network does not have.
"""

from __future__ import annotations

from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.family import Class, Family, HuggingFace, Tensor, dense, norm
from bertjax.families.hf_config import HfConfig, read_fields, write_fields
from bertjax.families.roberta import ACTIVATIONS, MLM, TEMPLATE

_LAYER = "mpnet.encoder.layer.{}"
_ENCODER = (
    Tensor("encoder/embeddings/word", "mpnet.embeddings.word_embeddings.weight", padded=True),
    Tensor("encoder/embeddings/position", "mpnet.embeddings.position_embeddings.weight", positions=True),
    *norm("encoder/embeddings/norm", "mpnet.embeddings.LayerNorm"),
    *dense("encoder/layers/attention/query", f"{_LAYER}.attention.attn.q"),
    *dense("encoder/layers/attention/key", f"{_LAYER}.attention.attn.k"),
    *dense("encoder/layers/attention/value", f"{_LAYER}.attention.attn.v"),
    *dense("encoder/layers/attention/output", f"{_LAYER}.attention.attn.o", inputs=2),
    *norm("encoder/layers/attention_norm", f"{_LAYER}.attention.LayerNorm"),
    *dense("encoder/layers/mlp/intermediate", f"{_LAYER}.intermediate.dense"),
    *dense("encoder/layers/mlp/output", f"{_LAYER}.output.dense"),
    *norm("encoder/layers/mlp_norm", f"{_LAYER}.output.LayerNorm"),
    Tensor("encoder/score_bias/table", "mpnet.encoder.relative_attention_bias.weight"),
)
_SEQUENCE = (*dense("pooler/dense", "classifier.dense"), *dense("head/dense", "classifier.out_proj"))
_WITHOUT = ("type_vocab_size",)
_BUCKETS, _REACH = 32, 128  # transformers' class always computes these, whatever the file has
_ARCHITECTURE: dict[str, Any] = {
    "type_vocab_size": 0,
    "score_bias_buckets": _BUCKETS,
    "score_bias_reach": _REACH,
    "pooler": "none",
}


def _to_hf_config(model: ModelConfig) -> dict[str, Any]:
    written = write_fields(model, without=_WITHOUT, task_dropout="")
    return written | {"relative_attention_num_buckets": model.score_bias_buckets}


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    config.require({"relative_attention_num_buckets": _BUCKETS})
    fields = read_fields(config, without=_WITHOUT, activations=ACTIVATIONS, causal=False)
    return fields | _ARCHITECTURE


MPNET = Family(
    name="mpnet",
    title="MPNet",
    presets={"base": ModelConfig(family="mpnet", vocab_size=30_527, layer_norm_eps=1e-5, **_ARCHITECTURE)},
    heads=("mlm_head",),
    template=TEMPLATE,
    huggingface=HuggingFace(
        model_type="mpnet",
        prefix="mpnet.",
        beginning="MPNet",
        encoder=_ENCODER,
        pooler=dense("pooler/dense", "mpnet.pooler.dense"),
        pretraining=Class("MPNetForMaskedLM", (*_ENCODER, *MLM), outputs={"mlm_head": "logits"}),
        own_heads={"ForSequenceClassification": _SEQUENCE},
        tied={
            "lm_head.decoder.weight": "mpnet.embeddings.word_embeddings.weight",
            "lm_head.decoder.bias": "lm_head.bias",
        },
        to_hf_config=_to_hf_config,
        from_hf_config=_from_hf_config,
        positions_from_padding=True,
        pad_token_id=1,
        fixed_pad_id=True,
        token_ids={"pad_token_id": "pad", "bos_token_id": "cls", "eos_token_id": "sep"},
    ),
)
