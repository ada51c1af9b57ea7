"""Read and write transformers' `config.json`: checked access to keys, and the keys that most families share."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from bertjax.config import ModelConfig

Number = TypeVar("Number", int, float)

MOST_LAYERS = 1 << 10  # of an imported model, since tensor names are built for every layer
LARGEST = 1 << 20  # value of any number
# "gelu_new" is the tanh form under the name that every version of transformers supports.
_WRITTEN_ACTIVATIONS = {"gelu": "gelu", "gelu_tanh": "gelu_new", "relu": "relu", "silu": "silu"}
ACTIVATIONS = {
    "gelu": "gelu",
    "gelu_new": "gelu_tanh",
    "gelu_pytorch_tanh": "gelu_tanh",
    "relu": "relu",
    "silu": "silu",
    "swish": "silu",
}
# Fields of ModelConfig with a key of the same name in most families.
_SIZES = ("hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size")
_SIZES += ("max_position_embeddings", "type_vocab_size")
_SHARES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "initializer_range", "layer_norm_eps")


@dataclass(frozen=True)
class HfConfig:
    """The values of a `config.json`. Reading a key raises ValueError, naming file and key, for a value out of range."""

    values: Mapping[str, Any]
    where: str | Path  # the file, for messages
    activations: Mapping[str, str] = field(default_factory=lambda: ACTIVATIONS)  # transformers' name -> ours

    def get(self, key: str, default: Any = None) -> Any:
        """The value of a key, unchecked."""
        return self.values.get(key, default)

    def number(self, key: str, default: Number) -> Number:
        """A number of at least 0; an integer if the default is one."""
        value = self.values.get(key, default)
        if type(value) not in ((int,) if type(default) is int else (int, float)) or not 0 <= value <= LARGEST:
            raise ValueError(f"{self.where}: {key} is {value!r}, which is not a sensible number")
        return type(default)(value)

    def size(self, key: str, default: int) -> int:
        """An integer of at least 1."""
        value = self.number(key, default)
        if value < 1:
            raise ValueError(f"{self.where}: {key} is {value}; every size must be at least 1")
        return value

    def integer(self, key: str, default: int, least: int, most: int = LARGEST) -> int:
        """An integer from `least` to `most`."""
        value = self.values.get(key, default)
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"{self.where}: {key} is {value!r}, which is not a sensible number")
        return value

    def require(self, constants: Mapping[str, Any]) -> None:
        """Raise ValueError for a key with another value than in `constants`."""
        for key, value in constants.items():
            if self.values.get(key, value) != value:
                raise ValueError(
                    f"{self.where}: {key} is {self.values[key]!r}; bertjax imports only models with {key} {value!r}"
                )


def write_fields(
    model: ModelConfig,
    *,
    keys: Mapping[str, str] | None = None,
    without: tuple[str, ...] = (),
    task_dropout: str = "classifier_dropout",
) -> dict[str, Any]:
    """Write the keys of BertConfig. `keys` maps fields to other keys; `without` leaves fields out.

    `task_dropout` is the key of `classifier_dropout_prob`, which is left out at its default; "" if the family has no
    such key.
    """
    keys = keys or {}
    fields = [name for name in ("vocab_size", *_SIZES, *_SHARES) if name not in without]
    written = {keys.get(name, name): getattr(model, name) for name in fields}
    written[keys.get("hidden_act", "hidden_act")] = _WRITTEN_ACTIVATIONS[model.hidden_act]
    if task_dropout and model.classifier_dropout_prob >= 0:
        written[task_dropout] = model.task_dropout_prob
    return written | ({"is_decoder": True} if model.causal else {})


def read_fields(
    config: HfConfig,
    *,
    keys: Mapping[str, str] | None = None,
    without: tuple[str, ...] = (),
    task_dropout: str = "classifier_dropout",
    defaults: Mapping[str, Any] | None = None,
    activations: tuple[str, ...] = ("gelu", "gelu_tanh", "relu", "silu"),
    causal: bool = True,
) -> dict[str, Any]:
    """Read the fields of ModelConfig that `write_fields` writes. Raises ValueError for an unsupported value.

    `defaults` are transformers' defaults by field, where they differ from BertConfig's. `activations` and
    `causal` tell which activations the family's classes support, and whether they support causal attention.
    """
    keys, default = keys or {}, vars(ModelConfig()) | dict(defaults or {})
    fields: dict[str, Any] = {}
    for name in _SIZES:
        if name not in without:
            fields[name] = config.size(keys.get(name, name), default[name])
    for name in _SHARES:
        if name not in without:
            fields[name] = config.number(keys.get(name, name), default[name])
    if fields["num_hidden_layers"] > MOST_LAYERS:
        layers = fields["num_hidden_layers"]
        raise ValueError(f"{config.where}: num_hidden_layers is {layers:,}; at most {MOST_LAYERS:,} are read")
    if type(config.get("vocab_size")) is int:
        fields["vocab_size"] = config.get("vocab_size")
    fields["classifier_dropout_prob"] = -1.0  # means hidden_dropout_prob
    if config.get(task_dropout, default.get(task_dropout)) is not None:
        share = config.number(task_dropout, default.get(task_dropout, 0.0))
        if share != fields["hidden_dropout_prob"]:
            fields["classifier_dropout_prob"] = share
    key = keys.get("hidden_act", "hidden_act")
    activation = config.get(key, default["hidden_act"])
    if not isinstance(activation, str) or config.activations.get(activation) not in activations:
        names = [name for name, ours in config.activations.items() if ours in activations]
        raise ValueError(f"{config.where}: {key} is {activation!r}; for this family bertjax has {', '.join(names)}")
    fields["hidden_act"] = config.activations[activation]
    fields["causal"] = bool(config.get("is_decoder", False))
    if fields["causal"] and not causal:
        raise ValueError(
            f"{config.where}: is_decoder is {config.get('is_decoder')!r}; {config.get('model_type')} has no such mode"
        )
    return fields
