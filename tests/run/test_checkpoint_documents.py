"""The metadata of a checkpoint: what was changed without its SHA-256, or copied to another step, is refused."""

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


def parsed(made: dict[str, Any], place: Path = PLACE) -> dict[str, Any]:
    return parse_document(json.dumps(made).encode(), place, "metadata/metadata")


@pytest.mark.parametrize("change", [{"data_fingerprint": "c"}, {"arrays": {}}, {"more": 1}])
def test_a_value_that_was_changed_is_damage(change: dict[str, Any]) -> None:
    made = document()
    made["content"] |= change
    with pytest.raises(DamagedCheckpoint, match=r"metadata/metadata differs from its SHA-256"):
        parsed(made)


def test_a_checkpoint_of_another_step_is_damage() -> None:
    with pytest.raises(DamagedCheckpoint, match=r"checkpoints/8 holds step 7; it was renamed or copied there"):
        parsed(document(), PLACE.with_name("8"))
