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


def may_change(default: Any = dataclasses.MISSING, *, factory: Any = dataclasses.MISSING) -> Any:
    """A field that may change on resume: paths, speed and memory, periods of reports and checkpoints."""
    return _field(Rule(allowed=True), default, factory)


def changes_with_notice(
    default: Any = dataclasses.MISSING, notice: str = "", *, factory: Any = dataclasses.MISSING
) -> Any:
    """A field that may change on resume, but changes the result; `notice` tells the user how."""
    return _field(Rule(allowed=True, notice=notice), default, factory)


def _field(rule: Rule, default: Any, factory: Any) -> Any:
    return field(default=default, default_factory=factory, metadata={_KEY: rule})


def resume_rules(config: type, prefix: str = "") -> dict[str, Rule]:
    """Map the dotted key of every field of a config class, nested ones included, to its rule."""
    rules: dict[str, Rule] = {}
    for entry in dataclasses.fields(config):
        if isinstance(entry.default_factory, type) and dataclasses.is_dataclass(entry.default_factory):
            rules |= resume_rules(entry.default_factory, f"{prefix}{entry.name}.")
        else:
            rules[prefix + entry.name] = entry.metadata.get(_KEY, IDENTITY)
    return rules
