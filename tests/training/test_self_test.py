"""The recipe `self_test` trains along its reference curves, which other versions and machines made."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from tiny_runs import finish

from bertjax.config import load_recipe
from bertjax.training.reference_curve import FOLDER, Reference, read_reference
from bertjax.training.telemetry import METRICS_FILE, read_metrics

SEED = 100


def trained(recipe: str, folder: Path, monkeypatch: pytest.MonkeyPatch, *more: str) -> tuple[Reference, Path, str]:
    """The reference of a recipe, and the directory and output of a run of a seed that the reference does not have."""
    # A thousand steps: what XLA is told for tests, to compile little, would double their time.
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=1")
    reference = read_reference(FOLDER / f"{load_recipe(recipe).name}.json")
    assert SEED not in reference.seeds and len(reference.seeds) >= 5
    log, run_dir = folder / "log", folder / "run"
    words = [sys.executable, "-m", "bertjax", "pretrain", recipe, "--training.seed", str(SEED), *more]
    finish([*words, "--run-dir", str(run_dir), "--data.root", str(folder / "data")], log, timeout=1200)
    return reference, run_dir, log.read_text()


@pytest.mark.parametrize(
    "variant", ["bert", *(pytest.param(name, marks=pytest.mark.long) for name in ("electra", "modernbert"))]
)
def test_the_self_test_is_on_track(variant: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The held-out loss is within the spread of the reference at every evaluation."""
    reference, _, said = trained(f"self_test:{variant}", tmp_path, monkeypatch)
    assert said.count("(on track)") == len(reference.curves["eval/loss"].steps), said


@pytest.mark.long
def test_the_self_test_in_bfloat16_is_on_the_track_of_float32(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reference, run_dir, said = trained("self_test:bert", tmp_path, monkeypatch, "--execution.dtype", "bfloat16")
    assert "reference" not in said  # a run in another precision is of another kind
    compared = reference.remark([("loss", "loss", "{:.3f}")])
    evaluations = [one for one in read_metrics(run_dir / METRICS_FILE) if "eval/loss" in one]
    remarks = [compared(one["step"], one) for one in evaluations]
    assert len(remarks) == len(reference.curves["eval/loss"].steps)
    assert all("(on track)" in remark for remark in remarks), remarks
