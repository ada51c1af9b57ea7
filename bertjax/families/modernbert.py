"""ModernBERT (Warner et al. 2024): rotary positions, windows in two of three layers, gated MLPs, pre-norm layers.

Dropout is applied as in BERT. transformers applies `mlp_dropout` before the second matrix instead, which matters only
in training with a rate above 0.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Annotated, Any, NotRequired, TypedDict

from bertjax.config import ModelConfig
from bertjax.families.family import Class, Family, HuggingFace, Tensor
from bertjax.families.hf_config import MOST_LAYERS, HfConfig, read_fields, write_fields
from bertjax.input.layout import Template
from bertjax.storage.json_documents import Between, Count, checked


def _layer(ours: str, number: str, first: int = 0) -> tuple[Tensor, ...]:
    """One layer without the norm before its attention, or the stack from layer `first` on."""
    theirs = f"model.layers.{number}"
    roles = ("query", "key", "value")
    return (
        *(
            Tensor(f"{ours}/attention/{role}/kernel", f"{theirs}.attn.Wqkv.weight", 1, first=first, part=(index, 3))
            for index, role in enumerate(roles)
        ),
        Tensor(f"{ours}/attention/output/kernel", f"{theirs}.attn.Wo.weight", 2, first=first),
        Tensor(f"{ours}/mlp_norm/scale", f"{theirs}.mlp_norm.weight", first=first),
        Tensor(f"{ours}/mlp/intermediate/kernel", f"{theirs}.mlp.Wi.weight", 1, first=first),
        Tensor(f"{ours}/mlp/output/kernel", f"{theirs}.mlp.Wo.weight", 1, first=first),
    )


_ENCODER = (
    Tensor("encoder/embeddings/word", "model.embeddings.tok_embeddings.weight", padded=True),
    Tensor("encoder/embeddings/norm/scale", "model.embeddings.norm.weight"),
    *_layer("encoder/first_layer", "0"),
    Tensor("encoder/layers/attention_norm/scale", "model.layers.{}.attn_norm.weight", first=1),
    *_layer("encoder/layers", "{}", first=1),
    Tensor("encoder/final_norm/scale", "model.final_norm.weight"),
)
_MLM = (
    Tensor("mlm_head/transform/kernel", "head.dense.weight", 1),
    Tensor("mlm_head/norm/scale", "head.norm.weight"),
    Tensor("mlm_head/bias", "decoder.bias", padded=True),
)
# Every task's classifier follows the same layers as the decoder in pretraining.
_TASK = (
    Tensor("pooler/dense/kernel", "head.dense.weight", 1),
    Tensor("pooler/norm/scale", "head.norm.weight"),
    Tensor("head/dense/kernel", "classifier.weight", 1),
    Tensor("head/dense/bias", "classifier.bias"),
)
_TASKS = (
    "ForSequenceClassification",
    "ForTokenClassification",
    "ForQuestionAnswering",
    "ForMultipleChoice",
)
_FULL, _LOCAL = "full_attention", "sliding_attention"
_THETA = {_FULL: 160_000.0, _LOCAL: 10_000.0}  # if the file has none
_EVERY, _WINDOW = 3, 128


class _Rope(TypedDict):
    full_attention: NotRequired[dict[str, Any] | None]
    sliding_attention: NotRequired[dict[str, Any] | None]


class _CheckedKeys(TypedDict):
    """Keys of a `config.json` whose types are checked."""

    classifier_pooling: NotRequired[str]
    architectures: NotRequired[list[str] | None]
    num_hidden_layers: NotRequired[Annotated[int, Between(1, MOST_LAYERS)]]
    global_attn_every_n_layers: NotRequired[Count | None]
    layer_types: NotRequired[list[str] | None]
    local_attention: NotRequired[Count]
    rope_parameters: NotRequired[_Rope | None]


_KEYS = {
    "hidden_act": "hidden_activation",
    "hidden_dropout_prob": "mlp_dropout",
    "attention_probs_dropout_prob": "attention_dropout",
    "layer_norm_eps": "norm_eps",
}
_WITHOUT = ("type_vocab_size",)
_CONSTANTS = {
    "norm_bias": False,
    "attention_bias": False,
    "mlp_bias": False,
    "decoder_bias": True,
    "classifier_bias": False,
    "classifier_activation": "gelu",
    "embedding_dropout": 0.0,
}
_ARCHITECTURE: dict[str, Any] = {
    "type_vocab_size": 0,
    "position_embedding": "rope",
    "norm_bias": False,
    "norm_place": "pre",
    "first_norm": False,
    "attention_bias": "none",
    "mlp_bias": "none",
    "mlp": "glu",
    "pooler": "gelu_norm",
    "initializer": "scaled",
}


def _to_hf_config(model: ModelConfig) -> dict[str, Any]:
    thetas = {_FULL: model.rope_theta, _LOCAL: model.rope_theta_local or model.rope_theta}
    return write_fields(model, keys=_KEYS, without=_WITHOUT, task_dropout="") | _CONSTANTS | {
        "local_attention": 2 * model.window,
        "global_attn_every_n_layers": model.global_every,
        "layer_types": _types(model.num_hidden_layers, model.global_every if model.window else 1),
        "rope_parameters": {kind: {"rope_type": "default", "rope_theta": theta} for kind, theta in thetas.items()},
        "classifier_pooling": "cls",
        "classifier_dropout": model.task_dropout_prob,
    }  # fmt: skip


def _types(layers: int, every: int) -> list[str]:
    return [_FULL if every and number % every == 0 else _LOCAL for number in range(layers)]


def _from_hf_config(config: HfConfig) -> dict[str, Any]:
    """Read the fields; the keys of windows and rotary bases may be transformers 5's or the earlier ones."""
    config.require(_CONSTANTS)
    defaults = {
        "num_hidden_layers": 22,
        "intermediate_size": 1152,
        "max_position_embeddings": 8192,
        "layer_norm_eps": 1e-5,
        "hidden_dropout_prob": 0.0,
        "attention_probs_dropout_prob": 0.0,
        "classifier_dropout": 0.0,
    }
    # Heads compute GELU and ignore `hidden_activation`.
    fields = read_fields(
        config, keys=_KEYS, without=_WITHOUT, defaults=defaults, activations=("gelu",), causal=False
    )  # fmt: skip
    checked(config.values, _CheckedKeys, str(config.where))
    pooling, classes = config.get("classifier_pooling", "cls"), config.get("architectures") or [""]
    if pooling != "cls" and str(classes[0]).endswith((_TASKS[0], _TASKS[3])):
        raise ValueError(
            f"{config.where}: classifier_pooling is {pooling!r}; bertjax has heads that read only [CLS]"
        )  # fmt: skip
    layers, every = fields["num_hidden_layers"], config.get("global_attn_every_n_layers")
    types = config.get("layer_types") or _types(layers, _EVERY if every is None else every)
    second = types.index(_FULL, 1) if _FULL in types[1:] else layers
    periods = (second, 0) if every is None else (every, second, 0)
    fitting = [period for period in periods if types == _types(layers, period)]
    if not fitting:
        raise ValueError(
            f"{config.where}: layer_types is {types}; bertjax has {_FULL} in every n-th layer from the first"
        )  # fmt: skip
    window = 0 if fitting[0] == 1 else config.get("local_attention", _WINDOW) // 2
    fields |= _ARCHITECTURE | {"window": window, "global_every": fitting[0]}
    fields["rope_theta"] = _theta(config, _FULL, "global_rope_theta")
    if window:
        fields["rope_theta_local"] = _theta(config, _LOCAL, "local_rope_theta")
    return fields


