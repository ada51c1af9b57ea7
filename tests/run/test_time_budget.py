"""Time budgets: how many steps fit, what is measured, and that a resumed run keeps the decision."""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path

import pytest
from generated_corpus import write_corpus
from tiny_runs import write_recipe

from bertjax.config import (
    Config,
    DataConfig,
    OptimizerConfig,
    ProbeConfig,
    StageConfig,
    TrainingConfig,
    load_recipe,
    to_dict,
    validate,
)
from bertjax.config.budget import budget_seconds
from bertjax.input.training_data import TrainingData
from bertjax.run import time_budget
from bertjax.run.checkpoint import DIRECTORY
from bertjax.run.checkpoint_metadata import make_document
from bertjax.run.job import assemble
from bertjax.run.run_data import open_data
from bertjax.run.run_directory import load_run
from bertjax.run.time_budget import (
    _QUICK,
    AIM,
    Costs,
    fit_steps,
    fit_to_budget,
    keep_decided_length,
    measure,
    seconds_needed,
    seconds_of_this_process,
    seconds_warm,
)
from bertjax.runtime.processes import Processes, alone
from bertjax.storage.progress import no_progress

pytestmark = pytest.mark.usefixtures("one_device")

COSTS = Costs(step=(0.3,), evaluation=(2.0,), save=1.0, start=2.0, finish=8.0)


def write_checkpoint(config: Config) -> None:
    """Write the metadata of a checkpoint of step 7 into the config's directory."""
    fingerprints = {"tokenizer_fingerprint": "", "data_fingerprint": ""}
    document = make_document({"step": 7, "config": to_dict(config), "arrays": {}} | fingerprints)
    folder = Path(config.directory) / DIRECTORY / "7" / "metadata"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "metadata").write_text(json.dumps(document))


def recipe(budget: str = "5m", *stages: StageConfig, steps: int = 30_000) -> Config:
    return Config(
        data=DataConfig(sequence_length=128, max_predictions=20),
        training=TrainingConfig(budget=budget, steps=steps, global_batch_size=32, eval_rows=1_024, eval_every=200),
        optimizer=OptimizerConfig(warmup_steps=100),
        stages=stages,
    )


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("2h", 7_200), ("1d", 86_400), ("1h30m", 5_400), ("1.5h", 5_400), ("1d2h3m4s", 93_784)],
)
def test_budget_seconds_parses_durations(text: str, seconds: float) -> None:
    assert budget_seconds(text) == seconds
    assert validate(recipe(text))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("10", "is not a duration"),
        ("ten minutes", "is not a duration"),
        ("10 m", "is not a duration"),
        ("-5m", "is not a duration"),
        ("m", "is not a duration"),
        ("30m1h", "is not a duration"),
        ("٣m", "is not a duration"),
        ("nans", "is not a duration"),
        ("1s", "is 1 seconds; give 20s"),
        ("0m", "is 0 seconds; give 20s"),
        ("999d", "to 366d"),
    ],
)
def test_invalid_budget_is_refused(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"training.budget='{text}'.*{message}"):
        validate(recipe(text))


def test_needed_seconds_count_every_event() -> None:
    run = recipe("5m", StageConfig(start=600, sequence_length=64), steps=1050)
    run = replace(run, training=replace(run.training, checkpoint_every=300))
    costs = Costs((0.5, 0.25), (7.0, 5.0), 2.0, 3.0, 11.0)
    total = costs.start + costs.finish
    for step in range(1050):
        second, stop = step >= 600, 1050 if step >= 600 else 600
        total += costs.step[second]
        total += costs.evaluation[second] * ((step + 1) % 200 == 0 or step + 1 == stop)
        total += costs.save * ((step + 1) % 300 == 0 or step + 1 == stop)
    assert seconds_needed(run, costs) == pytest.approx(total)


