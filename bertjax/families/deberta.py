"""DeBERTa (He et al. 2021): attention by the content of tokens and by their distances.

transformers does not implement the published objective: its class for masked tokens puts the head on the last layer,
where the enhanced mask decoder runs that layer again with absolute positions. A model with `model.mlm_decoder` enhanced
is exported as its encoder only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.family import Class, Family, HuggingFace, Tensor, dense, norm, tables
from bertjax.families.hf_config import HfConfig, read_fields, write_fields
from bertjax.input.layout import Template

TEMPLATE = Template(separators=1, token_types=False)
_DISTANCE_TERMS = {"c2p", "p2c"}


def optional(*tensors: Tensor) -> tuple[Tensor, ...]:
    """Mark tensors that exist only with some options of the model."""
    return tuple(replace(tensor, optional=True) for tensor in tensors)


def embeddings() -> tuple[Tensor, ...]:
    """The embedding tables. Published models have only the word table."""
    word, position, _, *layer_norm = tables("deberta.embeddings")
    return word, *optional(position), *layer_norm


def layer(ours: str, theirs: str) -> tuple[Tensor, ...]:
    """A layer, or the stack of all layers, without queries, keys and values."""
    return (
        *dense(f"{ours}/attention/output", f"{theirs}.attention.output.dense", inputs=2),
        *norm(f"{ours}/attention_norm", f"{theirs}.attention.output.LayerNorm"),
        *dense(f"{ours}/mlp/intermediate", f"{theirs}.intermediate.dense"),
        *dense(f"{ours}/mlp/output", f"{theirs}.output.dense"),
        *norm(f"{ours}/mlp_norm", f"{theirs}.output.LayerNorm"),
    )


_LAYERS, _THEIRS = "encoder/layers", "deberta.encoder.layer.{}"
_SELF = f"{_THEIRS}.attention.self"
_ENCODER = (
    *embeddings(),
    *optional(Tensor("encoder/relative/table", "deberta.encoder.rel_embeddings.weight")),
    *(
        Tensor(f"{_LAYERS}/attention/{role}/kernel", f"{_SELF}.in_proj.weight", 1, part=(number, 3), by_head=True)
        for number, role in enumerate(("query", "key", "value"))
    ),
    Tensor(f"{_LAYERS}/attention/query/bias", f"{_SELF}.q_bias"),
    Tensor(f"{_LAYERS}/attention/value/bias", f"{_SELF}.v_bias"),
    *optional(Tensor(f"{_LAYERS}/attention/relative_key/kernel", f"{_SELF}.pos_proj.weight", 1)),
    *optional(*dense(f"{_LAYERS}/attention/relative_query", f"{_SELF}.pos_q_proj")),
    *layer(_LAYERS, _THEIRS),
)
# In published files, where the head uses the word table (`legacy` false).
MLM = (
    *dense("mlm_head/transform", "lm_predictions.lm_head.dense"),
    *norm("mlm_head/norm", "lm_predictions.lm_head.LayerNorm"),
    Tensor("mlm_head/bias", "lm_predictions.lm_head.bias", padded=True),
)
# The same in files written by transformers (`legacy` true).
ALIASES = {
    "cls.predictions.transform.": "lm_predictions.lm_head.",
    "cls.predictions.bias": "lm_predictions.lm_head.bias",
}
TIED = {
    "cls.predictions.decoder.weight": "deberta.embeddings.word_embeddings.weight",
    "cls.predictions.decoder.bias": "cls.predictions.bias",
}
# In published files: the table of the enhanced decoder, and a head for replaced tokens without a class.
IGNORED = ("deberta.embeddings.position_embeddings.", "mask_predictions.")
SEQUENCE = (*dense("pooler/dense", "pooler.dense"), *dense("head/dense", "classifier"))


ARCHITECTURE: dict[str, Any] = {"type_vocab_size": 0, "pooler": "gelu"}
CONSTANTS = {"type_vocab_size": 0, "pooler_hidden_act": "gelu", "talking_head": False}
_WITHOUT = ("type_vocab_size",)


def to_hf_config(model: ModelConfig) -> dict[str, Any]:
    """Write the keys of both versions."""
    has_terms = model.position_embedding == "relative"
    return write_fields(model, without=_WITHOUT, task_dropout="") | CONSTANTS | {
        "relative_attention": has_terms,
        "position_biased_input": model.position_embedding == "learned",
        "max_relative_positions": model.relative_max or -1,
        "pos_att_type": sorted(_DISTANCE_TERMS) if has_terms else [],
        "legacy": False,
    }  # fmt: skip


def from_hf_config(config: HfConfig, defaults: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Read the fields of both versions; `defaults` as in `read_fields`."""
    config.require(CONSTANTS)
    defaults = {"layer_norm_eps": 1e-7} | dict(defaults or {})
    fields = read_fields(config, without=_WITHOUT, task_dropout="", defaults=defaults, causal=False) | ARCHITECTURE
    terms, biased = config.get("relative_attention", False), config.get("position_biased_input", True)
    if terms and biased:
        raise ValueError(
            f"{config.where}: relative_attention and position_biased_input are true; bertjax has relative positions or "
            "a table of positions, not both"
        )
    if not terms:
        return fields | {"position_embedding": "learned" if biased else "none"}
    kinds = config.get("pos_att_type") or []
    kinds = [kind.strip() for kind in kinds.lower().split("|")] if isinstance(kinds, str) else kinds
    if not isinstance(kinds, list) or sorted(map(str, kinds)) != sorted(_DISTANCE_TERMS):
        both = " and ".join(sorted(_DISTANCE_TERMS))
        raise ValueError(f"{config.where}: pos_att_type is {kinds!r}; bertjax has both {both}")
    farthest = config.integer("max_relative_positions", -1, least=-1)
    if farthest < 1:
        farthest = config.integer("max_position_embeddings", 512, least=-1)
    return fields | {"position_embedding": "relative", "relative_max": farthest}


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    return from_hf_config(config) | {"attention_bias": "query_value"}


_BASE = ModelConfig(
    family="deberta",
    vocab_size=50_265,
    layer_norm_eps=1e-7,
    position_embedding="relative",
    relative_max=512,
    attention_bias="query_value",
    **ARCHITECTURE,
)
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}

DEBERTA = Family(
    name="deberta",
    title="DeBERTa",
    presets={"base": _BASE, "large": replace(_BASE, **_LARGE)},
    heads=("mlm_head",),
    template=TEMPLATE,
    huggingface=HuggingFace(
        model_type="deberta",
        prefix="deberta.",
        beginning="Deberta",
        encoder=_ENCODER,
        pooler=(),
        pretraining=Class("DebertaForMaskedLM", (*_ENCODER, *MLM), outputs={"mlm_head": "logits"}),
        own_heads={"ForSequenceClassification": SEQUENCE},
        lacking=("ForMultipleChoice",),
        tied=TIED,
        aliases=ALIASES,
        ignored=IGNORED,
        to_hf_config=to_hf_config,
        from_hf_config=_from_hf_config,
    ),
)
