"""Longformer (Beltagy et al. 2020, arXiv 2004.05150): RoBERTa with windowed attention and global tokens.

A global token attends to all tokens, and all attend to it. In pretraining no token is global, as in the authors' code,
so the projections of global tokens get no gradient. They start as copies of the ordinary ones if a run starts from a
RoBERTa (--init-from). In transformers the window may differ between layers; here all layers share one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.family import Family, dense
from bertjax.families.hf_config import HfConfig, read_fields, write_fields
from bertjax.families.roberta import ACTIVATIONS, TEMPLATE, huggingface, sizes

_LAYER = "encoder.layer.{}.attention.self"
_GLOBAL = tuple(
    tensor
    for role in ("query", "key", "value")
    for tensor in dense(f"encoder/layers/attention/{role}_global", f"longformer.{_LAYER}.{role}_global")
)
_WINDOW = 512  # LongformerConfig's default, both sides together
_ARCHITECTURE: dict[str, Any] = {
    "pooler": "none",
    "global_every": 0,
    "global_tokens": "marked",
    "global_projections": True,
}


def _to_hf_config(model: ModelConfig) -> dict[str, Any]:
    window = {"attention_window": [2 * model.window] * model.num_hidden_layers}
    return write_fields(model, task_dropout="") | window  # its heads use hidden_dropout_prob


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    fields = read_fields(config, task_dropout="", activations=ACTIVATIONS, causal=False)
    width = config.get("attention_window", _WINDOW)
    windows: list[Any] = width if isinstance(width, list) and width else [width]
    if any(type(size) is not int or size < 2 or size % 2 or size != windows[0] for size in windows):
        raise ValueError(f"{config.where}: attention_window is {width!r}; bertjax has one even window for all layers")
    return fields | _ARCHITECTURE | {"window": windows[0] // 2}


def _sizes() -> dict[str, ModelConfig]:
    changes = {"max_position_embeddings": 4096, "window": _WINDOW // 2} | _ARCHITECTURE
    return {name: replace(preset, **changes) for name, preset in sizes("longformer", 50_265).items()}


_ROBERTA = huggingface("longformer", "Longformer", prefix="longformer.", more=_GLOBAL)

LONGFORMER = Family(
    name="longformer",
    title="Longformer",
    presets=_sizes(),
    heads=("mlm_head",),
    template=TEMPLATE,
    huggingface=replace(
        _ROBERTA,
        to_hf_config=_to_hf_config,
        from_hf_config=_from_hf_config,
        token_ids={**_ROBERTA.token_ids, "sep_token_id": "sep"},
    ),
)
