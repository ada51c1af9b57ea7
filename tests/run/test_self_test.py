"""The recipe `self_test` follows its reference curves, which were recorded with other versions and machines."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from fake_devices import xla_flags
from tiny_runs import finish

from bertjax.config import load_recipe
from bertjax.run.reference_curve import FOLDER, Reference, read_reference
from bertjax.run.telemetry import METRICS_FILE, read_metrics

pytestmark = pytest.mark.long
SEED = 100


@pytest.fixture(autouse=True)
def full_optimisation(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compile as for users: XLA's quick compilation for tests would double the time of a thousand steps."""
    monkeypatch.setenv("XLA_FLAGS", xla_flags(devices=1, quick=False))


def read_recipe_reference(recipe: str) -> Reference:
    """The reference curves of a recipe, from several seeds other than `SEED`."""
    reference = read_reference(FOLDER / f"{load_recipe(recipe).name}.json")
    assert SEED not in reference.seeds and len(reference.seeds) >= 5
    return reference


def make_command(recipe: str, folder: Path, *more: str) -> list[str]:
    """The command of a run with `SEED` in a folder."""
    words = [sys.executable, "-m", "bertjax", "pretrain", recipe, "--training.seed", str(SEED), *more]
    return [*words, "--run-dir", str(folder / "run"), "--data.root", str(folder / "data")]


@pytest.mark.parametrize("variant", ["bert", "electra", "modernbert"])
def test_self_test_is_on_track(variant: str, tmp_path: Path) -> None:
    """The held-out loss is within the spread of the reference at every evaluation."""
    recipe, log = f"self_test:{variant}", tmp_path / "log"
    reference = read_recipe_reference(recipe)
    finish(make_command(recipe, tmp_path), log, timeout=1200)
    output = log.read_text()
    assert output.count("(on track)") == len(reference.curves["eval/loss"].steps), output


def test_self_test_in_bfloat16_is_on_the_float32_track(tmp_path: Path) -> None:
    log, reference = tmp_path / "log", read_recipe_reference("self_test:bert")
    finish(make_command("self_test:bert", tmp_path, "--execution.dtype", "bfloat16"), log, timeout=1200)
    assert "reference" not in log.read_text()  # a run in another precision is not compared
    remark = reference.remark([("loss", "loss", "{:.3f}")])
    evaluations = [one for one in read_metrics(tmp_path / "run" / METRICS_FILE) if "eval/loss" in one]
    remarks = [remark(one["step"], one) for one in evaluations]
    assert len(remarks) == len(reference.curves["eval/loss"].steps)
    assert all("(on track)" in text for text in remarks), remarks
