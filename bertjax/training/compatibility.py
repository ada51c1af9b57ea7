"""Which checkpoint may continue under which config: the rules stand with the fields (bertjax/config/resume.py).

The two dicts compared are metadata as `checkpoint.run_metadata` makes it: the config, and the fingerprints of the
tokenizer and of the data. What the data are is decided by the fingerprints, never by where they lie.
"""

from __future__ import annotations

from typing import Any

from bertjax.config import FinetuneConfig, differences, from_dict
from bertjax.config.resume import IDENTITY, rules_of

FINGERPRINTS = ("tokenizer_fingerprint", "data_fingerprint")

RULES = rules_of(FinetuneConfig)


def check_compatible(saved: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """Whether a run described by `current` may go on from a checkpoint described by `saved`; returns lines to print.

    A key the checkpoint does not have is taken at its default. Raises ValueError with every key that differs and must
    not, and what to do.
    """
    changed = _changed(saved, current)
    notices = _only_microbatches(changed)
    rules = {key: RULES.get(key, IDENTITY) for key in changed}
    told = {key: pair for key, pair in changed.items() if not rules[key].allowed or rules[key].notice}
    if any(not rule.allowed for rule in rules.values()):
        raise ValueError(
            f"the checkpoint is of another run:\n{_listed(told)}\n"
            "set these keys back, or give the new run a directory of its own (--run-dir), "
            "with --init-from if it is to start from these weights"
        )
    return notices + [
        f"{key}: checkpoint has {was!r}, config has {now!r}; {rules[key].notice}" for key, (was, now) in told.items()
    ]


def _changed(saved: dict[str, Any], current: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Key -> (in the checkpoint, now), fingerprints first."""
    prints = {key: (saved[key], current[key]) for key in FINGERPRINTS if saved[key] != current[key]}
    return prints | differences(from_dict(current["config"]), from_dict(saved["config"]))


def _only_microbatches(changed: dict[str, tuple[Any, Any]]) -> list[str]:
    """Take `stages` out of what changed if nothing but their microbatches did; what to say of it then."""
    was, now = changed.get("stages", ([], []))
    without = [[{**stage, "grad_accum_steps": None} for stage in stages] for stages in (was, now)]
    if not was or without[0] != without[1]:
        return []
    del changed["stages"]
    return [f"stages: grad_accum_steps changed; {RULES['training.grad_accum_steps'].notice}"]


def _listed(changed: dict[str, tuple[Any, Any]]) -> str:
    return "\n".join(f"  {key}: checkpoint has {was!r}, config has {now!r}" for key, (was, now) in changed.items())
