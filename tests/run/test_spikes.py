"""After a loss spike the run goes back and skips its rows, with the same bits even if it crashes meanwhile."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest
from generated_corpus import write_corpus
from tiny_runs import SIX_STEPS, digests, train_alone, write_recipe

import bertjax
from bertjax.config import Config, TrainingConfig, load_recipe, validate
from bertjax.config.skips import batch_number, parse_skips, with_skip
from bertjax.run.callbacks import Callback
from bertjax.run.checkpoint import DIRECTORY, Checkpoints, read_metadata, saved_steps
from bertjax.run.hooks.spike_recovery import MOST, Spike, SpikeWatch, Window, initial_skips, with_skips
from bertjax.run.job import Job, assemble
from bertjax.run.metrics import LOSS
from bertjax.run.run_data import open_data
from bertjax.run.telemetry import read_metrics, summarize_log
from bertjax.run.train_job import train_job
from bertjax.runtime.processes import alone
from bertjax.storage.progress import no_progress
from bertjax.training.stages import Stage, make_stages

pytestmark = pytest.mark.usefixtures("one_device")

POISON = range(24, 26)  # batches with wrong labels, counted from 0
STEPS, DEVIATIONS = 32, 3.0


def test_skips_compose_like_removed_batches() -> None:
    """Compare with a list of batches from which the skipped ones are removed."""
    rng = random.Random(0)
    for _ in range(50):
        texts: tuple[str, ...] = ()
        left = list(range(400))
        for _ in range(6):
            first = rng.randrange(100)
            stop = first + rng.randint(1, 20)
            texts, left = with_skip(texts, first, stop), left[:first] + left[stop:]
            skips = parse_skips(texts)
            assert [batch_number(step, skips) for step in range(150)] == left[:150], texts


def test_skips_before_a_stage_do_not_count() -> None:
    assert batch_number(60, parse_skips(["10+5", "55+2"]), start=50) == 62


@pytest.mark.parametrize("texts", [("5",), ("5+0",), ("-1+2",), ("5+2", "5+1"), ("9+1", "3+1")])
def test_invalid_skip_is_refused(texts: tuple[str, ...]) -> None:
    config = replace(Config(), training=replace(Config().training, skips=texts))
    with pytest.raises(ValueError, match=r"training\.skips="):
        validate(config)


def make_stage(**training: Any) -> Stage:
    config = replace(Config(), optimizer=replace(Config().optimizer, warmup_steps=1))
    (stage,) = make_stages(replace(config, training=replace(config.training, **training)))
    return stage


def curve(spike_at: int | None = None) -> list[float]:
    """The loss of every step: falling, noisy, with an optional spike of three steps."""
    rng = np.random.default_rng(1)
    losses = 4 + 5 * np.exp(-np.arange(400) / 80) + rng.normal(0, 0.05, 400)
    if spike_at is not None:
        losses[spike_at : spike_at + 3] += 6
    return losses.tolist()


def watch_curve(
    losses: Sequence[float],
    ends: Sequence[int],
    training: TrainingConfig,
    logged: int = 0,
    config_skips: Sequence[str] = (),
) -> Spike | None:
    """Watch the means over the steps up to each end, the first `logged` of them from the log; returns the spike."""
    stage = make_stage(log_every=training.log_every, steps=len(losses))
    edges = [0, *ends]
    means = [float(np.mean(losses[a:b])) for a, b in zip(edges, ends, strict=False)]
    watch = SpikeWatch(training, zip(ends[:logged], means[:logged], strict=True), config_skips)
    try:
        for end, mean in list(zip(ends, means, strict=True))[logged:]:
            watch.look(stage, end, mean)
    except Spike as spike:
        return spike
    return None


def test_spike_watch_names_the_window_of_the_spike() -> None:
    training = TrainingConfig(log_every=10, spike_deviations=8.0)
    ends = [1, *range(10, 401, 10)]
    assert watch_curve(curve(), ends, training) is None
    assert watch_curve(curve(314), ends, replace(training, spike_deviations=0.0)) is None
    spike = watch_curve(curve(314), ends, training)
    assert spike is not None and spike.window[:2] == (310, 320)
    assert "the mean loss of steps 311 to 320 is" in str(spike)
    # Also if a signal splits a window, before or at the spike, or an earlier process has logged a part.
    for cut, logged in ((275, 0), (313, 0), (316, 0), (275, 12), (313, 33)):
        again = watch_curve(curve(314), sorted({*ends, cut}), training, logged)
        assert again is not None and again.window[:2] == (310, 320)
        assert math.isclose(again.window.loss, spike.window.loss, rel_tol=1e-9)


def test_spike_watch_needs_only_the_end_of_the_log() -> None:
    """The end must be short, because process 0 sends it to every other process."""
    training = TrainingConfig(log_every=1, spike_deviations=8.0)
    logged = [{"step": step, LOSS: 4 + 0.1 * math.sin(step)} for step in range(1, 60_001)]
    past = summarize_log(logged, 60_000, "", SpikeWatch.lines_needed(training))
    assert len(json.dumps(past)) < 50_000
    assert summarize_log(logged, 60_000, "", SpikeWatch.lines_needed(TrainingConfig()))["losses"] == []
    spikes = []
    for losses in (past["losses"], [(record["step"], record[LOSS]) for record in logged]):
        watch = SpikeWatch(training, losses)
        with pytest.raises(Spike) as spike:
            watch.look(make_stage(log_every=1, steps=70_000), 60_001, 9.0)
        spikes.append((str(spike.value), spike.value.window))
    assert spikes[0] == spikes[1] and spikes[0][1] == (60_000, 60_001, 9.0)


def test_spike_watch_starts_over_at_each_stage() -> None:
    training = TrainingConfig(log_every=10, spike_deviations=8.0)
    watch, losses = SpikeWatch(training), curve()
    stage = replace(make_stage(log_every=10, steps=400), start=200)
    for end in range(10, 201, 10):
        watch.look(replace(stage, start=0, stop=200), end, losses[end - 1])
    for end in range(210, 401, 10):
        watch.look(stage, end, losses[end - 1] + 10)


def test_too_many_spikes_end_the_run() -> None:
    skips = tuple(f"{number}+1" for number in range(MOST))
    training = TrainingConfig(log_every=10, spike_deviations=8.0, skips=skips)
    with pytest.raises(RuntimeError, match=f"{MOST} spikes have been skipped .* Lower optimizer.learning_rate"):
        watch_curve(curve(314), [*range(10, 401, 10)], training)


def test_repeated_spikes_at_one_step_are_counted() -> None:
    """Spikes at one step share a record; skips in the config do not count as spikes."""
    training = TrainingConfig(log_every=10, spike_deviations=8.0, skips=("310+100",))
    losses, ends = curve(314), [*range(10, 401, 10)]
    with pytest.raises(RuntimeError, match=f"{MOST} spikes have been skipped"):
        watch_curve(losses, ends, training)
    assert watch_curve(losses, ends, training, config_skips=("310+100",)) is not None
    assert watch_curve(losses, ends, replace(training, skips=("310+90",))) is not None


def test_leave_out_renames_later_checkpoints(tmp_path: Path) -> None:
    for name in ("20", "40", "47", "47.left_out"):
        (tmp_path / name).mkdir()
    Checkpoints(tmp_path, keep_last=2).leave_out(40)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["20", "40", "47.left_out", "47.left_out.2"]


class Poisoned:
    """Batches, some with wrong labels."""

    def __init__(self, batches: Any) -> None:
        self._batches = batches
        self.rows_per_epoch, self.shares, self.spec = batches.rows_per_epoch, batches.shares, batches.spec
        self.estimated_rows, self.release = batches.estimated_rows, batches.release

    def batch(self, step: int, size: int, rows: Any = None) -> dict[str, np.ndarray]:
        batch = self._batches.batch(step, size, rows)
        return batch | {"mlm_labels": np.zeros_like(batch["mlm_labels"])} if step in POISON else batch


class Crash(Callback):
    """Raises an error at the n-th step, counting repeated steps."""

    def __init__(self, after: int) -> None:
        self._left = after

    def after_step(self, step: int) -> None:
        self._left -= 1
        if not self._left:
            raise OSError("the disk is gone")


@pytest.fixture(scope="module")
def job(tmp_path_factory: pytest.TempPathFactory) -> Job:
    folder = tmp_path_factory.mktemp("spikes")
    config = load_recipe(write_recipe(folder))
    source = write_corpus(folder / "corpus.txt", 60)
    periods = {"log_every": 2, "eval_every": 100, "eval_rows": 16, "checkpoint_every": 4}
    config = replace(
        config,
        log=(),
        compilation_cache="",
        data=replace(config.data, sources=(f"lines:{source}",), root=str(folder / "data"), vocab_size=200),
        optimizer=replace(config.optimizer, warmup_steps=2, learning_rate=5e-3),
        training=replace(config.training, steps=STEPS, spike_deviations=DEVIATIONS, **periods),
    )
    job = assemble(config, open_data(config, no_progress))
    (rows,) = job.stages
    return replace(job, stages=(replace(rows, batches=Poisoned(rows.batches)),))


def with_training(job: Job, folder: Path, **training: Any) -> Job:
    return replace(
        job, config=replace(job.config, run_dir=str(folder), training=replace(job.config.training, **training))
    )


@pytest.fixture(scope="module")
def recovered(job: Job, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[str]]:
    """A run that recovered from the spike, and the lines that it printed."""
    folder, lines = tmp_path_factory.mktemp("recovered"), []
    outcome = train_alone(with_training(job, folder), lines.append)
    assert outcome.step == STEPS and outcome.config.training.skips == ("24+2",)
    return folder, lines


def losses(run: Path) -> list[tuple[int, float]]:
    records = read_metrics(run / "metrics.jsonl")
    return [(record["step"], record["train/loss"]) for record in records if "train/loss" in record]


@pytest.mark.parametrize(
    ("before", "now", "expected"),
    [
        ((), (), ("10+4", "16+2")),
        (("20+2",), ("20+2",), ("10+4", "16+2")),  # the spike has renumbered the config's skip
        (("20+2",), ("20+2", "30+1"), ("10+4", "16+2", "20+2", "30+1")),
    ],
)
def test_skips_in_the_config_are_not_added_twice(
    before: tuple[str, ...], now: tuple[str, ...], expected: tuple[str, ...], job: Job, tmp_path: Path
) -> None:
    begun = with_skips(with_training(job, tmp_path, skips=before), ("10+4", "16+2"))
    with Checkpoints(tmp_path / DIRECTORY, keep_last=1) as checkpoints:
        checkpoints.save(20, {"params": jnp.zeros(2)}, begun.metadata)
    with alone() as processes:
        assert initial_skips(with_training(job, tmp_path, skips=now), processes, print) == expected


def test_feed_leaves_out_skipped_batches(job: Job) -> None:
    (stage,) = with_skips(job, ("2+3",)).stages
    with stage.open_feed(job.mesh, 1, 4) as feed:
        batches = list(feed)
    for number, batch in zip((1, 5, 6), batches, strict=True):
        expected = stage.batches.batch(number, stage.training.global_batch_size)
        assert all(np.array_equal(batch[key], expected[key]) for key in expected)


class SpikeAfter(Callback):
    """Raises Spike for two steps at the n-th step, once; `first` has the weights at step 0."""

    def __init__(self, step: int) -> None:
        self._step = step
        self.first: list[np.ndarray] = []

    def on_start(self) -> None:
        if not self.run.step:
            self.first.append(np.asarray(self.run.state.params["encoder"]["embeddings"]["word"]))

    def after_step(self, step: int) -> None:
        if step == self._step:
            self._step = 0
            raise Spike(Window(step - 2, step, 9.0), 5.0, 10.0)


class StopAfter(SpikeAfter):
    """Stops the run at the n-th step instead."""

    def after_step(self, step: int) -> None:
        if step == self._step:
            self.run.stop()


@pytest.mark.long  # three runs
def test_recovery_from_step_0_rereads_the_initial_weights(tmp_path: Path) -> None:
    """The process resumed from a checkpoint after the spike's start, so it had not read the initial weights."""
    keys = {
        "data.sources": [f"lines:{write_corpus(tmp_path / 'corpus.txt', 60)}"],
        "data.root": str(tmp_path / "data"),
        "data.vocab_size": 200,
        "run_dir": str(tmp_path / "first"),
        **SIX_STEPS,
        "training.checkpoint_every": 100,
    }
    recipe = write_recipe(tmp_path)
    first = bertjax.pretrain(bertjax.recipe(recipe, keys))
    more = {"run_dir": str(tmp_path / "second"), "init_from": str(first.directory), "training.spike_deviations": 8.0}
    config = bertjax.recipe(recipe, keys | more)
    stop, spike = StopAfter(3), SpikeAfter(4)
    bertjax.pretrain(config, callbacks=[stop])
    bertjax.pretrain(config, callbacks=[spike])
    np.testing.assert_array_equal(*stop.first, *spike.first)


