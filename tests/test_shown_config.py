"""How a command resolves a recipe with overrides, and which settings it shows."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pytest

from bertjax.__main__ import make_parser
from bertjax.cli.recipe import resolve_config
from bertjax.config import Config, flatten, to_dict

QUICKSTART = str(Path(__file__).resolve().parents[1] / "configs" / "quickstart.py")
BASE = str(Path(__file__).resolve().parents[1] / "configs" / "bert_base.py")


def configured(*words: str, recipe: str = QUICKSTART) -> tuple[Config, list[str]]:
    """The config of `bertjax pretrain RECIPE WORDS`, and the printed lines."""
    parsed, overrides = make_parser("pretrain").parse_known_args([recipe, *words])
    config, lines = resolve_config(
        argparse.Namespace(**vars(parsed) | {"verb": "pretrain", "overrides": overrides, "plugin": []})
    )
    return config, lines.splitlines()


def test_unchanged_recipe_is_one_line() -> None:
    assert configured()[1] == ["Settings: recipe defaults"]


def test_show_config_lists_every_setting() -> None:
    config, lines = configured("--show-config", "--optimizer.learning-rate", "3e-4")
    assert lines[:2] == ["Settings changed from the recipe:", "  optimizer.learning_rate: 0.0003   (recipe: 0.002)"]
    flat = flatten(to_dict(config))
    assert lines[2:] == ["config:", *(f"  {key}: {value!r}" for key, value in flat.items())]
    assert len(flat) > 80


def test_changed_keys_of_a_stage_are_listed() -> None:
    lines = configured("--stages.0.sequence-length", "256", recipe=BASE)[1]
    assert lines == ["Settings changed from the recipe:", "  stages.0.sequence_length: 256   (recipe: 512)"]


def test_steps_scale_dependent_keys_and_print_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config, lines = configured("--training.steps", "30")
    assert lines == [
        "Settings changed from the recipe:",
        "  training.steps: 30   (recipe: 2400)",
        "  scaled with it: optimizer.warmup_steps=2, training.log_every=1, training.eval_every=32, "
        "training.checkpoint_every=32",
    ]
    assert (config.optimizer.warmup_steps, config.training.log_every, config.training.eval_every) == (2, 1, 32)
    assert configured("--training.steps", "30") == (config, lines)
    assert configured("--training.steps", "2400")[1] == ["Settings: recipe defaults"]


def test_scaled_stages_are_listed_by_their_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    config, lines = configured("--training.steps", "10000", recipe=BASE)
    assert [stage.start for stage in config.stages] == [9_000]
    assert lines[-1].endswith(", stages from steps 9000")
    assert config.training.log_every == 100, "no line for every step of ten thousand"


def begin_run(folder: Path, *words: str, recipe: str = QUICKSTART) -> Config:
    """Write the config of a run and the folder of a checkpoint, as training does."""
    config, _ = configured("--run-dir", str(folder), *words, recipe=recipe)
    (folder / "checkpoints" / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(to_dict(config)))
    return config


def test_existing_run_continues_under_its_own_schedule(tmp_path: Path) -> None:
    run_dir = ("--run-dir", str(tmp_path))
    begun = begin_run(tmp_path, "--training.steps", "400")
    assert begun.optimizer.warmup_steps == 33
    again, _ = configured(*run_dir, "--training.steps", "400")
    assert again == begun, "the same command gives the same config"
    longer = begin_run(tmp_path, "--training.steps", "800")
    assert longer.training.steps == 800 and longer.optimizer == begun.optimizer
    again, _ = configured(*run_dir, "--training.steps", "800")
    assert again == longer, "a longer run that was stopped continues with the same command"
    whole, lines = configured(*run_dir)  # the recipe's own 2,400 steps
    assert whole.training.steps == 2_400 and whole.optimizer == begun.optimizer
    assert lines[-1] == "  kept from the existing run: optimizer.warmup_steps=33"
    config_again, _ = configured(*run_dir, "--training.steps", "800", "--optimizer.warmup-steps", "60")
    assert config_again.optimizer.warmup_steps == 60


def test_longer_run_keeps_the_starts_of_its_stages(tmp_path: Path) -> None:
    begin_run(tmp_path, "--training.steps", "10000", recipe=BASE)
    for _ in range(2):
        longer = begin_run(tmp_path, "--training.steps", "20000", recipe=BASE)
        assert [stage.start for stage in longer.stages] == [9_000]


def test_run_without_a_checkpoint_gets_a_new_schedule(tmp_path: Path) -> None:
    begin_run(tmp_path, "--training.steps", "400")
    (tmp_path / "checkpoints" / "1").rmdir()
    again, _ = configured("--run-dir", str(tmp_path), "--training.steps", "800")
    assert again.optimizer.warmup_steps == 67
