"""Convert between `config.json` and ModelConfig by the rules of the model's family."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.config import ModelConfig
from bertjax.families.family import Family, HuggingFace
from bertjax.families.hf_config import ACTIVATIONS, LARGEST, HfConfig
from bertjax.families.registry import FAMILIES, get_family

# Our own key: several families may share a `model_type`, and it names any but the first of them.
FAMILY = "bertjax_family"


def to_config_json(model: ModelConfig, special: Mapping[str, int]) -> dict[str, Any]:
    """Write `config.json` for a model without a task, with the unpadded vocabulary size; `special` has ids by role."""
    hf = get_family(model.family).transformers
    ids = {key: special[role] for key, role in hf.token_ids.items() if role in special}
    rows = hf.rows_before_positions(_pad_id(ids, hf))
    return {
        "model_type": hf.model_type,
        **({FAMILY: model.family} if _families_with_type(hf.model_type)[0] != model.family else {}),
        **hf.to_hf_config(model),
        "max_position_embeddings": model.max_position_embeddings + rows,
        **ids,
        "tie_word_embeddings": model.mlm_tied,
        "dtype": "float32",
    }


def from_config_json(
    values: Mapping[str, Any], file: str | Path, activations: Mapping[str, str] = ACTIVATIONS
) -> ModelConfig:
    """Read ModelConfig from a `config.json` or `bert_config.json`; absent keys take transformers' defaults.

    `activations` maps their activation names to ours. Raises ValueError for a network that bertjax lacks.
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
    """Find the family by `model_type`; folders from before 2020 lack the key and hold BERTs."""
    types = dict.fromkeys(family.huggingface.model_type for family in FAMILIES.values() if family.huggingface)
    model_type = values.get("model_type", next(iter(types)))
    if not isinstance(model_type, str) or model_type not in types:
        raise ValueError(f"{file}: model_type is {model_type!r}; bertjax imports {', '.join(types)}")
    families = _families_with_type(model_type)
    classes = values.get("architectures")
    classes = {*map(str, classes)} if isinstance(classes, list) else set()
    matches = [name for name in families if _classes(FAMILIES[name]) & classes]
    family = values.get(FAMILY, (matches or families)[0])
    if family not in families:
        raise ValueError(f"{file}: {FAMILY} is {family!r}; for {model_type} bertjax has {', '.join(families)}")
    return FAMILIES[family]


def _classes(family: Family) -> set[str]:
    """Names of its pretraining classes in transformers."""
    hf = family.transformers
    return {their_class.name for their_class in (hf.pretraining, *hf.partial) if not their_class.bare}


def _families_with_type(model_type: str) -> list[str]:
    """Names of the families with this `model_type` in transformers."""
    mappings = {name: family.huggingface for name, family in FAMILIES.items() if family.huggingface}
    return [name for name, hf in mappings.items() if hf.model_type == model_type]


def read_pad_id(values: Mapping[str, Any], file: str | Path) -> int:
    """Read the padding token's id from `config.json`. Raises ValueError if it is not a token's id."""
    return _pad_id(values, _family(values, file).transformers, file)


def _pad_id(values: Mapping[str, Any], hf: HuggingFace, file: str | Path = "config.json") -> int:
    value = values.get("pad_token_id")
    value = hf.pad_token_id if value is None else value
    if type(value) is not int or not 0 <= value <= LARGEST:
        raise ValueError(f"{file}: pad_token_id is {value!r}, which is not a token's id")
    if hf.fixed_pad_id and value != hf.pad_token_id:
        raise ValueError(
            f"{file}: pad_token_id is {value}; transformers' {hf.beginning} always pads with {hf.pad_token_id}; "
            "use a vocabulary whose padding token has that id, such as one trained with byte_bpe"
        )
    return value
