"""The number of unrolled layers that `execution.scan_unroll=auto` stands for."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from bertjax.config import ExecutionConfig, load_recipe
from bertjax.training.unrolling import decide_unrolling


def device_mesh(platform: str, device_kind: str, count: int) -> SimpleNamespace:
    """A mesh of devices that this machine lacks."""
    return SimpleNamespace(devices=np.array([SimpleNamespace(platform=platform, device_kind=device_kind)] * count))


V5E = ("tpu", "TPU v5 lite")
CPU, GPU = device_mesh("cpu", "cpu", 1), device_mesh("cuda", "NVIDIA H100 80GB HBM3", 8)


@pytest.mark.parametrize(
    ("recipe", "mesh", "periods"),
    [
        ("modernbert", device_mesh(*V5E, 16), 22),  # 161 hours at the peak
        ("modernbert", device_mesh(*V5E, 256), 1),  # 10 hours
        ("bert_base", device_mesh(*V5E, 16), 1),  # 2 hours
        ("bert_base", device_mesh(*V5E, 1), 12),  # 34 hours
        ("modernbert", device_mesh("tpu", "TPU v99", 16), 1),  # its peak is unknown
        ("modernbert", GPU, 1),
        ("bert_base", CPU, 12),
    ],
)
def test_layers_are_unrolled_where_it_pays(recipe: str, mesh: SimpleNamespace, periods: int) -> None:
    config = load_recipe(recipe)
    assert config.execution.scan_unroll == "auto"
    decided = decide_unrolling(config, mesh, None)
    assert decided == replace(config, execution=replace(config.execution, scan_unroll=periods))


def test_float32_on_a_cpu_is_not_unrolled() -> None:
    config = load_recipe("bert_base")
    config = replace(config, execution=replace(config.execution, dtype="float32"))
    assert decide_unrolling(config, CPU, None).execution.scan_unroll == 1


def test_deeper_teacher_is_unrolled_too() -> None:
    config = load_recipe("bert_base")
    teacher = replace(config.model, num_hidden_layers=24)
    assert decide_unrolling(config, CPU, teacher).execution.scan_unroll == 24


def test_number_is_kept() -> None:
    config = load_recipe("modernbert")
    config = replace(config, execution=replace(config.execution, scan_unroll=3))
    assert decide_unrolling(config, device_mesh(*V5E, 16), None) == config


def test_undecided_execution_scans() -> None:
    assert ExecutionConfig().unrolled_periods == 1
    assert ExecutionConfig(scan_unroll=4).unrolled_periods == 4