@pytest.mark.parametrize("budget", ["60s", "100s", "20m", "1d"])
def test_fit_steps_finds_the_largest_number_of_steps(budget: str) -> None:
    user_keys = {"training.eval_every", "training.checkpoint_every", "optimizer.warmup_steps"}
    config = recipe(budget, steps=1000)
    run, costs = fit_steps(replace(config, optimizer=replace(config.optimizer, warmup_steps=1)), COSTS, 20.0, user_keys)
    longer = replace(run, training=replace(run.training, steps=run.training.steps + 1))
    allowed = AIM * budget_seconds(budget) - 20.0
    assert seconds_needed(run, costs) <= allowed < seconds_needed(longer, costs)


def test_budget_scales_the_recipe_and_limits_evaluations() -> None:
    costs = Costs((0.3,), (20.0,), 3.0, 0.0, 8.0)
    run, run_costs = fit_steps(recipe(), costs, spent=40.0)
    assert 250 < run.training.steps < 30_000
    assert run.optimizer.warmup_steps == round(100 * run.training.steps / 30_000)
    evaluations = -(-run.training.steps // run.training.eval_every)
    assert evaluations * run_costs.evaluation[0] <= 0.1 * 300 + 1e-9
    assert AIM * 300 - 4 < 40.0 + seconds_needed(run, run_costs) <= AIM * 300


def test_fit_steps_reserves_the_share_of_probes() -> None:
    probed = replace(recipe(), probe=ProbeConfig(attention=True, share=0.2))
    run, run_costs = fit_steps(probed, COSTS, 20.0)
    assert 20.0 + seconds_needed(run, run_costs) == pytest.approx(0.8 * AIM * 300, abs=1.0)


def test_kept_checkpoints_are_multiples_of_a_longer_period() -> None:
    """Slow saves are further apart than in the recipe."""
    config = recipe("10m")
    config = replace(config, training=replace(config.training, checkpoint_every=150, keep_every=3_000))
    training = fit_steps(config, COSTS._replace(save=7.0), 20.0)[0].training
    assert training.keep_every % training.checkpoint_every == 0
    assert fit_steps(config, COSTS._replace(save=7.0), 20.0, {"training.keep_every"})[0].training.keep_every == 3_000


def test_expensive_evaluation_gets_fewer_rows() -> None:
    costs = Costs((0.3,), (60.0,), 1.0, 0.0, 5.0)
    run, run_costs = fit_steps(recipe("2m"), costs, spent=30.0)
    assert run.training.eval_rows == 256 and run_costs.evaluation == (15.0,)
    run, run_costs = fit_steps(recipe("3m"), costs, 30.0, {"training.eval_rows"})
    assert run.training.eval_rows == 1_024 and run_costs == costs


def test_fit_steps_keeps_the_users_values() -> None:
    user_keys = {"optimizer.warmup_steps", "training.eval_every", "training.checkpoint_every"}
    run, _ = fit_steps(recipe(), COSTS, 40.0, user_keys)
    assert (run.optimizer.warmup_steps, run.training.eval_every) == (100, 200)
    assert run.training.checkpoint_every == TrainingConfig.checkpoint_every
    with pytest.raises(ValueError, match=r"optimizer.warmup_steps=100 must be below training.steps=\d+"):
        fit_steps(recipe("1m"), COSTS._replace(step=(0.5,)), 40.0, user_keys)


def test_too_short_budget_trains_at_least_a_step() -> None:
    costs = Costs((2.0,), (10.0,), 2.0, 1.0, 10.0)
    assert fit_steps(recipe("1m"), costs, spent=40.0)[0].training.steps == 1
    assert fit_steps(recipe("70s"), costs, spent=40.0)[0].training.steps == 4
    staged = recipe("1m", StageConfig(start=15_000, sequence_length=64))
    costs = costs._replace(step=(2.0, 1.0), evaluation=(10.0, 5.0))
    run, _ = fit_steps(staged, costs, spent=60.0)
    assert (run.training.steps, run.stages[0].start) == (2, 1)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, TrainingData]:
    folder = tmp_path_factory.mktemp("budget")
    config = load_recipe(write_recipe(folder))
    source = write_corpus(folder / "corpus.txt", 60)
    data = replace(config.data, sources=(f"lines:{source}",), root=str(folder / "data"))
    stages = (StageConfig(start=90, sequence_length=16, max_predictions=3),)
    config = replace(config, data=data, stages=stages, training=replace(config.training, budget="1m"))
    return config, open_data(config, no_progress)


