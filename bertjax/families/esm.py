"""ESM-2 (Lin et al. 2023) and ESM-1b (Rives et al. 2021): BERTs of proteins with pre-norm layers and token dropout.

ESM-2 has rotary positions, ESM-1b a table of positions and a norm on its embeddings. transformers scales queries
before they are rotated and bertjax scales scores, which is the same in exact arithmetic. Dropout also applies to
embeddings, as in BERT; published models have none.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from bertjax.config import ModelConfig
from bertjax.families.family import Class, Family, HuggingFace, Tensor, dense, norm
from bertjax.families.hf_config import HfConfig, read_fields, write_fields
from bertjax.input.layout import Template

_LAYER = "esm.encoder.layer.{}"
_ENCODER = (
    Tensor("encoder/embeddings/word", "esm.embeddings.word_embeddings.weight", padded=True),
    Tensor("encoder/embeddings/position", "esm.embeddings.position_embeddings.weight", positions=True, optional=True),
    *(replace(tensor, optional=True) for tensor in norm("encoder/embeddings/norm", "esm.embeddings.layer_norm")),
    *norm("encoder/layers/attention_norm", f"{_LAYER}.attention.LayerNorm"),
    *dense("encoder/layers/attention/query", f"{_LAYER}.attention.self.query"),
    *dense("encoder/layers/attention/key", f"{_LAYER}.attention.self.key"),
    *dense("encoder/layers/attention/value", f"{_LAYER}.attention.self.value"),
    *dense("encoder/layers/attention/output", f"{_LAYER}.attention.output.dense", inputs=2),
    *norm("encoder/layers/mlp_norm", f"{_LAYER}.LayerNorm"),
    *dense("encoder/layers/mlp/intermediate", f"{_LAYER}.intermediate.dense"),
    *dense("encoder/layers/mlp/output", f"{_LAYER}.output.dense"),
    *norm("encoder/final_norm", "esm.encoder.emb_layer_norm_after"),
)
_MLM = (
    *dense("mlm_head/transform", "lm_head.dense"),
    *norm("mlm_head/norm", "lm_head.layer_norm"),
    Tensor("mlm_head/bias", "lm_head.bias", padded=True),
)
# The dense layer and tanh before the classifier are a pooler under another name.
_SEQUENCE = (*dense("pooler/dense", "classifier.dense"), *dense("head/dense", "classifier.out_proj"))
_POSITIONS = {"learned": "absolute", "rope": "rotary"}
_TOKEN_DROPOUT = 0.15 * 0.8  # the share of <mask> in pretraining, a constant of transformers' class
_WITHOUT = ("type_vocab_size",)
_CONSTANTS = {"is_folding_model": False}
_ARCHITECTURE: dict[str, Any] = {"type_vocab_size": 0, "norm_place": "pre", "pooler": "none"}


def _to_hf_config(model: ModelConfig) -> dict[str, Any]:
    values = write_fields(model, without=_WITHOUT, task_dropout="")
    del values["hidden_act"]  # its classes always compute GELU
    return values | _CONSTANTS | {
        "position_embedding_type": _POSITIONS.get(model.position_embedding, model.position_embedding),
        "rope_theta": model.rope_theta,
        "emb_layer_norm_before": model.embedding_norm != "none",
        "token_dropout": model.token_dropout > 0,
        **({"mask_token_id": model.mask_token_id} if model.token_dropout else {}),
    }  # fmt: skip


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    config.require(_CONSTANTS)
    fields = read_fields(
        config, without=_WITHOUT, task_dropout="", defaults={"max_position_embeddings": 1026}, activations=("gelu",)
    )
    ours = {theirs: name for name, theirs in _POSITIONS.items()}
    positions = config.get("position_embedding_type", "absolute")
    if not isinstance(positions, str) or positions not in ours:
        raise ValueError(
            f"{config.where}: position_embedding_type is {positions!r}; for this family bertjax has {', '.join(ours)}"
        )
    fields |= _ARCHITECTURE | {
        "position_embedding": ours[positions],
        "embedding_norm": "norm_dropout" if config.get("emb_layer_norm_before") else "none",
    }
    if positions == "rotary":
        fields["rope_theta"] = config.number("rope_theta", ModelConfig.rope_theta)
    if config.get("token_dropout"):
        mask_id = config.get("mask_token_id")
        fields["token_dropout"] = _TOKEN_DROPOUT
        fields["mask_token_id"] = -1 if mask_id is None else config.integer("mask_token_id", -1, -1)
    return fields


def _computed_tensors(model: ModelConfig) -> dict[str, np.ndarray]:
    from bertjax.model.attention.positions import rotation_rates  # imports jax, which names of families do not need

    if model.position_embedding != "rope":
        return {}
    rates = rotation_rates(model.rope_theta, model.hidden_size // model.num_attention_heads)
    return {"esm.rotary_embeddings.inv_freq": rates}


# Source of the sizes: Lin et al. 2023, table S1; facebook/esm2_t6_8M_UR50D and its siblings.
def _size(layers: int, width: int, heads: int) -> ModelConfig:
    return ModelConfig(
        family="esm",
        vocab_size=33,
        hidden_size=width,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=4 * width,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        max_position_embeddings=1024,
        position_embedding="rope",
        token_dropout=_TOKEN_DROPOUT,
        mask_token_id=32,
        embedding_norm="none",
        layer_norm_eps=1e-5,
        **_ARCHITECTURE,
    )


_SIZES = {
    "8m": _size(6, 320, 20),
    "35m": _size(12, 480, 20),
    "150m": _size(30, 640, 20),
    "650m": _size(33, 1280, 20),
    "3b": _size(36, 2560, 40),
    "15b": _size(48, 5120, 40),
}

ESM = Family(
    name="esm",
    title="ESM-2",
    presets={"base": _SIZES["8m"]} | _SIZES,
    heads=("mlm_head",),
    template=Template(separators=1, token_types=False),
    huggingface=HuggingFace(
        model_type="esm",
        prefix="esm.",
        beginning="Esm",
        encoder=_ENCODER,
        pooler=dense("pooler/dense", "esm.pooler.dense"),
        pretraining=Class("EsmForMaskedLM", (*_ENCODER, *_MLM), outputs={"mlm_head": "logits"}),
        own_heads={"ForSequenceClassification": _SEQUENCE},
        lacking=("ForQuestionAnswering", "ForMultipleChoice"),
        tied={"lm_head.decoder.weight": "esm.embeddings.word_embeddings.weight"},
        # The regression of contacts on attention; the unused position tables of models with rotary positions.
        ignored=("esm.contact_head.", "esm.embeddings.position_embeddings."),
        computed_tensors=_computed_tensors,
        transformers_only={"esm.contact_head.": "the regression of contacts on attention"},
        constants={"add_cross_attention": False},
        to_hf_config=_to_hf_config,
        from_hf_config=_from_hf_config,
        positions_from_padding=True,
        pad_token_id=1,
        token_ids={"pad_token_id": "pad", "bos_token_id": "cls", "eos_token_id": "sep"},
    ),
)
