"""`config.json` and ModelConfig, in both directions, by what the model's family says of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.family import MOST_LAYERS, Family, HuggingFace
from bertjax.families.registry import FAMILIES, family_of
from bertjax.model.encoder import embedding_width

# "gelu_new" is the tanh form under the name that every version of transformers knows.
_WRITTEN_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}
# Of the names of one function the first is not always the one that is written.
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
# Fields that have a key in all families, mostly of the same name, but where a family implies them.
CONFIG_FIELDS = (
    "vocab_size",
    "hidden_size",
    "num_hidden_layers",
    "num_attention_heads",
    "intermediate_size",
    "hidden_dropout_prob",
    "attention_probs_dropout_prob",
    "max_position_embeddings",
    "type_vocab_size",
    "initializer_range",
    "layer_norm_eps",
)
# Of BertConfig and its relatives; a family's other fields are in its file.
_CONSTANTS = {"position_embedding_type": "absolute", "add_cross_attention": False}
# A key of ours, for several families may be one `model_type`: it names those that are not its first.
FAMILY = "bertjax_family"
_WIDTH = "embedding_size"
_LARGEST = 1 << 20  # of any size in a config


def to_config_json(model: ModelConfig, special: Mapping[str, int]) -> dict[str, Any]:
    """`config.json` of a model without a task, with the vocabulary's true size; `special` has ids by role."""
    known = family_of(model.family).transformers
    switches = known.switches
    ids = {key: special[role] for key, role in known.token_ids.items() if role in special}
    rows = known.rows_before_positions(_pad_id(ids, known.defaults))
    has_task_dropout = bool(known.task_dropout) and model.classifier_dropout_prob >= 0
    return {
        "model_type": known.model_type,
        **({FAMILY: model.family} if _of_type(known.model_type)[0] != model.family else {}),
        **{key: getattr(model, name) for name, key in _keys(known).items()},
        **{key: value for name, key in known.fields.items() if (value := getattr(model, name)) or name not in switches},
        **{key: getattr(model, name) > 0 for name, key in switches.items()},
        **({} if known.projects else {_WIDTH: embedding_width(model)}),
        **({known.task_dropout: model.task_dropout_prob} if has_task_dropout else {}),
        **{key: getattr(model, name) for key, name in known.copies.items()},
        **known.constants,
        **(known.keys.write(model) if known.keys else {}),
        "max_position_embeddings": model.max_position_embeddings + rows,
        known.renamed.get("hidden_act", "hidden_act"): _WRITTEN_ACTIVATIONS[model.hidden_act],
        **({"is_decoder": True} if model.causal else {}),
        **ids,
        "tie_word_embeddings": True,
        "dtype": "float32",
    }


def from_config_json(
    values: Mapping[str, Any], where: str | Path, activations: Mapping[str, str] = ACTIVATIONS
) -> ModelConfig:
    """Our ModelConfig from a `config.json` or `bert_config.json`; absent keys have transformers' defaults.

    `activations` maps their names of the activation to ours. Raises ValueError for a network that bertjax lacks.
    """
    family = _family(values, where)
    known = family.transformers
    require_values(values, _CONSTANTS | dict(known.constants), where)
    keys = {name: key for name, key in _keys(known).items() if name != "vocab_size"} | dict(known.fields)
    found = {name: _number(values, key, _default(name, key, known.defaults), where) for name, key in keys.items()}
    if (layers := found["num_hidden_layers"]) > MOST_LAYERS:
        raise ValueError(f"{where}: num_hidden_layers is {layers:,}; at most {MOST_LAYERS:,} are read")
    found["max_position_embeddings"] -= known.rows_before_positions(_pad_id(values, known.defaults, where))
    if min(value for value in found.values() if type(value) is int) < 1:
        raise ValueError(f"{where}: every size must be at least 1")
    found["classifier_dropout_prob"] = _task_dropout(values, known, found, where)
    found |= {name: 0 for name, key in known.switches.items() if not values.get(key, False)}
    if not known.projects and found[_WIDTH] == found["hidden_size"]:
        found[_WIDTH] = 0
    if found["hidden_size"] % found["num_attention_heads"]:
        raise ValueError(f"{where}: hidden_size {found['hidden_size']} is not divisible by its heads")
    key = known.renamed.get("hidden_act", "hidden_act")
    activation = values.get(key, known.defaults.get(key, "gelu"))
    if not isinstance(activation, str) or activations.get(activation) not in known.activations:
        names = [name for name, ours in activations.items() if ours in known.activations]
        raise ValueError(f"{where}: {key} is {activation!r}; of this family bertjax has {', '.join(names)}")
    causal = values.get("is_decoder", False)
    if causal and not known.causal:
        raise ValueError(f"{where}: is_decoder is {causal!r}; {known.model_type} has no such mode")
    vocabulary = {"vocab_size": values["vocab_size"]} if type(values.get("vocab_size")) is int else {}
    together = known.keys.read(values, str(where)) if known.keys else {}
    return ModelConfig(
        **found, **vocabulary, **known.implied, **together, family=family.name, hidden_act=activations[activation],
        causal=bool(causal),
    )  # fmt: skip