@pytest.mark.long  # three runs; the suite tests the decisions
def test_run_goes_back_and_skips_the_rows(recovered: tuple[Path, list[str]], job: Job, tmp_path: Path) -> None:
    run, lines = recovered
    assert any("the mean loss of steps 25 to 26 is" in line and "training.skips=('24+2',)" in line for line in lines)
    assert any(line.endswith("at step 24") for line in lines), lines
    for step in saved_steps(run):
        skips = read_metadata(run / DIRECTORY / str(step))["config"]["training"]["skips"]
        assert skips == (["24+2"] if step > 24 else []), step
    # The same bits and the same log, with each step once, as a run without these batches.
    train_alone(with_training(job, tmp_path, skips=("24+2",), spike_deviations=0.0))
    assert digests(run) == digests(tmp_path)
    assert losses(run) == losses(tmp_path)


@pytest.mark.long
def test_going_back_does_not_count_as_a_hang(job: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Waiting for the current save, and restoring, may take longer than any step."""
    activities: list[str] = []
    close = Checkpoints.close
    with alone() as processes:

        def note(*_: object) -> None:
            activities.append(processes.progress().activity)

        monkeypatch.setattr(Checkpoints, "close", lambda saved: (note(), close(saved)))
        outcome = train_job(with_training(job, tmp_path), processes, note)
    assert outcome.config.training.skips == ("24+2",)
    *recovery, end = activities
    assert recovery == [""] * 4 and end == "evaluation"


# Before the spike is detected; after it, before and after a save.
@pytest.mark.long
@pytest.mark.parametrize("after", [25, 28, 31])
def test_crash_during_recovery_ends_with_the_same_bits(
    after: int, recovered: tuple[Path, list[str]], job: Job, tmp_path: Path
) -> None:
    crashing = with_training(job, tmp_path)
    with pytest.raises(OSError, match="the disk is gone"):
        train_alone(crashing, callbacks=[Crash(after)])
    outcome = train_alone(crashing)
    assert outcome.config.training.skips == ("24+2",)
    assert digests(tmp_path) == digests(recovered[0])
    assert losses(tmp_path) == losses(recovered[0])


@pytest.mark.long
def test_spike_without_recovery_is_trained_through(job: Job, tmp_path: Path) -> None:
    train_alone(with_training(job, tmp_path, spike_deviations=0.0))
    curve = dict(losses(tmp_path))
    assert curve[26] > curve[24] + 1, "the wrong labels cause no spike"
    assert read_metadata(tmp_path)["config"]["training"]["skips"] == []
