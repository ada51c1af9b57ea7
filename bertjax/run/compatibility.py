"""Check whether a config may resume a checkpoint, by the rules in its fields' metadata (bertjax/config/resume.py).

Compares two dicts of `run_metadata`: the configs, and the fingerprints of tokenizer, data and teacher. Fingerprints
identify content, so files may move.
"""

from __future__ import annotations

from typing import Any

from bertjax.config import FinetuneConfig, differences, from_dict
from bertjax.config.resume import IDENTITY, resume_rules

# Fingerprint in the metadata -> its name in messages.
FINGERPRINTS = {
    "tokenizer_fingerprint": "vocabulary",
    "data_fingerprint": "data",
    "teacher_digest": "teacher",
}

RULES = resume_rules(FinetuneConfig)


def check_compatible(saved: dict[str, Any], current: dict[str, Any]) -> list[str]:
    """Check that the run described by `current` may resume the checkpoint described by `saved`; returns notices.

    A key that is missing in the checkpoint has its default. Raises ValueError naming every key that differs but must
    not, and what to do.
    """
    # Key -> (value in the checkpoint, value now).
    changed = differences(from_dict(current["config"]), from_dict(saved["config"]))
    notices = _take_microbatches(changed)
    rules = {key: RULES.get(key, IDENTITY) for key in changed}
    reported = {key: pair for key, pair in changed.items() if not rules[key].allowed or rules[key].notice}
    contents = [content for name, content in FINGERPRINTS.items() if saved.get(name, "") != current.get(name, "")]
    content_change = f"the {' and the '.join(contents)} changed since this run began" if contents else ""
    if any(not rule.allowed for rule in rules.values()):
        lines = [*_listed(reported), *([f"  {content_change}"] if content_change else [])]
        raise ValueError(
            "\n".join(["the checkpoint belongs to another run:", *lines])
            + "\nRestore these settings to continue it, or use --run-dir NEW for a new run, "
            "with --init-from to start it from these weights"
        )
    if content_change:
        raise ValueError(
            "\n".join(
                [
                    f"{content_change}. Use --run-dir NEW for a new run, with --init-from to start it from these "
                    "weights; or restore the files to continue this one",
                    *_listed(reported),
                ]
            )
        )
    return notices + [
        f"{key}: checkpoint has {was!r}, config has {now!r}; {rules[key].notice}"
        for key, (was, now) in reported.items()
    ]


def _take_microbatches(changed: dict[str, tuple[Any, Any]]) -> list[str]:
    """Remove `stages` from the changed keys if only microbatches changed in them; returns the notices about these."""
    was, now = changed.get("stages", ([], []))
    if not was or without_microbatches(was) != without_microbatches(now):
        return []
    del changed["stages"]
    return [f"stages: grad_accum_steps changed; {RULES['training.grad_accum_steps'].notice}"]


def without_microbatches(stages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Remove the microbatch counts from the stages of a config; they change only the last bits."""
    return [{**stage, "grad_accum_steps": None} for stage in stages]


def _listed(changed: dict[str, tuple[Any, Any]]) -> list[str]:
    return [f"  {key}: checkpoint has {was!r}, config has {now!r}" for key, (was, now) in changed.items()]