def _task_dropout(values: Mapping[str, Any], known: HuggingFace, fields: Mapping[str, Any], where: str | Path) -> float:
    """`classifier_dropout_prob` of a `config.json` whose other fields are known."""
    value = values.get(known.task_dropout, known.defaults.get(known.task_dropout))
    if value is None:
        return -1.0
    share = _number({known.task_dropout: value}, known.task_dropout, 0.0, where)
    return -1.0 if share == fields.get("hidden_dropout_prob") else share


def require_values(values: Mapping[str, Any], constants: Mapping[str, Any], where: str | Path) -> None:
    """Raise ValueError for a key of a `config.json` that has another value than here."""
    for key, value in constants.items():
        if values.get(key, value) != value:
            raise ValueError(f"{where}: {key} is {values[key]!r}; bertjax imports models with {key} {value!r} alone")


def _keys(known: HuggingFace) -> dict[str, str]:
    """Fields that all families have -> the key of one of them, without those that it implies."""
    return {name: known.renamed.get(name, name) for name in CONFIG_FIELDS if name not in known.implied}


def _family(values: Mapping[str, Any], where: str | Path) -> Family:
    """The family by `model_type`, which folders of before 2020 lack: they hold BERTs."""
    types = dict.fromkeys(family.huggingface.model_type for family in FAMILIES.values() if family.huggingface)
    named = values.get("model_type", next(iter(types)))
    if not isinstance(named, str) or named not in types:
        raise ValueError(f"{where}: model_type is {named!r}; bertjax imports {', '.join(types)}")
    families = _of_type(named)
    classes = values.get("architectures")
    classes = {*map(str, classes)} if isinstance(classes, list) else set()
    of_class = [name for name in families if _classes(FAMILIES[name]) & classes]
    family = values.get(FAMILY, (of_class or families)[0])
    if family not in families:
        raise ValueError(f"{where}: {FAMILY} is {family!r}; of {named} bertjax has {', '.join(families)}")
    return FAMILIES[family]


def _classes(family: Family) -> set[str]:
    """The names of its classes of pretraining."""
    known = family.transformers
    return {made.name for made in (known.pretraining, *known.partial) if not made.bare}


def _of_type(model_type: str) -> list[str]:
    """The names of the families that are this type in transformers."""
    known = {name: family.huggingface for name, family in FAMILIES.items() if family.huggingface}
    return [name for name, of_theirs in known.items() if of_theirs.model_type == model_type]


def pad_id_of(values: Mapping[str, Any], where: str | Path) -> int:
    """The padding token's id by `config.json`. Raises ValueError if it is none."""
    return _pad_id(values, _family(values, where).transformers.defaults, where)


def _pad_id(values: Mapping[str, Any], defaults: Mapping[str, Any], where: str | Path = "config.json") -> int:
    found = values.get("pad_token_id")
    found = defaults.get("pad_token_id", 0) if found is None else found
    if type(found) is not int or not 0 <= found <= _LARGEST:
        raise ValueError(f"{where}: pad_token_id is {found!r}, which is not a token's id")
    return found


def _default(name: str, key: str, defaults: Mapping[str, Any]) -> Any:
    return defaults.get(key, getattr(ModelConfig(), name))


def _number(values: Mapping[str, Any], key: str, default: Any, where: str | Path) -> Any:
    value = values.get(key, default)
    whole = type(default) is int
    if type(value) not in ((int,) if whole else (int, float)) or not 0 <= value <= _LARGEST:
        raise ValueError(f"{where}: {key} is {value!r}, which is not a sensible number")
    return type(default)(value)
