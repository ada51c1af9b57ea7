"""`bench_race.py`: its table, and that a race in parts goes on from what is kept."""

from __future__ import annotations

import importlib
import json
import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

from bertjax.config import differences, load_recipe

BENCHMARKS = Path(__file__).parent / "benchmarks"


@pytest.fixture
def bench() -> ModuleType:
    return importlib.import_module("bench_race")


def finished(folder: Path, run: str, loss: float, **figures: float) -> None:
    """A run with its last evaluation, and a fine-tuned model at each of two rates, of which the first is worse."""
    (folder / "runs" / run).mkdir(parents=True)
    records = [{"step": 500, "train/loss": 7.0}, {"step": 1_000, "eval/mlm_loss": loss}]
    (folder / "runs" / run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for task, value in figures.items():
        for rate, lost in (("1e-4", 0.02), ("3e-4", 0.0)):
            (folder / "tasks" / f"{run}_{task}" / rate).mkdir(parents=True)
            figures_of_task = {{"sst2": "eval/accuracy", "mrpc": "eval/f1"}[task]: value - lost}
            result = {
                "result": {"figures": figures_of_task, "baselines": {"baseline/accuracy": 0.6, "baseline/f1": 0.75}}
            }
            (folder / "tasks" / f"{run}_{task}" / rate / "results.json").write_text(json.dumps(result))


def call(bench: ModuleType, monkeypatch: pytest.MonkeyPatch, phase: str, *words: str) -> None:
    given = ("--recipes", "bert", "electra", "--tasks", "sst2", "mrpc", *words)
    monkeypatch.setattr(sys, "argv", ["bench_race.py", *phase.split(), *given])
    bench.main()


def test_the_gate_reads_what_a_recipe_has_beyond_the_first(bench, tmp_path, monkeypatch, capsys) -> None:
    for seed, loss in enumerate((5.0, 5.2)):
        finished(tmp_path, f"bert_{seed}", loss, sst2=0.78 + seed / 100, mrpc=0.80)
        finished(tmp_path, f"electra_{seed}", loss, sst2=0.80 + seed / 50, mrpc=0.79)
    (tmp_path / "runs" / "electra_2").mkdir()
    (tmp_path / "runs" / "electra_2" / "metrics.jsonl").write_text('{"step": 500, "train/loss": 7.0}\n')
    call(bench, monkeypatch, "table", "--folder", str(tmp_path))
    said = capsys.readouterr().out
    assert "bert         held-out MLM loss 5.10 ± 0.10  sst2 78.50 ± 0.50  mrpc 80.00 ± 0.00" in said
    assert "electra less bert, sst2: +2.50 ± 0.50 points; bert has 78.50" in said
    entries = tomllib.loads((BENCHMARKS / "figures.toml").read_text())["figure"]
    patterns = [one["reads"] for one in entries if "{folder}/electra" in one["command"]]
    assert [re.search(pattern, said).group(1) for pattern in patterns] == ["+2.50", "-1.00"]


def test_what_is_kept_is_not_done_again(bench, tmp_path, monkeypatch, capsys) -> None:
    kept, folder, other = tmp_path / "kept.json", tmp_path / "folder", tmp_path / "other"
    terms = {"minutes": 60.0, "size": "mini"}
    runs = {"bert_0": {"loss": 5.0, "sst2": 0.78, "mrpc": 0.8}}
    kept.write_text(json.dumps({"terms": terms, "speeds": {"bert": 0.5, "electra": 0.6}, "runs": runs}))
    begun = []
    monkeypatch.setattr(bench, "subprocess", SimpleNamespace(run=lambda words, **_: begun.append(words)))
    call(bench, monkeypatch, "train", "--folder", str(folder), "--kept", str(kept))
    assert [words[3] for words in begun] == ["electra"] and str(kept) in begun[0]
    monkeypatch.setattr(bench, "write_beir", lambda *_: tmp_path)
    monkeypatch.setattr(bench, "files_of", lambda *_: [])
    monkeypatch.setattr(bench, "fine_tune", lambda *_: None)
    monkeypatch.setattr(bench, "standard_error", lambda run, metric: {"accuracy": 0.01, "f1": 0.02}[metric])
    finished(folder, "electra_0", 5.5, sst2=0.81, mrpc=0.79)
    call(bench, monkeypatch, "tasks", "--folder", str(folder), "--kept", str(kept))
    run = json.loads(kept.read_text())["runs"]["electra_0"]
    assert (run["steps"], run["loss"], run["sst2"], run["mrpc"]) == (1_000, 5.5, 0.81, 0.79) and run["commit"]
    assert (run["sst2_error"], run["mrpc_error"]) == (0.01, 0.02)
    assert (run["sst2_baseline"], run["mrpc_baseline"]) == (0.6, 0.75)  # F1 of always "yes": 2 x 0.6 / (1 + 0.6)
    capsys.readouterr()
    call(bench, monkeypatch, "table", "--folder", str(other), "--kept", str(kept))
    assert "electra less bert, sst2: +3.00 points; bert has 78.00" in capsys.readouterr().out


def test_what_is_kept_is_of_one_sitting_and_the_same_terms(bench, tmp_path, monkeypatch) -> None:
    kept = tmp_path / "kept.json"
    terms = {"minutes": 60.0, "size": "mini"}
    kept.write_text(json.dumps({"terms": terms, "speeds": {"bert": 0.5}, "runs": {}}))
    given = ("--folder", str(tmp_path), "--kept", str(kept))
    for words in (("--minutes", "10"), ("--size", "tiny")):
        with pytest.raises(SystemExit, match=r"kept.json is of a race on {'minutes': 60.0, .* give another --kept"):
            call(bench, monkeypatch, "table", *given, *words)
    with pytest.raises(SystemExit, match=r"has speeds of bert and not of electra: .* measure all of them with another"):
        call(bench, monkeypatch, "times", *given)


def test_recipe_steps_follow_from_recorded_speeds(bench, tmp_path, monkeypatch, capsys) -> None:
    kept = tmp_path / "kept.json"
    terms = {"minutes": 2.0, "size": "mini"}
    kept.write_text(json.dumps({"terms": terms, "speeds": {"bert": 0.5}, "runs": {}}))
    trained = []
    monkeypatch.setattr(bench.bertjax, "pretrain", lambda config: trained.append(config.training.steps))
    words = ("--folder", str(tmp_path), "--data", str(tmp_path), "--kept", str(kept), "--minutes", "2")
    call(bench, monkeypatch, "seed bert", *words)
    assert trained == [240] and "bert, seed 0: 240 steps" in capsys.readouterr().out


def test_the_small_modern_recipe_is_the_entrant_of_the_race(bench, tmp_path) -> None:
    """All but the text, where it lies, and how often a run is looked at; the vocabulary is as large in both."""
    recipe = load_recipe("modern_mini")
    entrant = bench.config_of("modernbert", SimpleNamespace(folder=tmp_path, data=tmp_path), 0, recipe.training.steps)
    assert recipe.model.vocab_size == recipe.data.vocab_size == entrant.data.vocab_size
    of_text = {"name", "run_dir", "compilation_cache", "model.vocab_size", "data.sources", "data.root", "data.held_out"}
    seen = {f"training.{name}" for name in ("log_every", "eval_every", "eval_rows", "checkpoint_every")}
    # "auto" is 1 on the machines of the race.
    assert differences(entrant, recipe).keys() == of_text | seen | {"training.grad_accum_steps"}
