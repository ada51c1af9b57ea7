"""The memory that a plan for this machine's CPU names is what a run's peak grows by."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from several_processes import surroundings

STEPS = "3"  # enough for the C library to have kept two sets of temporaries, if it may
RECIPE = """
from bertjax.config import Config, DataConfig, ModelConfig, OptimizerConfig, TrainingConfig

def config():
    return Config(
        model=ModelConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=2, intermediate_size=512),
        data=DataConfig(sequence_length=128, max_predictions=20),
        optimizer=OptimizerConfig(warmup_steps=10),
        training=TrainingConfig(steps=1000, global_batch_size=64),
    )
"""


@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc to measure a peak")
def test_the_peak_grows_by_what_the_plan_says(tmp_path: Path) -> None:
    recipe = tmp_path / "measured.py"
    recipe.write_text(RECIPE)
    environment = os.environ | surroundings(devices=1)
    script = Path(__file__).parent / "peak_memory.py"
    ended = subprocess.run(
        [sys.executable, str(script), str(recipe), STEPS], capture_output=True, text=True, env=environment, timeout=600
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    planned, grown = (int(word) for word in ended.stdout.split()[:2])
    assert planned > 200e6, "too small to measure"
    assert abs(planned / grown - 1) < 0.15, f"planned {planned / 1e6:.0f} MB, the peak grew by {grown / 1e6:.0f} MB"
