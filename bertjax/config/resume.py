"""Resume rules as metadata on the config's fields: may a run continue from its checkpoint if this field has changed?

A field without metadata is part of the run's identity and must match, so that a new field cannot be forgotten.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any

_KEY = "resume"


@dataclass(frozen=True)
class Rule:
    """The effect of a changed value on a run that continues from its checkpoint."""

    allowed: bool
    notice: str = ""  # the effect of the change, for the user; empty: none


IDENTITY = Rule(allowed=False)


def may_change(default: Any) -> Any:
    """A field that may change on resume: paths, speed and memory, periods of reports and checkpoints."""
    return field(default=default, metadata={_KEY: Rule(allowed=True)})


def changes_with_notice(default: Any, notice: str) -> Any:
    """A field that may change on resume, but changes the result; `notice` tells the user how."""
    return field(default=default, metadata={_KEY: Rule(allowed=True, notice=notice)})


def resume_rules(config: type, prefix: str = "") -> dict[str, Rule]:
    """Map the dotted key of every field of a config class, nested ones included, to its rule."""
    rules: dict[str, Rule] = {}
    for entry in dataclasses.fields(config):
        if isinstance(entry.default_factory, type) and dataclasses.is_dataclass(entry.default_factory):
            rules |= resume_rules(entry.default_factory, f"{prefix}{entry.name}.")
        else:
            rules[prefix + entry.name] = entry.metadata.get(_KEY, IDENTITY)
    return rules
