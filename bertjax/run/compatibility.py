"""Check whether a config may resume a checkpoint, by the rules in its fields' metadata (bertjax/config/resume.py).

The two dicts that are compared are metadata as `run_metadata` makes it: the config, and the fingerprints of
the tokenizer, of the data and of the teacher's weights, which identify each, not its path.
"""

from __future__ import annotations

from typing import Any

from bertjax.config import FinetuneConfig, differences, from_dict
from bertjax.config.resume import IDENTITY, resume_rules

# Digests in the metadata -> what they identify.
FINGERPRINTS = {
    "tokenizer_fingerprint": "vocabulary",
    "data_fingerprint": "data",
    "teacher_digest": "teacher",
}

RULES = resume_rules(FinetuneConfig)


def check_compatible(saved: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """Check that the run described by `current` may resume the checkpoint of `saved`; returns lines to print.

    A key that the checkpoint lacks has its default. Raises ValueError naming every key that must not differ and does,
    and what to do.
    """
    changed = _changed(saved, current)
    notices = _only_microbatches(changed)
    rules = {key: RULES.get(key, IDENTITY) for key in changed}
    reported = {key: pair for key, pair in changed.items() if not rules[key].allowed or rules[key].notice}
    contents = [content for name, content in FINGERPRINTS.items() if saved.get(name, "") != current.get(name, "")]
    news = f"the {' and the '.join(contents)} changed since this run began" if contents else ""
    if any(not rule.allowed for rule in rules.values()):
        lines = [*_listed(reported), *([f"  {news}"] if news else [])]
        raise ValueError(
            "\n".join(["the checkpoint is of another run:", *lines])
            + "\nRestore these settings to continue it, or use --run-dir NEW for a new run, "
            "with --init-from to start it from these weights"
        )
    if news:
        raise ValueError(
            "\n".join(
                [
                    f"{news}. Use --run-dir NEW for a new run, with --init-from to start it from these weights; or "
                    "put the files back as they were to continue this one",
                    *_listed(reported),
                ]
            )
        )
    return notices + [
        f"{key}: checkpoint has {was!r}, config has {now!r}; {rules[key].notice}"
        for key, (was, now) in reported.items()
    ]


def _changed(saved: dict[str, Any], current: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """The values (in the checkpoint, now) of each key that differs."""
    return differences(from_dict(current["config"]), from_dict(saved["config"]))


def _only_microbatches(changed: dict[str, tuple[Any, Any]]) -> list[str]:
    """Remove `stages` from the changed keys if only its microbatches changed; returns the notices of that."""
    was, now = changed.get("stages", ([], []))
    if not was or without_microbatches(was) != without_microbatches(now):
        return []
    del changed["stages"]
    return [f"stages: grad_accum_steps changed; {RULES['training.grad_accum_steps'].notice}"]


def without_microbatches(stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The stages of a config without their numbers of microbatches, which change no more than the last bits."""
    return [{**stage, "grad_accum_steps": None} for stage in stages]


def _listed(changed: dict[str, tuple[Any, Any]]) -> list[str]:
    return [f"  {key}: checkpoint has {was!r}, config has {now!r}" for key, (was, now) in changed.items()]
