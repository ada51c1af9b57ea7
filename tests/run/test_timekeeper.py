"""A run within a budget: its end follows the machine's speed, and what was decided can be repeated to the bit.

The clock is one that the test drives; everything else is a run.
"""

from __future__ import annotations

import itertools
import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from generated_corpus import write_corpus
from tiny_runs import digests, write_recipe

from bertjax.config import Config, StageConfig, load_recipe, validate
from bertjax.input.training_data import TrainingData
from bertjax.run import timekeeper
from bertjax.run.budget import Budget, Costs
from bertjax.run.callbacks import Callback
from bertjax.run.checkpoint import DIRECTORY, read_metadata, saved_steps
from bertjax.run.job import Job, assemble
from bertjax.run.rehearsal import _QUICK, Ending, _once_warm, rehearse
from bertjax.run.run_directory import load_run
from bertjax.run.timekeeper import FILE, Timekeeper, read_decision, seconds_of_this_process
from bertjax.run.trainer import Outcome, train
from bertjax.runtime.processes import alone
from bertjax.storage.progress import no_progress
from bertjax.training.stages import open_data

BUDGET = "10m"
COSTS = Costs(pace=(0.6, 0.3), evaluation=(0.0, 0.0), save=0.0, ending=20.0)
FEW_STEPS = replace(COSTS, pace=(6.0, 3.0))  # where they are taken
SPENT = 30.0
END: Ending = lambda config: None  # noqa: E731


class Machine(Callback):
    """A clock on which every step takes as long as the costs say, times what `slower` says at that time."""

    def __init__(self, slower: Callable[[float], float], costs: Costs = COSTS) -> None:
        self.now, self._slower, self._pace = SPENT, slower, costs.pace

    def __call__(self) -> float:
        return self.now

    def on_step(self, step: int, stage: int = 0) -> None:
        self.now += self._pace[stage] * self._slower(self.now)


@pytest.fixture(scope="module")
def prepared(tmp_path_factory: pytest.TempPathFactory) -> tuple[Config, TrainingData]:
    folder = tmp_path_factory.mktemp("budget")
    config = load_recipe(write_recipe(folder))
    source = write_corpus(folder / "corpus.txt", 300)
    data = replace(config.data, sources=(f"lines:{source}",), root=str(folder / "data"))
    stages = (StageConfig(start=90, sequence_length=16, max_predictions=3),)
    training = replace(config.training, budget=BUDGET, keep_last=100, checkpoint_every=20, log_every=40)
    config = replace(config, data=data, training=training, stages=stages)
    return config, open_data(config, no_progress)


def run(
    config: Config, content: TrainingData, machine: Machine | None, budget: str = BUDGET
) -> tuple[Outcome, list[str]]:
    said: list[str] = []
    with alone() as processes:
        given = {"training.checkpoint_every", "training.log_every"}
        keeper = Timekeeper(Budget(budget, given, machine or Machine(SPEEDS["steady"])), processes, END, said.append)
        callbacks = (machine,) if machine is not None else ()
        outcome = train(assemble(config, content), said.append, None, processes, callbacks, keeper if machine else None)
    return outcome, said


def at_constant_costs(monkeypatch: pytest.MonkeyPatch, costs: Costs = COSTS) -> None:
    monkeypatch.setattr(timekeeper, "rehearse", lambda *arguments: costs)


SPEEDS: dict[str, Callable[[float], float]] = {
    "steady": lambda now: 1.0,
    "slower from the beginning": lambda now: 1.7,
    "others come": lambda now: 1.0 if now < 200 else 2.5,
    "others go": lambda now: 3.0 if now < 300 else 1.0,
    "now and then": lambda now: 1.0 if now % 90 < 50 else 1.6,
}