def _theta(config: HfConfig, kind: str, old: str) -> float:
    parameters = (config.get("rope_parameters") or {}).get(kind) or {}
    if parameters.get("rope_type", "default") != "default":
        raise ValueError(f"{config.where}: rope_type is {parameters['rope_type']!r}; bertjax has only 'default'")
    theta = parameters.get("rope_theta", config.get(old, _THETA[kind]))
    if isinstance(theta, bool) or not isinstance(theta, int | float) or theta <= 0:
        raise ValueError(f"{config.where}: rope_theta of {kind} is {theta!r}, which is not a number above 0")
    return float(theta)


_BASE = ModelConfig(
    family="modernbert",
    vocab_size=50_368,
    num_hidden_layers=22,
    intermediate_size=1152,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    max_position_embeddings=8192,
    layer_norm_eps=1e-5,
    rope_theta=_THETA[_FULL],
    rope_theta_local=_THETA[_LOCAL],
    window=_WINDOW // 2,
    global_every=_EVERY,
    **_ARCHITECTURE,
)

# Ettin (Weller et al. 2025): layers, hidden size, inner size; heads of 64 dims. Its 150M is the base size above.
_ETTIN = {
    "ettin-17m": (7, 256, 384),
    "ettin-32m": (10, 384, 576),
    "ettin-68m": (19, 512, 768),
    "ettin-150m": (22, 768, 1152),
    "ettin-400m": (28, 1024, 2624),
    "ettin-1b": (28, 1792, 3840),
}


def _ettin(layers: int, width: int, inner: int) -> ModelConfig:
    return replace(
        _BASE,
        num_hidden_layers=layers,
        hidden_size=width,
        num_attention_heads=width // 64,
        intermediate_size=inner,
        rope_theta_local=_THETA[_FULL],
    )


MODERNBERT = Family(
    name="modernbert",
    title="ModernBERT",
    presets={
        "base": _BASE,
        "large": replace(_BASE, hidden_size=1024, num_hidden_layers=28, num_attention_heads=16, intermediate_size=2624),
        # mmBERT (Marone et al. 2025): Gemma 2's vocabulary; both kinds of layers have the same rotary base
        "mmbert-base": replace(_BASE, vocab_size=256_000, rope_theta_local=_THETA[_FULL]),
        "mmbert-small": replace(
            _BASE,
            vocab_size=256_000,
            rope_theta_local=_THETA[_FULL],
            hidden_size=384,
            num_attention_heads=6,
        ),
    }
    | {name: _ettin(*sizes) for name, sizes in _ETTIN.items()},
    heads=("mlm_head",),
    template=Template(separators=1, token_types=False),
    huggingface=HuggingFace(
        model_type="modernbert",
        prefix="model.",
        beginning="ModernBert",
        encoder=_ENCODER,
        pooler=(),
        pretraining=Class("ModernBertForMaskedLM", (*_ENCODER, *_MLM), outputs={"mlm_head": "logits"}),
        own_heads=dict.fromkeys(_TASKS, _TASK),
        tied={"decoder.weight": "model.embeddings.tok_embeddings.weight"},
        to_hf_config=_to_hf_config,
        from_hf_config=_from_hf_config,
        pad_token_id=50_283,
        token_ids={
            "pad_token_id": "pad",
            "cls_token_id": "cls",
            "sep_token_id": "sep",
            "bos_token_id": "cls",
            "eos_token_id": "sep",
        },
    ),
)
