"""`bench_pretraining.py`: the table of measured runs, and that the gate can read it."""

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


def measured(folder: Path, name: str, minutes: float, losses: list[float]) -> None:
    """A run whose loss was measured at each of its steps."""
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


def fine_tuned(folder: Path, name: str, figures: dict[str, float]) -> None:
    (run := folder / "tasks" / name).mkdir(parents=True)
    (run / "results.json").write_text(json.dumps({"result": {"figures": figures}}))


def call(bench: ModuleType, monkeypatch: pytest.MonkeyPatch, *words: str) -> None:
    monkeypatch.setattr(sys, "argv", ["bench_pretraining.py", *words])
    bench.main()


def table(bench: ModuleType, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "times.json").write_text(json.dumps(TIMES))
    call(bench, monkeypatch, "table", "--folder", str(folder))


def test_the_gate_reads_the_minutes_to_the_others_last_loss(bench, tmp_path, monkeypatch, capsys) -> None:
    for seed in (0, 1):
        measured(tmp_path, f"transformers_{seed}", 30.0, [7.0, 6.0, 5.0])
        measured(tmp_path, f"bertjax_{seed}", 30.0, [5.5, 4.5, 4.0])  # at 5.0 half way from 10 to 20 minutes
        measured(tmp_path, f"modernbert_third_{seed}", 10.0, [6.0, 4.0, 3.5])  # half way from 3.33 to 6.67 minutes
    measured(tmp_path, "bertjax_third_0", 10.0, [5.6, 5.2, 4.8])  # half way from 6.67 to 10 minutes
    for run, accuracy in (("transformers_0", 0.7), ("transformers_1", 0.8), ("bertjax_1", 0.75), ("bertjax_0", 0.74)):
        fine_tuned(tmp_path, f"{run}_sst2", {"eval/accuracy": accuracy})
    table(bench, tmp_path, monkeypatch)
    said = capsys.readouterr().out
    reached = "bertjax has transformers' last loss of 5.0000 after"
    assert f"the same recipe, seed 0: {reached} 8.33 of 30.00 minutes" in said
    assert f"the same recipe, seed 1: {reached} 15.00 of 30.00 minutes" in said
    assert f"modern_mini, seed 0: {reached} 5.00 of 30.00 minutes" in said
    entries = tomllib.loads((BENCHMARKS / "figures.toml").read_text())["figure"]
    found = [re.search(one["reads"], said) for one in entries if "bench_pretraining.py" in one["command"][0]]
    minutes = [("16.67", "0.00"), ("38.89", "11.11"), ("2.67",)]
    assert [one and one.groups() for one in found] == [*minutes, None, ("-0.50", "4.50", "75.00"), None, None]


def test_a_loss_that_is_never_reached_gives_no_figure(bench, tmp_path, monkeypatch, capsys) -> None:
    for seed in (0, 1):
        measured(tmp_path, f"transformers_{seed}", 30.0, [7.0, 6.0, 5.0])
        measured(tmp_path, f"bertjax_{seed}", 30.0, [7.0, 6.0, 4.5 + (seed == 0)])
    table(bench, tmp_path, monkeypatch)
    said = capsys.readouterr().out
    assert "the same recipe: bertjax does not reach transformers' last loss with every seed" in said
    assert "to that loss," not in said


def test_what_is_kept_is_not_done_again(bench, tmp_path, monkeypatch, capsys) -> None:
    folder, other, kept = tmp_path / "folder", tmp_path / "other", tmp_path / "kept.json"
    folder.mkdir()
    other.mkdir()
    losses = [8.0 - step / 6 for step in range(bench.POINTS)]
    kept.write_text(json.dumps({"terms": {"minutes": 30.0, "tiny": False}, "speeds": TIMES, "runs": {}}))
    for name in ("transformers_0", "bertjax_0"):
        measured(folder, name, 30.0, losses)
        (folder / "exports" / name / str(bench.POINTS)).mkdir(parents=True)
        fine_tuned(folder, f"{name}_sst2", {"eval/accuracy": 0.7})
    monkeypatch.setattr(bench, "files_of", lambda *_: [])
    monkeypatch.setattr(bench, "fine_tune", lambda *_: None)
    words = ("--tasks", "sst2", "--seeds", "1", "--kept", str(kept), "--folder")
    call(bench, monkeypatch, "tasks", *words, str(folder))
    assert json.loads(kept.read_text())["runs"]["bertjax_0"]["sst2"] == 0.7
    begun = []
    monkeypatch.setattr(bench, "subprocess", SimpleNamespace(run=lambda words, **_: begun.append(words)))
    call(bench, monkeypatch, "train", *words, str(other))
    assert [words[3] for words in begun] == ["bertjax_third", "modernbert_third"] and str(kept) in begun[0]
    capsys.readouterr()
    call(bench, monkeypatch, "table", *words, str(other))
    said = capsys.readouterr().out
    assert "after 30.00 of 30.00 minutes" in said and "bertjax          sst2 accuracy 70.00" in said
    assert "ratio bertjax / transformers in real tokens/s: 2.67" in said


def test_side_timed_later_keeps_its_ratio_to_transformers(bench, tmp_path, monkeypatch) -> None:
    kept, known = tmp_path / "kept.json", {side: TIMES[side] for side in ("transformers", "bertjax")}
    kept.write_text(json.dumps({"terms": {"minutes": 30.0, "tiny": False}, "speeds": known, "runs": {}}))
    turned = []

    def speeds(_: object, settings: list[Any], heat: str) -> dict[Any, Any]:
        turned.append((heat, [str(setting) for setting in settings]))
        seconds = {"transformers": 0.4, "bertjax": 0.2}  # half as fast as when they were chosen
        of_modern = {"float32": 0.9, "bfloat16": 0.8}
        return {one: bench.Speed(seconds.get(one.side, of_modern[one.dtype]), 4000.0) for one in settings}

    monkeypatch.setattr(bench, "_speeds", speeds)
    monkeypatch.setattr(bench.bertjax, "prepare", lambda _: None)
    call(bench, monkeypatch, "times", "--folder", str(tmp_path), "--data", str(tmp_path), "--kept", str(kept))
    fastest = "modernbert-documents-bfloat16"
    assert turned == [
        ("modernbert_documents", ["modernbert-documents-float32", fastest]),
        ("final", [TIMES["transformers"]["setting"], TIMES["bertjax"]["setting"], fastest]),
    ]
    content = json.loads(kept.read_text())
    assert content["speeds"] == known | {"modernbert": {"setting": fastest, "seconds": 0.4, "tokens": 4000.0}}
    assert [*content["timed"]] == ["modernbert"] and content["timed"]["modernbert"]["commit"]
