"""`bench_race.py`: its table, and a race that runs in parts."""

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


def write_finished_run(folder: Path, run: str, loss: float, **figures: float) -> None:
    """Write a run with its last evaluation, and fine-tuned models at two rates, the first of which is worse."""
    (folder / "runs" / run).mkdir(parents=True)
    records = [{"step": 500, "train/loss": 7.0}, {"step": 1_000, "eval/mlm_loss": loss}]
    (folder / "runs" / run / "metrics.jsonl").write_text("".join(json.dumps(record) + "\n" for record in records))
    for task, value in figures.items():
        for rate, deficit in (("1e-4", 0.02), ("3e-4", 0.0)):
            (folder / "tasks" / f"{run}_{task}" / rate).mkdir(parents=True)
            task_figures = {{"sst2": "eval/accuracy", "mrpc": "eval/f1"}[task]: value - deficit}
            result = {"result": {"figures": task_figures, "baselines": {"baseline/accuracy": 0.6, "baseline/f1": 0.75}}}
            (folder / "tasks" / f"{run}_{task}" / rate / "results.json").write_text(json.dumps(result))


def call(bench: ModuleType, monkeypatch: pytest.MonkeyPatch, phase: str, *words: str) -> None:
    options = ("--recipes", "bert", "electra", "--tasks", "sst2", "mrpc", *words)
    monkeypatch.setattr(sys, "argv", ["bench_race.py", *phase.split(), *options])
    bench.main()


def test_gate_reads_gains_over_the_first_recipe(bench, tmp_path, monkeypatch, capsys) -> None:
    for seed, loss in enumerate((5.0, 5.2)):
        write_finished_run(tmp_path, f"bert_{seed}", loss, sst2=0.78 + seed / 100, mrpc=0.80)
        write_finished_run(tmp_path, f"electra_{seed}", loss, sst2=0.80 + seed / 50, mrpc=0.79)
    (tmp_path / "runs" / "electra_2").mkdir()
    (tmp_path / "runs" / "electra_2" / "metrics.jsonl").write_text('{"step": 500, "train/loss": 7.0}\n')
    call(bench, monkeypatch, "table", "--folder", str(tmp_path))
    output = capsys.readouterr().out
    assert "bert         held-out MLM loss 5.10 ± 0.10  sst2 78.50 ± 0.50  mrpc 80.00 ± 0.00" in output
    assert "electra less bert, sst2: +2.50 ± 0.50 points; bert has 78.50" in output
    entries = tomllib.loads((BENCHMARKS / "figures.toml").read_text())["figure"]
    patterns = [one["reads"] for one in entries if "{folder}/electra" in one["command"]]
    assert [re.search(pattern, output).group(1) for pattern in patterns] == ["+2.50", "-1.00"]


def test_recorded_runs_are_not_repeated(bench, tmp_path, monkeypatch, capsys) -> None:
    record, folder, other = tmp_path / "kept.json", tmp_path / "folder", tmp_path / "other"
    terms = {"minutes": 60.0, "size": "mini"}
    runs = {"bert_0": {"loss": 5.0, "sst2": 0.78, "mrpc": 0.8}}
    record.write_text(json.dumps({"terms": terms, "speeds": {"bert": 0.5, "electra": 0.6}, "runs": runs}))
    started = []
    monkeypatch.setattr(bench, "subprocess", SimpleNamespace(run=lambda words, **_: started.append(words)))
    call(bench, monkeypatch, "train", "--folder", str(folder), "--record", str(record))
    assert [words[3] for words in started] == ["electra"] and str(record) in started[0]
    monkeypatch.setattr(bench, "write_beir", lambda *_: tmp_path)
    monkeypatch.setattr(bench, "task_files", lambda *_: [])
    monkeypatch.setattr(bench, "fine_tune", lambda *_: None)
    monkeypatch.setattr(bench, "standard_error", lambda run, metric: {"accuracy": 0.01, "f1": 0.02}[metric])
    write_finished_run(folder, "electra_0", 5.5, sst2=0.81, mrpc=0.79)
    call(bench, monkeypatch, "tasks", "--folder", str(folder), "--record", str(record))
    run = json.loads(record.read_text())["runs"]["electra_0"]
    assert (run["steps"], run["loss"], run["sst2"], run["mrpc"]) == (1_000, 5.5, 0.81, 0.79) and run["commit"]
    assert (run["sst2_error"], run["mrpc_error"]) == (0.01, 0.02)
    assert (run["sst2_baseline"], run["mrpc_baseline"]) == (0.6, 0.75)  # F1 of always "yes": 2 x 0.6 / (1 + 0.6)
    capsys.readouterr()
    call(bench, monkeypatch, "table", "--folder", str(other), "--record", str(record))
    assert "electra less bert, sst2: +3.00 points; bert has 78.00" in capsys.readouterr().out


def test_record_refuses_other_terms_and_later_timings(bench, tmp_path, monkeypatch) -> None:
    record = tmp_path / "kept.json"
    terms = {"minutes": 60.0, "size": "mini"}
    record.write_text(json.dumps({"terms": terms, "speeds": {"bert": 0.5}, "runs": {}}))
    options = ("--folder", str(tmp_path), "--record", str(record))
    for words in (("--minutes", "10"), ("--size", "tiny")):
        with pytest.raises(
            SystemExit, match=r"kept.json records a race with {'minutes': 60.0, .* give another --record"
        ):
            call(bench, monkeypatch, "table", *options, *words)
    with pytest.raises(SystemExit, match=r"has speeds of bert but not of electra: .* measure all of them with another"):
        call(bench, monkeypatch, "times", *options)


def test_recipe_steps_follow_from_recorded_speeds(bench, tmp_path, monkeypatch, capsys) -> None:
    record = tmp_path / "kept.json"
    terms = {"minutes": 2.0, "size": "mini"}
    record.write_text(json.dumps({"terms": terms, "speeds": {"bert": 0.5}, "runs": {}}))
    trained = []
    monkeypatch.setattr(bench.bertjax, "pretrain", lambda config: trained.append(config.training.steps))
    words = ("--folder", str(tmp_path), "--data", str(tmp_path), "--record", str(record), "--minutes", "2")
    call(bench, monkeypatch, "seed bert", *words)
    assert trained == [240] and "bert, seed 0: 240 steps" in capsys.readouterr().out


def test_modern_mini_recipe_equals_the_race_entrant(bench, tmp_path) -> None:
    """They differ only in the text, its location, and logging periods; the vocabulary sizes are equal."""
    recipe = load_recipe("modern_mini")
    entrant = bench.make_config("modernbert", SimpleNamespace(folder=tmp_path, data=tmp_path), 0, recipe.training.steps)
    assert recipe.model.vocab_size == recipe.data.vocab_size == entrant.data.vocab_size
    text_keys = {
        "name",
        "run_dir",
        "compilation_cache",
        "model.vocab_size",
        "data.sources",
        "data.root",
        "data.held_out",
    }
    period_keys = {f"training.{name}" for name in ("log_every", "eval_every", "eval_rows", "checkpoint_every")}
    # "auto" is 1 on the machines of the race.
    assert differences(entrant, recipe).keys() == text_keys | period_keys | {"training.grad_accum_steps"}
