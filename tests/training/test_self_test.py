"""The recipe `self_test` trains along its reference curves, which other versions and machines made."""

import sys

import pytest
from tiny_runs import finish

from bertjax.config import load_recipe
from bertjax.training.reference_curve import FOLDER, read_reference

SEED = 100


@pytest.mark.parametrize(
    "variant", ["bert", *(pytest.param(name, marks=pytest.mark.long) for name in ("electra", "modernbert"))]
)
def test_the_self_test_is_on_track(variant, tmp_path, monkeypatch):
    """With a seed that the reference does not have, the held-out loss is within its spread at every evaluation."""
    # A thousand steps: what XLA is told for tests, to compile little, would double their time.
    monkeypatch.setenv("XLA_FLAGS", "--xla_force_host_platform_device_count=1")
    recipe = f"self_test:{variant}"
    reference = read_reference(FOLDER / f"{load_recipe(recipe).name}.json")
    assert SEED not in reference.seeds and len(reference.seeds) >= 5
    log = tmp_path / "log"
    words = [sys.executable, "-m", "bertjax", "pretrain", recipe, "--training.seed", str(SEED)]
    finish([*words, "--run-dir", str(tmp_path / "run"), "--data.root", str(tmp_path / "data")], log, timeout=1200)
    said = log.read_text()
    assert said.count("(on track)") == len(reference.curves["eval/loss"].steps), said
