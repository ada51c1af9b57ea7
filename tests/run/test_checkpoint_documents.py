"""Checkpoint metadata that was changed or copied to another step is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from bertjax.config import Config, ModelConfig, to_dict
from bertjax.run.checkpoint_metadata import DamagedCheckpoint, make_document, parse_document

PLACE = Path("runs/tiny/checkpoints/7")


def document(**changes: Any) -> dict[str, Any]:
    content = {
        "step": 7,
        "config": to_dict(Config(name="tiny", model=ModelConfig(vocab_size=100))),
        "tokenizer_fingerprint": "a",
        "data_fingerprint": "b",
        "arrays": {"params/a": {"shape": [2], "dtype": "float32", "digest": "0" * 32}},
    }
    return make_document(content | changes)


def parse(content: dict[str, Any], place: Path = PLACE) -> dict[str, Any]:
    return parse_document(json.dumps(content).encode(), place, "metadata/metadata")


@pytest.mark.parametrize("change", [{"data_fingerprint": "c"}, {"arrays": {}}, {"more": 1}])
def test_changed_metadata_is_damage(change: dict[str, Any]) -> None:
    changed = document()
    changed["content"] |= change
    with pytest.raises(DamagedCheckpoint, match=r"metadata/metadata differs from its SHA-256"):
        parse(changed)


def test_metadata_of_another_step_is_damage() -> None:
    with pytest.raises(DamagedCheckpoint, match=r"checkpoints/8 holds step 7; it was renamed or copied there"):
        parse(document(), PLACE.with_name("8"))