@pytest.mark.parametrize("name", SPEEDS)
def test_a_run_ends_in_its_budget(
    name: str, prepared: tuple[Config, TrainingData], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All that is decided, with the steps themselves left out."""
    config, content = prepared
    at_constant_costs(monkeypatch)
    machine, said = Machine(SPEEDS[name]), []
    with alone() as processes:
        keeper = Timekeeper(Budget(BUDGET, (), machine), processes, END, said.append)
        job, step = keeper.schedule(assemble(config, content), tmp_path, []), 0
        keeper.begin(job, 0)
        while step < job.stages[-1].stage.stop:
            machine.on_step(step, sum(step >= rows.stage.start for rows in job.stages) - 1)
            step += 1
            if step < job.stages[-1].stage.stop:
                job = keeper.reconsider(job, step) or job
    ends = machine.now + COSTS.ending * SPEEDS[name](machine.now)
    assert ends == pytest.approx(600, rel=0.03), f"{read_decision(tmp_path)}"
    assert said[0].startswith("budget: 10 min 00 s, 30 s used so far; measuring")
    assert said[1].startswith(f"budget: {job.config.training.steps:,} steps of 0.6 s, then 0.3 s each")


@pytest.fixture(scope="module")
def ran(
    prepared: tuple[Config, TrainingData], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Config, TrainingData, Path, Outcome]:
    """A run whose end was moved several times."""
    config, content = prepared
    directory = tmp_path_factory.mktemp("ran") / "run"
    with pytest.MonkeyPatch.context() as patch:
        at_constant_costs(patch, FEW_STEPS)
        machine = Machine(SPEEDS["others go"], FEW_STEPS)
        outcome, _ = run(replace(config, run_dir=str(directory)), content, machine)
    return config, content, directory, outcome


def test_the_record_describes_the_run(ran: tuple[Config, TrainingData, Path, Outcome]) -> None:
    _, _, directory, outcome = ran
    decision = read_decision(directory)
    assert decision is not None and len(decision.replans) >= 3
    assert decision.replans == outcome.config.training.replans
    assert outcome.config.training.steps == decision.settings["training.steps"] != outcome.step
    assert read_metadata(directory)["config"]["training"]["replans"] == list(decision.replans)
    assert json.loads((directory / "config.json").read_text())["training"]["replans"] == list(decision.replans)
    assert load_run(directory).step == outcome.step


def test_the_same_records_without_a_clock_give_the_same_bits(
    ran: tuple[Config, TrainingData, Path, Outcome], tmp_path: Path
) -> None:
    _, content, directory, outcome = ran
    training = replace(outcome.config.training, budget="")
    again = validate(replace(outcome.config, run_dir=str(tmp_path / "again"), training=training))
    run(again, content, None)
    assert digests(tmp_path / "again") == digests(directory)


def test_a_resumed_run_keeps_its_end_to_the_bit(
    ran: tuple[Config, TrainingData, Path, Outcome], tmp_path: Path
) -> None:
    """From a checkpoint in the middle: of the records some are past, and some are still to come."""
    config, content, directory, _ = ran
    resumed = tmp_path / "run"
    shutil.copytree(directory, resumed)
    records = [int(record.split(":")[0]) for record in read_decision(directory).replans]
    middle = next(step for step in saved_steps(directory) if step >= records[len(records) // 2])
    assert records[0] <= middle < records[-1]
    for step in saved_steps(directory):
        if step > middle:
            shutil.rmtree(resumed / DIRECTORY / str(step))
    hardly_moving = Machine(lambda now: 1e-3)
    _, said = run(replace(config, run_dir=str(resumed)), content, hardly_moving)
    assert any("a resumed run keeps its end" in line for line in said)
    assert digests(resumed) == digests(directory)
    assert read_decision(resumed) == read_decision(directory)


def test_another_budget_is_refused(ran: tuple[Config, TrainingData, Path, Outcome]) -> None:
    config, content, directory, _ = ran
    machine = Machine(lambda now: 1.0)
    with pytest.raises(ValueError, match=r"training.budget='20m': the run in .* was begun with 10m"):
        run(replace(config, run_dir=str(directory)), content, machine, "20m")


def test_a_run_without_a_budget_is_not_given_one(
    ran: tuple[Config, TrainingData, Path, Outcome], tmp_path: Path
) -> None:
    config, content, directory, _ = ran
    shutil.copytree(directory, tmp_path / "run")
    (tmp_path / "run" / FILE).unlink()
    machine = Machine(lambda now: 1.0)
    with pytest.raises(ValueError, match="was begun without a budget"):
        run(replace(config, run_dir=str(tmp_path / "run")), content, machine)
    (tmp_path / "run" / FILE).write_text("[]")
    with pytest.raises(ValueError, match=r"budget.json: it is not a record of a budget"):
        run(replace(config, run_dir=str(tmp_path / "run")), content, machine)


@pytest.mark.parametrize(("agreed", "times"), [(_QUICK + 1, 1), (_QUICK - 1, 2)])
def test_work_of_all_processes_is_done_again_by_what_they_agree_on(agreed: float, times: int) -> None:
    """By its own clock one process might save again, and wait for the others for ever."""
    done: list[int] = []
    _once_warm(lambda: done.append(1), lambda seconds: agreed)
    assert len(done) == times


def test_a_rehearsal_measures_and_leaves_nothing(prepared: tuple[Config, TrainingData], tmp_path: Path) -> None:
    config, content = prepared
    job: Job = assemble(replace(config, run_dir=str(tmp_path)), content)
    ended = itertools.count()

    def end(config: Config) -> None:
        next(ended)
        assert load_run(config.directory).config.model.vocab_size == content.tokenizer.vocab_size

    with alone() as processes:
        costs = rehearse(job, tmp_path, 0.2, processes, end)
    assert len(costs.pace) == len(costs.evaluation) == 2
    assert min(*costs.pace, *costs.evaluation, costs.save, costs.ending) > 0
    assert next(ended) >= 1
    assert list(tmp_path.iterdir()) == []


def test_the_clock_begins_with_the_process() -> None:
    before = seconds_of_this_process()
    assert 0 < before <= seconds_of_this_process() < 86_400
