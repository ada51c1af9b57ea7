"""UltraBERT (dmis-lab 2026): EuroBERT's layers with ModernBERT's alternating windows, up to 32,768 tokens.

Two layers with a window of 128 tokens to either side come before each global layer. The MLM head has two dense layers
without biases and an untied matrix. The widths, the numbers of parameters (150M and 380M), the windows and the rotary
bases are published. The numbers of layers, the inner widths and the vocabulary are not verified: they are chosen to
match the numbers of parameters.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.eurobert import ARCHITECTURE, ENCODER, read_block, rope_theta, write_block
from bertjax.families.family import Class, Family, HuggingFace, Tensor
from bertjax.families.hf_config import HfConfig
from bertjax.input.layout import Template

_MLM = (
    Tensor("mlm_head/first/kernel", "head.linear1.weight", 1),
    Tensor("mlm_head/second/kernel", "head.linear2.weight", 1),
    Tensor("mlm_head/decoder", "head.decoder.weight", padded=True),
)
_FULL, _LOCAL = "full_attention", "sliding_attention"
_THETA = {_FULL: 2_560_000.0, _LOCAL: 10_000.0}
_EVERY, _FIRST, _WINDOW = 3, 2, 128
_HEADS: dict[str, Any] = {"pooler": "cls"}


def _types(layers: int, every: int, first: int) -> list[str]:
    return [_FULL if every and number % every == first else _LOCAL for number in range(layers)]


def _to_hf_config(model: ModelConfig) -> dict[str, Any]:
    thetas = {_FULL: model.rope_theta, _LOCAL: model.rope_theta_local or model.rope_theta}
    every = model.global_every if model.window else 1
    return write_block(model) | {
        "sliding_window": model.window,
        "layer_types": _types(model.num_hidden_layers, every, model.first_global),
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()},
        "prediction_head_size": model.mlm_inner_size,
        "classifier_pooling": "cls",
        "classifier_dropout": model.task_dropout_prob,
    }


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    """Read the fields; windows and rotary bases may be lists with a value for each layer, as in the first files."""
    defaults = {"hidden_size": 4096, "num_hidden_layers": 32, "num_attention_heads": 32, "intermediate_size": 11008}
    fields = read_block(
        config, defaults | {"max_position_embeddings": 32768, "layer_norm_eps": 1e-6, "classifier_dropout": 0.0}
    )
    pooling, classes = config.get("classifier_pooling", "cls"), config.get("architectures") or [""]
    if pooling != "cls" and str(classes[0]).endswith("ForSequenceClassification"):
        raise ValueError(f"{config.where}: classifier_pooling is {pooling!r}; bertjax has heads that read only [CLS]")
    layers, window = fields["num_hidden_layers"], config.number("sliding_window", _WINDOW)
    types, windows = config.get("layer_types"), config.get("attention_windows")
    if windows is not None:
        if not isinstance(windows, list) or not all(type(width) is int and width >= 0 for width in windows):
            raise ValueError(f"{config.where}: attention_windows is {windows!r}, which is not a list of numbers")
        window = next((width for width in windows if width), window)
        types = [_LOCAL if width else _FULL for width in windows] if types is None else types
    every, first = _period(config, layers, _types(layers, _EVERY, _FIRST) if types is None else types)
    parameters = config.get("rope_parameters")
    if parameters is None and isinstance(thetas := config.get("rope_theta"), list):
        names = types or _types(layers, _EVERY, _FIRST)
        parameters = {kind: {"rope_theta": theta} for kind, theta in zip(names, thetas, strict=False)}
    parameters = parameters or {}
    if not isinstance(parameters, dict):
        raise ValueError(
            f"{config.where}: rope_parameters is {parameters!r}, which is not an object with an entry per kind of layer"
        )
    bases = {kind: rope_theta(config, parameters.get(kind) or {}, theta) for kind, theta in _THETA.items()}
    fields |= _HEADS | {"rope_theta": bases[_FULL], "mlm_inner_size": config.size("prediction_head_size", 768)}
    if every == 1:
        return fields
    return fields | {
        "window": window,
        "global_every": every,
        "first_global": first,
        "rope_theta_local": bases[_LOCAL],
    }


def _period(config: HfConfig, layers: int, types: Any) -> tuple[int, int]:
    """(period of the global layers, number of the first one). Raises ValueError for layers without a period."""
    if isinstance(types, list) and _FULL in types:
        first = types.index(_FULL)
        second = types.index(_FULL, first + 1) if _FULL in types[first + 1 :] else max(layers, _EVERY)
        # A model with fewer layers than two periods has the published period.
        for every in (second - first, _EVERY, layers):
            if first < every and types == _types(layers, every, first):
                return every, first
    elif types == [_LOCAL] * layers:
        return (_EVERY, _FIRST) if layers <= _FIRST else (0, 0)
    raise ValueError(
        f"{config.where}: layer_types is {types}; bertjax has {_FULL} in every n-th layer, from one of the first n on"
    )


_BASE = ModelConfig(
    family="ultrabert",
    vocab_size=32_000,
    num_hidden_layers=21,
    intermediate_size=1024,
    hidden_act="silu",
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=32_768,
    layer_norm_eps=1e-6,
    rope_theta=_THETA[_FULL],
    rope_theta_local=_THETA[_LOCAL],
    window=_WINDOW,
    global_every=_EVERY,
    first_global=_FIRST,
    mlm_inner_size=768,
    **ARCHITECTURE,
    **_HEADS,
)

ULTRABERT = Family(
    name="ultrabert",
    title="UltraBERT",
    presets={
        "base": _BASE,
        "large": replace(_BASE, hidden_size=1024, num_hidden_layers=27, num_attention_heads=16, intermediate_size=2432),
    },
    heads=("mlm_head",),
    template=Template(separators=1, token_types=False),
    huggingface=HuggingFace(
        model_type="ultrabert",
        prefix="model.",
        beginning="Ultrabert",
        encoder=ENCODER,
        pooler=(),
        pretraining=Class("UltrabertForMaskedLM", (*ENCODER, *_MLM), outputs={"mlm_head": "logits"}),
        lacking=("ForMultipleChoice",),
        to_hf_config=_to_hf_config,
        from_hf_config=_from_hf_config,
        token_ids={"pad_token_id": "pad", "bos_token_id": "cls", "eos_token_id": "sep"},
    ),
)