@pytest.mark.long  # compiles a step; the suite tests the decisions
def test_measure_leaves_no_files(prepared: tuple[Config, TrainingData], tmp_path: Path) -> None:
    config, content = prepared
    job = assemble(replace(config, run_dir=str(tmp_path)), content)
    finished = itertools.count()

    def finish(config: Config) -> None:
        next(finished)
        assert load_run(config.directory).config.model.vocab_size == content.tokenizer.vocab_size

    with alone() as processes:
        costs = measure(job, 0.2, processes, finish)
    assert len(costs.step) == len(costs.evaluation) == 2
    assert min(*costs.step, *costs.evaluation, costs.save, costs.start, costs.finish) > 0
    assert next(finished) >= 1
    assert [path.name for path in tmp_path.iterdir()] == [".lock"]


def test_resumed_run_keeps_the_decided_length(
    prepared: tuple[Config, TrainingData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config, content = replace(prepared[0], run_dir=str(tmp_path)), prepared[1]
    training, execution = replace(config.training, grad_accum_steps=1), replace(config.execution, scan_unroll=1)
    config = replace(config, training=training, execution=execution)
    costs = Costs((0.5, 0.25), (1.0, 1.0), 1.0, 1.0, 5.0)
    monkeypatch.setattr(time_budget, "measure", lambda *arguments: costs)
    lines: list[str] = []
    with alone() as processes:
        job = fit_to_budget(assemble(config, content), (), lambda: 10.0, lambda config: None, processes, lines.append)
        assert "10 s used so far" in lines[0] and f"budget: {job.config.training.steps:,} steps of 0.5 s" in lines[1]
        assert 60 < job.config.training.steps == job.stages[-1].stop < 200
        assert keep_decided_length(config) == config, "the run has no checkpoint"
        write_checkpoint(job.config)
        assert replace(keep_decided_length(config), model=job.config.model) == job.config
        overridden = replace(config, training=replace(config.training, log_every=3))
        assert keep_decided_length(overridden, {"training.log_every"}).training.log_every == 3
        resumed = fit_to_budget(job, (), lambda: 10.0, lambda config: None, processes, lines.append)
        assert resumed is job and lines[-1].endswith("a resumed run keeps them")


def test_run_with_another_budget_is_refused(tmp_path: Path) -> None:
    config = replace(recipe("10m"), run_dir=str(tmp_path))
    write_checkpoint(config)
    with pytest.raises(ValueError, match=r"training.budget='20m': the run in .* began with 10m"):
        keep_decided_length(replace(config, training=replace(config.training, budget="20m")))
    write_checkpoint(replace(config, training=replace(config.training, budget="")))
    with pytest.raises(ValueError, match="began without a budget"):
        keep_decided_length(config)
    (tmp_path / DIRECTORY / "7" / "metadata" / "metadata").write_text(json.dumps([]))
    assert keep_decided_length(config) == config, "restoring reports a damaged checkpoint"


class FixedProcesses(Processes):
    """Processes whose process 0 measured `seconds`."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds

    def broadcast(self, what: str, value: str = "") -> str:
        return str(self._seconds)


@pytest.mark.parametrize(("agreed", "times"), [(_QUICK + 1, 1), (_QUICK - 1, 2)])
def test_all_processes_repeat_work_or_none_does(agreed: float, times: int) -> None:
    """If each process used its own clock, one might save again and wait forever for the others."""
    calls: list[int] = []
    seconds_warm(lambda: calls.append(1), FixedProcesses(agreed))
    assert len(calls) == times


def test_seconds_of_this_process_start_with_the_process() -> None:
    before = seconds_of_this_process()
    assert 0 < before <= seconds_of_this_process() < 86_400
