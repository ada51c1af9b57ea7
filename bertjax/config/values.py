"""Convert configs to plain JSON values and back, and compare two of them."""

from __future__ import annotations

import dataclasses
import difflib
import json
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from bertjax.config.run import Config, FinetuneConfig, StageConfig

C = TypeVar("C", bound=Config)
_SHOWN = 200  # characters of a value in a message


def to_dict(config: Any) -> dict[str, Any]:
    """Convert a dataclass to plain JSON values (tuples become lists)."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_dict(values: Any) -> Config:
    """The inverse of `to_dict` for a whole Config, or for a FinetuneConfig, which has a task.

    Raises ValueError if `values` is not a mapping, for an unknown key (with the nearest one), for a missing key that
    has no default, and for a value of the wrong type.
    """
    config = _build(FinetuneConfig if isinstance(values, dict) and "task" in values else Config, values, "")
    check_types(config)
    return config


def with_values(config: C, values: Mapping[str, Any]) -> C:
    """The config with other values, under dotted keys: `{"training.steps": 1000}`.

    Raises ValueError as `from_dict` does.
    """
    tree = to_dict(config)
    for key, value in values.items():
        *sections, name = key.split(".")
        inner = tree
        for section in sections:
            inner = inner.setdefault(section, {})
            if not isinstance(inner, dict):
                raise ValueError(f"config key {key} is unknown; {section} is a single value")
        inner[name] = _plain(value)
    return typing.cast("C", from_dict(tree))


def _plain(value: Any) -> Any:
    """Convert a field's value as `to_dict` does."""
    if isinstance(value, list | tuple):
        return [_plain(item) for item in value]
    return to_dict(value) if dataclasses.is_dataclass(value) else value


def check_types(config: Any, origin: str = "") -> None:
    """Raise ValueError for the first key whose value does not have its field's type; `origin` begins the message."""
    _check_fields(config, "", origin)


def _check_fields(config: Any, prefix: str, origin: str) -> None:
    kinds = typing.get_type_hints(type(config))
    for key in (field.name for field in dataclasses.fields(config)):
        value, name = getattr(config, key), f"{prefix}{key}"
        if not _fits(value, kinds[key]):
            if typing.get_origin(kinds[key]) is typing.Literal:
                choices = ", ".join(map(repr, typing.get_args(kinds[key])))
                raise ValueError(f"{origin}{name}={repr(value)[:_SHOWN]} is unknown; choose from {choices}")
            kind = getattr(kinds[key], "__name__", "") if isinstance(kinds[key], type) else str(kinds[key])
            raise ValueError(
                f"{origin}{name}={repr(value)[:_SHOWN]} is {type(value).__name__}; give {kind.replace('typing.', '')}"
            )
        parts = {f"{name}.{n}": part for n, part in enumerate(value)} if isinstance(value, tuple) else {name: value}
        for inner_name, inner in parts.items():
            if dataclasses.is_dataclass(inner):
                _check_fields(inner, f"{inner_name}.", origin)


def _fits(value: Any, kind: Any) -> bool:
    """Like isinstance for config fields: int counts as float, bool does not count as int."""
    origin, inner = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        return value in inner
    if origin is tuple:
        return isinstance(value, tuple) and all(_fits(part, inner[0]) for part in value)
    if inner:
        return any(_fits(value, option) for option in inner)
    if kind in (int, float):
        return isinstance(value, (int, float) if kind is float else int) and not isinstance(value, bool)
    return isinstance(value, kind)


def _build(cls: type, values: Any, prefix: str) -> Any:
    if not isinstance(values, dict):
        name = f"config key {prefix.rstrip('.')}" if prefix else "the config"
        raise ValueError(f"{name} is {type(values).__name__}; give a mapping of its keys")
    fields = {f.name: f for f in dataclasses.fields(cls)}
    arguments = {}
    for key, value in values.items():
        if key not in fields:
            near = difflib.get_close_matches(key[:_SHOWN], fields, 1)
            hint = f"did you mean {prefix}{near[0]}?" if near else f"there are {', '.join(fields)}"
            raise ValueError(f"config key {prefix}{key[:_SHOWN]} is unknown; {hint}")
        default = fields[key].default_factory
        if isinstance(default, type) and dataclasses.is_dataclass(default):
            value = _build(default, value, f"{prefix}{key}.")
        if key == "stages" and issubclass(cls, Config):
            if not isinstance(value, list):
                raise ValueError(f"config key {key} is {type(value).__name__}; give a list")
            value = [_build(StageConfig, stage, f"{prefix}{key}.{n}.") for n, stage in enumerate(value)]
        arguments[key] = tuple(value) if isinstance(value, list) else value
    required = [name for name, f in fields.items() if f.default is f.default_factory is dataclasses.MISSING]
    if missing := [name for name in required if name not in arguments]:
        raise ValueError(f"config key {prefix}{missing[0]} is missing and has no default; give it")
    return cls(**arguments)


def differences(config: Config, base: Config) -> dict[str, tuple[Any, Any]]:
    """Map each dotted key that differs to (value in base, value in config); None where the key is missing."""
    old, new = flatten(to_dict(base)), flatten(to_dict(config))
    return {key: (old.get(key), new.get(key)) for key in new | old if new.get(key) != old.get(key)}


def flatten(tree: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested dicts to one with dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(flatten(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return flat


def _stage_differences(old: list[dict[str, Any]], new: list[dict[str, Any]]) -> dict[str, tuple[Any, Any]]:
    """Compare stages key by key if both lists are equally long, else as whole lists."""
    if len(old) != len(new):
        return {"stages": (old, new)}
    both = enumerate(zip(old, new, strict=True))
    return {f"stages.{n}.{key}": (was[key], now[key]) for n, (was, now) in both for key in now if was[key] != now[key]}


def render(config: Config, recipe: Config) -> str:
    """List the settings that differ from the recipe's, as text."""
    changed = {}
    for key, (old, new) in differences(config, recipe).items():
        changed |= _stage_differences(old, new) if key == "stages" else {key: (old, new)}
    lines = [f"  {key}: {new!r}   (recipe: {old!r})" for key, (old, new) in changed.items()]
    return "\n".join(["Settings changed from the recipe:", *lines] if lines else ["Settings: recipe defaults"])


def render_all(config: Config) -> str:
    """List every key of a config with its value, as text."""
    return "\n".join(["config:", *(f"  {key}: {value!r}" for key, value in flatten(to_dict(config)).items())])
