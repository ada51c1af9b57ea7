"""What finished runs in the same folder let a run expect, and when they say nothing."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path

import jax
import jax.numpy as jnp
import pytest

from bertjax.config import Config, ModelConfig, StageConfig, TrainingConfig, to_dict
from bertjax.parallel.mesh import make_mesh
from bertjax.run.checkpoint import DIRECTORY, Checkpoints
from bertjax.run.checkpoint_metadata import run_metadata
from bertjax.run.earlier_runs import expected_loss
from bertjax.run.telemetry import METRICS_FILE


def metadata(config: Config, text: str = "this text") -> dict:
    mesh = make_mesh(config.mesh, jax.devices()[:1])
    return run_metadata(to_dict(config), tokenizer_fingerprint="ab", data_fingerprint=text, mesh=mesh)


def config(steps: int, **model: int) -> Config:
    return Config(model=ModelConfig(**model), training=TrainingConfig(steps=steps))


def write_run(
    directory: Path, steps: int, loss: float, *, text: str = "this text", at: int | None = None, **model: int
) -> None:
    """A run of `steps` steps that has come to `at`, by default to its end."""
    at = steps if at is None else at
    with Checkpoints(directory / DIRECTORY, keep_last=1) as saved:
        saved.save(at, {"params": {"kernel": jnp.ones(3)}}, metadata(config(steps, **model), text))
    record = {"step": at, "time": "", "eval/mlm_loss": loss}
    (directory / METRICS_FILE).write_text(json.dumps(record) + "\n")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    """Two finished runs, and some that say nothing."""
    write_run(tmp_path / "short", 1_000, 6.0)
    write_run(tmp_path / "long", 4_000, 5.0)
    write_run(tmp_path / "stopped", 4_000, 9.0, at=100)
    write_run(tmp_path / "other_text", 2_000, 1.0, text="other")
    write_run(tmp_path / "other_model", 2_000, 2.0, hidden_size=384, num_attention_heads=6)
    (tmp_path / "empty").mkdir()
    (tmp_path / "note.txt").write_text("no run")
    return tmp_path


def test_runs_of_two_lengths_give_a_line_over_the_logarithm(runs: Path) -> None:
    found = expected_loss(metadata(config(2_000)), 2_000, runs / "new")
    assert found is not None and found.loss == pytest.approx(5.5)
    assert str(found) == "about 5.50, from 2 runs of this model on this text with 1,000 to 4,000 steps"
    beyond = expected_loss(metadata(config(9)), 8_000, runs / "new")
    assert beyond is not None and beyond.loss == pytest.approx(5.0 - math.log(2) / math.log(4))


@pytest.mark.parametrize("steps", [10, 249, 16_001, 1_000_000])
def test_nothing_is_said_of_what_is_far_from_all_runs(runs: Path, steps: int) -> None:
    assert expected_loss(metadata(config(steps)), steps, runs / "new") is None


def test_one_run_predicts_its_own_length_alone(runs: Path, tmp_path: Path) -> None:
    like = metadata(config(2_000, hidden_size=384, num_attention_heads=6))
    found = expected_loss(like, 2_100, runs / "new")
    assert found is not None and found.loss == 2.0 and "from a run of this model" in str(found)
    assert expected_loss(like, 3_000, runs / "new") is None


def test_a_run_does_not_expect_anything_of_itself(runs: Path) -> None:
    found = expected_loss(metadata(config(4_000)), 4_000, runs / "long")
    assert found is None  # the other one is too short


def test_a_key_of_stages_that_an_earlier_run_lacks_is_one_that_is_not_set(tmp_path: Path) -> None:
    staged = replace(config(900), stages=(StageConfig(start=500, sequence_length=512),))
    saved = metadata(staged)
    del saved["config"]["stages"][0]["rows"], saved["config"]["stages"][0]["pairs_per_row"]
    with Checkpoints(tmp_path / "older" / DIRECTORY, keep_last=1) as checkpoints:
        checkpoints.save(900, {"params": {"k": jnp.ones(3)}}, saved)
    record = {"step": 900, "time": "", "eval/mlm_loss": 4.0}
    (tmp_path / "older" / METRICS_FILE).write_text(json.dumps(record) + "\n")
    found = expected_loss(metadata(staged), 900, tmp_path / "new")
    assert found is not None and found.loss == pytest.approx(4.0)
    other = replace(staged, stages=(replace(staged.stages[0], rows="documents"),))
    assert expected_loss(metadata(other), 900, tmp_path / "new") is None


def test_a_moved_end_counts(tmp_path: Path) -> None:
    write_run(tmp_path / "moved", 900, 3.0)
    training = replace(config(1_500).training, replans=("400:900",))
    with Checkpoints(tmp_path / "other" / DIRECTORY, keep_last=1) as saved:
        saved.save(900, {"params": {"k": jnp.ones(3)}}, metadata(replace(config(1), training=training)))
    record = {"step": 900, "time": "", "eval/mlm_loss": 5.0}
    (tmp_path / "other" / METRICS_FILE).write_text(json.dumps(record) + "\n")
    found = expected_loss(metadata(config(900)), 900, tmp_path / "new")
    assert found is not None and found.loss == pytest.approx(4.0)
