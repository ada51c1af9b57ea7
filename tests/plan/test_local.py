"""Memory and time of a plan for this machine's CPU against a run."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from several_processes import child_environment

from bertjax.config import ExecutionConfig
from bertjax.config.recipes import load_recipe
from bertjax.plan.answer import Answer
from bertjax.plan.estimates import Plan, make_plan
from bertjax.plan.figures import describe_mesh, headline, step_time
from bertjax.plan.roofline import Bound
from bertjax.plan.topologies import LOCAL, open_topology
from bertjax.runtime.host_memory import machine_memory
from bertjax.training.flops import Peak

STEPS = "3"  # enough for the C library to have kept two sets of temporaries, if it may
_TIME = r"at least ([\d.]+) ms by the plan and took ([\d.]+): ([\d.]+) times"
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


@pytest.mark.long
@pytest.mark.skipif(not Path("/proc/self/clear_refs").exists(), reason="needs Linux's /proc to measure a peak")
def test_planned_memory_is_the_growth_of_the_peak(tmp_path: Path) -> None:
    recipe = tmp_path / "measured.py"
    recipe.write_text(RECIPE)
    environment = os.environ | child_environment(devices=1)
    script = Path(__file__).parent / "run_beside_plan.py"
    ended = subprocess.run(
        [sys.executable, str(script), str(recipe), STEPS], capture_output=True, text=True, env=environment
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    planned, grown = (int(word) for word in re.search(r"(\d+) (\d+) differ", ended.stdout).groups())
    assert planned > 200e6, "too small to measure"
    assert abs(planned / grown - 1) < 0.15, f"planned {planned / 1e6:.0f} MB, the peak grew by {grown / 1e6:.0f} MB"
    least, median, times = (float(word) for word in re.search(_TIME, ended.stdout).groups())
    assert least > 0 and abs(median / least - times) < 0.05 * times


SLOW = 1e5  # FLOP/s: next to nothing in a second


@pytest.fixture(scope="module")
def slow() -> tuple[Plan, list[str]]:
    """A small recipe on two slow devices, and the dtypes whose speed was measured."""
    measured = []

    def peak(device: jax.Device, dtype: str) -> Peak:
        measured.append(dtype)
        return Peak(SLOW, "of this test")

    config = replace(load_recipe("self_test"), execution=ExecutionConfig(dtype="bfloat16"))
    topology = replace(open_topology(LOCAL), devices=tuple(jax.devices()[:2]), slices=(0, 0))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertjax.training.flops.device_peak", peak)
        return make_plan(config, topology, price=3.0, say=lambda _: None), measured


def test_least_step_time_is_arithmetic_at_measured_speed(slow: tuple[Plan, list[str]]) -> None:
    """On a CPU, communication and memory traffic do not count; hours, cost and MFU follow from arithmetic."""
    plan, measured = slow
    (stage,) = plan.stages
    arithmetic = max(stage.flops, stage.counted_flops)
    assert measured == ["bfloat16"] and arithmetic > 1e8
    assert stage.bound == Bound(arithmetic / 2 / SLOW, 0.0, 0.0, 0.0)
    assert stage.collectives  # which take no time here
    assert stage.mfu_bound == stage.flops / arithmetic
    assert plan.hours == (1_000 * arithmetic / (2 * SLOW) / 3600,) * 2
    fast = replace(
        plan, topology=replace(plan.topology, chip=replace(plan.topology.chip, measured=Peak(2e9, "of this test")))
    )
    assert "2 devices, each of 0.002 TFLOP/s (of this test); memory and links are left out" in describe_mesh(fast)
    assert f"fits local: {len(jax.devices())} × cpu and takes at least" in headline(plan)


def test_cpu_plan_is_compared_with_the_machines_memory(
    slow: tuple[Plan, list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    plan, _ = slow
    assert plan.stages[0].capacity == machine_memory() / jax.local_device_count()
    monkeypatch.setattr("bertjax.runtime.host_memory.machine_memory", lambda: 8 << 20)
    capacity = open_topology(LOCAL).capacity
    assert capacity == (8 << 20) / jax.local_device_count()
    tight = replace(plan, stages=(replace(plan.stages[0], capacity=capacity),))
    assert re.search(r"does not fit local: .* needs [\d.]+ GiB a device, which has 0\.0", headline(tight))


def test_plan_of_many_years_gets_a_warning(slow: tuple[Plan, list[str]]) -> None:
    plan, _ = slow
    text = Answer(plan, None, None, "").text
    assert re.search(r"Warning: training\.steps=1,000 takes [\d.,]+ (years|d [\d]+ h); lower training\.steps", text)
    assert re.search(r"takes at least [\d,]+ hours \([\d.,]+ (years|d)", headline(plan))
    assert re.search(r"[\d,.]+ s to [\d,.]+ s ", text), "steps of ten seconds or more are shown in seconds"


@pytest.mark.parametrize(
    ("seconds", "text"), [(0.0935, "93.5 ms"), (9.999, "9,999 ms"), (10, "10.0 s"), (3148.03, "3,148.0 s")]
)
def test_step_time_is_in_milliseconds_below_ten_seconds(seconds: float, text: str) -> None:
    assert step_time(seconds) == text
