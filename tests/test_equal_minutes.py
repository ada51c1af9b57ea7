"""`bench_pretraining.py`: the table of measured runs, and that the gate can read it."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

BENCHMARKS = Path(__file__).parent / "benchmarks"


@pytest.fixture
def bench() -> ModuleType:
    return importlib.import_module("bench_pretraining")


def measured(folder: Path, name: str, minutes: float, losses: list[float]) -> None:
    """A run whose loss was measured at each of its steps."""
    for kind, content in (
        ("plans", {"setting": "", "minutes": minutes, "steps": len(losses)}),
        ("measured", {str(step): loss for step, loss in enumerate(losses, 1)}),
    ):
        (folder / kind).mkdir(exist_ok=True)
        (folder / kind / f"{name}.json").write_text(json.dumps(content))


def table(bench: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    times = {
        "transformers": {"setting": "transformers-grouped-bfloat16-compiled", "seconds": 0.2, "tokens": 3000.0},
        "bertjax": {"setting": "bertjax-packed-float32", "seconds": 0.1, "tokens": 4000.0},
    }
    (folder / "times.json").write_text(json.dumps(times))
    monkeypatch.setattr(sys, "argv", ["bench_pretraining.py", "table", "--folder", str(folder)])
    bench.main()


def test_the_gate_reads_the_minutes_to_the_others_last_loss(bench, tmp_path, monkeypatch, capsys) -> None:
    for seed in (0, 1):
        measured(tmp_path, f"transformers_{seed}", 30.0, [7.0, 6.0, 5.0])
        measured(tmp_path, f"bertjax_{seed}", 30.0, [5.5, 4.5, 4.0])  # at 5.0 half way from 10 to 20 minutes
    measured(tmp_path, "bertjax_third_0", 10.0, [5.6, 5.2, 4.8])  # half way from 6.67 to 10 minutes
    table(bench, tmp_path, monkeypatch)
    said = capsys.readouterr().out
    assert "seed 0: bertjax has transformers' last loss of 5.0000 after 8.33 of 30.00 minutes" in said
    assert "seed 1: bertjax has transformers' last loss of 5.0000 after 15.00 of 30.00 minutes" in said
    entries = tomllib.loads((BENCHMARKS / "figures.toml").read_text())["figure"]
    found = [re.search(one["reads"], said) for one in entries if "bench_pretraining.py" in one["command"][0]]
    assert [one and one.groups() for one in found] == [("0.39", "0.11"), ("2.67",)]


def test_a_loss_that_is_never_reached_gives_no_figure(bench, tmp_path, monkeypatch, capsys) -> None:
    for seed in (0, 1):
        measured(tmp_path, f"transformers_{seed}", 30.0, [7.0, 6.0, 5.0])
        measured(tmp_path, f"bertjax_{seed}", 30.0, [7.0, 6.0, 4.5 + (seed == 0)])
    table(bench, tmp_path, monkeypatch)
    said = capsys.readouterr().out
    assert "bertjax does not reach transformers' last loss with every seed" in said and "to that loss:" not in said


def test_a_curve_that_begins_low_enough_counts_from_its_first_point(bench) -> None:
    curve = [bench.Point(2.5, 5.0), bench.Point(5.0, 4.0)]
    assert bench._minutes_to(5.2, curve) == 2.5
