"""A config as plain JSON values and back, and what two of them differ in."""

from __future__ import annotations

import dataclasses
import difflib
import json
from typing import Any

from bertjax.config.run import Config, StageConfig
from bertjax.config.task import FinetuneConfig


def to_dict(config: Any) -> dict[str, Any]:
    """A dataclass as plain JSON values (tuples become lists)."""
    return json.loads(json.dumps(dataclasses.asdict(config)))


def from_dict(values: dict[str, Any]) -> Config:
    """The inverse of `to_dict` for a whole Config, or a FinetuneConfig, which has a task.

    Raises ValueError for a key that it does not have, naming the nearest one.
    """
    return _build(FinetuneConfig if "task" in values else Config, values, "")


def _build(cls: type, values: dict[str, Any], where: str) -> Any:
    fields = {f.name: f for f in dataclasses.fields(cls)}
    made = {}
    for key, value in values.items():
        if key not in fields:
            near = difflib.get_close_matches(key, fields, 1)
            raise ValueError(f"config key {where}{key} is unknown; {f'did you mean {where}{near[0]}?' if near else ''}")
        default = fields[key].default_factory
        if isinstance(default, type) and dataclasses.is_dataclass(default):
            value = _build(default, value, f"{where}{key}.")
        if key == "stages" and issubclass(cls, Config):
            value = [_build(StageConfig, stage, f"{where}{key}.{n}.") for n, stage in enumerate(value)]
        made[key] = tuple(value) if isinstance(value, list) else value
    return cls(**made)


def differences(config: Config, base: Config) -> dict[str, tuple[Any, Any]]:
    """Dotted key -> (value in base, value in config), for every key that differs; None where one lacks it."""
    old, new = flatten(to_dict(base)), flatten(to_dict(config))
    return {key: (old.get(key), new.get(key)) for key in new | old if new.get(key) != old.get(key)}


def flatten(tree: dict[str, Any], where: str = "") -> dict[str, Any]:
    """Nested dicts as one of dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in tree.items():
        flat.update(flatten(value, f"{where}{key}.") if isinstance(value, dict) else {where + key: value})
    return flat


def render(config: Config, recipe: Config) -> str:
    """The resolved config as text, differences from the recipe first."""
    changed = differences(config, recipe)
    lines = [f"  {key}: {new!r}   (recipe: {old!r})" for key, (old, new) in changed.items()]
    head = ["changed from the recipe:", *lines] if lines else ["as the recipe has it"]
    return "\n".join(head + ["config:"] + [f"  {key}: {value!r}" for key, value in flatten(to_dict(config)).items()])
