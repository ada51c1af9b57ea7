"""Longformer (Beltagy et al. 2020, arXiv 2004.05150): RoBERTa with windows, and tokens that see and are seen by all.

In pretraining no token is global, as in its authors' code: the projections of global tokens then get no gradient. They
start as copies of the ordinary ones where a run starts from a RoBERTa (--init-from). Windows may differ from layer to
layer in transformers; here all layers have one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.family import Family, Keys, dense
from bertjax.families.roberta import TEMPLATE, huggingface, sizes

_LAYER = "encoder.layer.{}.attention.self"
_GLOBAL = tuple(
    tensor
    for role in ("query", "key", "value")
    for tensor in dense(f"encoder/layers/attention/{role}_global", f"longformer.{_LAYER}.{role}_global")
)
_WINDOW = 512  # of LongformerConfig, on both sides together, where the file says nothing
_ARCHITECTURE = {"pooler": "none", "global_every": 0, "global_tokens": "marked", "global_projections": True}


def _written(model: ModelConfig) -> dict[str, Any]:
    return {"attention_window": [2 * model.window] * model.num_hidden_layers}


def _read(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """One window for all layers. Raises ValueError for several, and for one that has no middle."""
    width = values.get("attention_window", _WINDOW)
    windows = width if isinstance(width, list) and width else [width]
    if any(type(one) is not int or one < 2 or one % 2 or one != windows[0] for one in windows):
        raise ValueError(f"{where}: attention_window is {width!r}; bertjax has one even window for all layers")
    return {"window": windows[0] // 2}


def _sizes() -> dict[str, ModelConfig]:
    of_roberta = sizes("longformer", 50_265)
    more = {"max_position_embeddings": 4096, "window": _WINDOW // 2} | _ARCHITECTURE
    return {name: replace(preset, **more) for name, preset in of_roberta.items()}


_OF_ROBERTA = huggingface("longformer", "Longformer", prefix="longformer.", more=_GLOBAL)

LONGFORMER = Family(
    name="longformer",
    title="Longformer",
    presets=_sizes(),
    heads=("mlm_head",),
    template=TEMPLATE,
    huggingface=replace(
        _OF_ROBERTA,
        implied=_ARCHITECTURE,
        task_dropout="",  # its heads have hidden_dropout_prob
        causal=False,
        token_ids={**_OF_ROBERTA.token_ids, "sep_token_id": "sep"},
        keys=Keys(write=_written, read=_read),
    ),
)
