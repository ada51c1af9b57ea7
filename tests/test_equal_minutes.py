"""`bench_pretraining.py`: the table of measured runs, which the gate reads."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parent / "benchmarks"


@pytest.fixture
def bench() -> ModuleType:
    return importlib.import_module("bench_pretraining")


def write_measured_run(folder: Path, name: str, minutes: float, losses: list[float]) -> None:
    """Write a run whose loss was measured at each of its steps."""
    for kind, content in (
        ("plans", {"setting": "", "minutes": minutes, "steps": len(losses)}),
        ("measured", {str(step): loss for step, loss in enumerate(losses, 1)}),
    ):
        (folder / kind).mkdir(exist_ok=True)
        (folder / kind / f"{name}.json").write_text(json.dumps(content))


TIMES = {
    "transformers": {"setting": "transformers-grouped-bfloat16-compiled", "seconds": 0.2, "tokens": 3000.0},
    "bertjax": {"setting": "bertjax-packed-float32", "seconds": 0.1, "tokens": 4000.0},
    "modernbert": {"setting": "modernbert-documents-float32", "seconds": 0.15, "tokens": 4000.0},
}


def write_fine_tuned_run(folder: Path, name: str, figures: dict[str, float]) -> None:
    (run := folder / "tasks" / name).mkdir(parents=True)
    (run / "results.json").write_text(json.dumps({"result": {"figures": figures}}))


def call(bench: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_pretraining.py", *words])
    bench.main()


def table(bench: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "times.json").write_text(json.dumps(TIMES))
    call(bench, monkeypatch, "table", "--folder", str(folder))


def test_gate_reads_minutes_to_transformers_last_loss(bench, tmp_path, monkeypatch, capsys) -> None:
    for seed in (0, 1):
        write_measured_run(tmp_path, f"transformers_{seed}", 30.0, [7.0, 6.0, 5.0])
        write_measured_run(
            tmp_path, f"bertjax_{seed}", 30.0, [5.5, 4.5, 4.0]
        )  # 5.0 is halfway between 10 and 20 minutes
        write_measured_run(
            tmp_path, f"modernbert_third_{seed}", 10.0, [6.0, 4.0, 3.5]
        )  # halfway between 3.33 and 6.67 minutes
    write_measured_run(tmp_path, "bertjax_third_0", 10.0, [5.6, 5.2, 4.8])  # halfway between 6.67 and 10 minutes
    for run, accuracy in (("transformers_0", 0.7), ("transformers_1", 0.8), ("bertjax_1", 0.75), ("bertjax_0", 0.74)):
        write_fine_tuned_run(tmp_path, f"{run}_sst2", {"eval/accuracy": accuracy})
    table(bench, tmp_path, monkeypatch)
    output = capsys.readouterr().out
    reached = "bertjax has transformers' last loss of 5.0000 after"
    assert f"the same recipe, seed 0: {reached} 8.33 of 30.00 minutes" in output
    assert f"the same recipe, seed 1: {reached} 15.00 of 30.00 minutes" in output
    assert f"modern_mini, seed 0: {reached} 5.00 of 30.00 minutes" in output
    entries = tomllib.loads((BENCHMARKS / "figures.toml").read_text())["figure"]
    matches = [re.search(one["reads"], output) for one in entries if "bench_pretraining.py" in one["command"][0]]
    minutes = [("16.67", "0.00"), ("38.89", "11.11"), ("2.67",)]
    assert [one and one.groups() for one in matches] == [*minutes, None, ("-0.50", "4.50", "75.00"), None, None]


def test_unreached_loss_gives_no_figure(bench, tmp_path, monkeypatch, capsys) -> None:
    for seed in (0, 1):
        write_measured_run(tmp_path, f"transformers_{seed}", 30.0, [7.0, 6.0, 5.0])
        write_measured_run(tmp_path, f"bertjax_{seed}", 30.0, [7.0, 6.0, 4.5 + (seed == 0)])
    table(bench, tmp_path, monkeypatch)
    output = capsys.readouterr().out
    assert "the same recipe: bertjax does not reach transformers' last loss with every seed" in output
    assert "to that loss," not in output


def test_recorded_runs_are_not_repeated(bench, tmp_path, monkeypatch, capsys) -> None:
    folder, other, record = tmp_path / "folder", tmp_path / "other", tmp_path / "kept.json"
    folder.mkdir()
    other.mkdir()
    losses = [8.0 - step / 6 for step in range(bench.POINTS)]
    record.write_text(json.dumps({"terms": {"minutes": 30.0, "tiny": False}, "speeds": TIMES, "runs": {}}))
    for name in ("transformers_0", "bertjax_0"):
        write_measured_run(folder, name, 30.0, losses)
        (folder / "exports" / name / str(bench.POINTS)).mkdir(parents=True)
        write_fine_tuned_run(folder, f"{name}_sst2", {"eval/accuracy": 0.7})
    monkeypatch.setattr(bench, "task_files", lambda *_: [])
    monkeypatch.setattr(bench, "fine_tune", lambda *_: None)
    words = ("--tasks", "sst2", "--seeds", "1", "--record", str(record), "--folder")
    call(bench, monkeypatch, "tasks", *words, str(folder))
    assert json.loads(record.read_text())["runs"]["bertjax_0"]["sst2"] == 0.7
    started = []
    monkeypatch.setattr(bench, "subprocess", SimpleNamespace(run=lambda words, **_: started.append(words)))
    call(bench, monkeypatch, "train", *words, str(other))
    assert [words[3] for words in started] == ["bertjax_third", "modernbert_third"] and str(record) in started[0]
    capsys.readouterr()
    call(bench, monkeypatch, "table", *words, str(other))
    output = capsys.readouterr().out
    assert "after 30.00 of 30.00 minutes" in output and "bertjax          sst2 accuracy 70.00" in output
    assert "ratio bertjax / transformers in real tokens/s: 2.67" in output


def test_side_timed_later_keeps_its_ratio_to_transformers(bench, tmp_path, monkeypatch) -> None:
    record, known = tmp_path / "kept.json", {side: TIMES[side] for side in ("transformers", "bertjax")}
    record.write_text(json.dumps({"terms": {"minutes": 30.0, "tiny": False}, "speeds": known, "runs": {}}))
    heats = []

    def speeds(_: object, settings: list[Any], heat: str) -> dict[Any, Any]:
        heats.append((heat, [str(setting) for setting in settings]))
        seconds = {"transformers": 0.4, "bertjax": 0.2}  # half as fast as when they were chosen
        modern_seconds = {"float32": 0.9, "bfloat16": 0.8}
        return {one: bench.Speed(seconds.get(one.side, modern_seconds[one.dtype]), 4000.0) for one in settings}

    monkeypatch.setattr(bench, "_speeds", speeds)
    monkeypatch.setattr(bench.bertjax, "prepare", lambda _: None)
    call(bench, monkeypatch, "times", "--folder", str(tmp_path), "--data", str(tmp_path), "--record", str(record))
    fastest = "modernbert-documents-bfloat16"
    assert heats == [
        ("modernbert_documents", ["modernbert-documents-float32", fastest]),
        ("final", [TIMES["transformers"]["setting"], TIMES["bertjax"]["setting"], fastest]),
    ]
    content = json.loads(record.read_text())
    assert content["speeds"] == known | {"modernbert": {"setting": fastest, "seconds": 0.4, "tokens": 4000.0}}
    assert [*content["timed"]] == ["modernbert"] and content["timed"]["modernbert"]["commit"]
