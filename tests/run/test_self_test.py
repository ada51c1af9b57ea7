"""The recipe `self_test` trains along its reference curves, which other versions and machines made."""

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
def programs_are_quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """A thousand steps: what XLA is told for tests, to compile little, would double their time."""
    monkeypatch.setenv("XLA_FLAGS", xla_flags(devices=1, quick=False))


def reference_of(recipe: str) -> Reference:
    """The curves of a recipe, of several seeds, `SEED` not among them."""
    reference = read_reference(FOLDER / f"{load_recipe(recipe).name}.json")
    assert SEED not in reference.seeds and len(reference.seeds) >= 5
    return reference


def words_of(recipe: str, folder: Path, *more: str) -> list[str]:
    """The command of a run of `SEED` in a folder."""
    words = [sys.executable, "-m", "bertjax", "pretrain", recipe, "--training.seed", str(SEED), *more]
    return [*words, "--run-dir", str(folder / "run"), "--data.root", str(folder / "data")]


@pytest.mark.parametrize("variant", ["bert", "electra", "modernbert"])
def test_the_self_test_is_on_track(variant: str, tmp_path: Path) -> None:
    """The held-out loss is within the spread of the reference at every evaluation."""
    recipe, log = f"self_test:{variant}", tmp_path / "log"
    reference = reference_of(recipe)
    finish(words_of(recipe, tmp_path), log, timeout=1200)
    said = log.read_text()
    assert said.count("(on track)") == len(reference.curves["eval/loss"].steps), said


def test_the_self_test_in_bfloat16_is_on_the_track_of_float32(tmp_path: Path) -> None:
    log, reference = tmp_path / "log", reference_of("self_test:bert")
    finish(words_of("self_test:bert", tmp_path, "--execution.dtype", "bfloat16"), log, timeout=1200)
    assert "reference" not in log.read_text()  # a run in another precision is of another kind
    compared = reference.remark([("loss", "loss", "{:.3f}")])
    evaluations = [one for one in read_metrics(tmp_path / "run" / METRICS_FILE) if "eval/loss" in one]
    remarks = [compared(one["step"], one) for one in evaluations]
    assert len(remarks) == len(reference.curves["eval/loss"].steps)
    assert all("(on track)" in remark for remark in remarks), remarks
