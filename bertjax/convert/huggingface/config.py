"""`config.json` and ModelConfig, in both directions, by what the model's family says of transformers."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.family import Family, HuggingFace
from bertjax.families.hf_config import ACTIVATIONS, LARGEST, HfConfig
from bertjax.families.registry import FAMILIES, get_family

# A key of ours, for several families may be one `model_type`: it names those that are not its first.
FAMILY = "bertjax_family"


def to_config_json(model: ModelConfig, special: Mapping[str, int]) -> dict[str, Any]:
    """`config.json` of a model without a task, with the vocabulary's true size; `special` has ids by role."""
    hf = get_family(model.family).transformers
    ids = {key: special[role] for key, role in hf.token_ids.items() if role in special}
    rows = hf.rows_before_positions(_pad_id(ids, hf))
    return {
        "model_type": hf.model_type,
        **({FAMILY: model.family} if _of_type(hf.model_type)[0] != model.family else {}),
        **hf.to_hf_config(model),
        "max_position_embeddings": model.max_position_embeddings + rows,
        **ids,
        "tie_word_embeddings": model.mlm_tied,
        "dtype": "float32",
    }


def from_config_json(
    values: Mapping[str, Any], file: str | Path, activations: Mapping[str, str] = ACTIVATIONS
) -> ModelConfig:
    """Our ModelConfig from a `config.json` or `bert_config.json`; absent keys have transformers' defaults.

    `activations` maps their names of the activation to ours. Raises ValueError for a network that bertjax lacks.
    """
    family = _family(values, file)
    hf, config = family.transformers, HfConfig(values, file, activations)
    config.require(hf.constants)
    fields = hf.from_hf_config(config)
    fields["max_position_embeddings"] -= hf.rows_before_positions(_pad_id(values, hf, file))
    if fields["max_position_embeddings"] < 1:
        raise ValueError(f"{file}: max_position_embeddings leaves no position; every size must be at least 1")
    if fields["hidden_size"] % fields["num_attention_heads"]:
        raise ValueError(f"{file}: hidden_size {fields['hidden_size']} is not divisible by its heads")
    return ModelConfig(**fields, family=family.name)


def _family(values: Mapping[str, Any], file: str | Path) -> Family:
    """The family by `model_type`, which folders of before 2020 lack: they hold BERTs."""
    types = dict.fromkeys(family.huggingface.model_type for family in FAMILIES.values() if family.huggingface)
    model_type = values.get("model_type", next(iter(types)))
    if not isinstance(model_type, str) or model_type not in types:
        raise ValueError(f"{file}: model_type is {model_type!r}; bertjax imports {', '.join(types)}")
    families = _of_type(model_type)
    classes = values.get("architectures")
    classes = {*map(str, classes)} if isinstance(classes, list) else set()
    of_class = [name for name in families if _classes(FAMILIES[name]) & classes]
    family = values.get(FAMILY, (of_class or families)[0])
    if family not in families:
        raise ValueError(f"{file}: {FAMILY} is {family!r}; of {model_type} bertjax has {', '.join(families)}")
    return FAMILIES[family]


def _classes(family: Family) -> set[str]:
    """The names of its classes of pretraining."""
    hf = family.transformers
    return {their_class.name for their_class in (hf.pretraining, *hf.partial) if not their_class.bare}


def _of_type(model_type: str) -> list[str]:
    """The names of the families that are this type in transformers."""
    mappings = {name: family.huggingface for name, family in FAMILIES.items() if family.huggingface}
    return [name for name, hf in mappings.items() if hf.model_type == model_type]


def read_pad_id(values: Mapping[str, Any], file: str | Path) -> int:
    """The padding token's id by `config.json`. Raises ValueError if it is none."""
    return _pad_id(values, _family(values, file).transformers, file)


def _pad_id(values: Mapping[str, Any], hf: HuggingFace, file: str | Path = "config.json") -> int:
    value = values.get("pad_token_id")
    value = hf.pad_token_id if value is None else value
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"{file}: pad_token_id is {value!r}, which is not a token's id")
    if hf.fixed_pad_id and value != hf.pad_token_id:
        raise ValueError(
            f"{file}: pad_token_id is {value}; transformers' {hf.beginning} takes {hf.pad_token_id} for padding "
            "whatever the file says; use a vocabulary with its padding token there, such as byte_bpe makes"
        )
    return value
