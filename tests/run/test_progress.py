"""Progress prints few plain lines with an ETA; on a terminal it shows a live line."""

import io

import pytest

from bertjax.config import load_recipe
from bertjax.run.job import RunStage
from bertjax.run.progress import Progress, duration, long_run_warning, seconds_between_lines
from bertjax.run.train_job import steps_left
from bertjax.training.stages import make_stages


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


class Terminal(io.StringIO):
    def isatty(self):
        return True


def run(total, seconds_per_unit, **settings):
    clock, stream = Clock(), io.StringIO()
    with Progress(total, "pretrain", stream=stream, clock=clock, **settings) as progress:
        for done in range(progress._done + 1, total + 1):
            clock.now += seconds_per_unit
            progress.update(message=f"loss {done}")
    return stream.getvalue().splitlines()


def test_progress_prints_by_units_by_minute_and_at_the_end():
    assert run(10, 2.0, every=4) == [
        "pretrain  4 / 10 steps (40%)  0.5 step/s  ETA 12 s  loss 4",
        "pretrain  10 / 10 steps (100%)  loss 10",
    ]
    assert run(10, 30.0, every=2)[1].startswith("pretrain  4 / 10 steps"), "one line a minute"


def test_progress_prints_the_last_line_once():
    assert len(run(8, 20.0, every=4)) == 2


def test_line_waits_for_figures_but_not_forever():
    clock, stream = Clock(), io.StringIO()
    progress = Progress(100, "pretrain", stream=stream, clock=clock, every=10, every_seconds=5.0)
    for done in range(1, 31):
        clock.now += 1.0
        progress.update()
        if done in (1, 10):
            progress.update(0, f"loss of {done}")
    assert stream.getvalue().splitlines() == [
        "pretrain  10 / 100 steps (10%)  1 step/s  ETA 1 min 30 s  loss of 10",
        "pretrain  30 / 100 steps (30%)  1 step/s  ETA 1 min 10 s  loss of 10",
    ]


def test_progress_counts_from_the_resumed_step():
    first, *_ = run(100, 1.0, initial=50, every=10)
    assert first == "pretrain  60 / 100 steps (60%)  1 step/s  ETA 40 s  loss 60"


def test_eta_excludes_compilation_before_the_first_update():
    clock, stream = Clock(), io.StringIO()
    progress = Progress(100, "pretrain", stream=stream, clock=clock, every=11)
    clock.now = 60.0
    progress.update()
    for _ in range(10):
        clock.now += 1.0
        progress.update(message="")
    assert "ETA 1 min 29 s" in stream.getvalue()


def test_eta_includes_later_stages_with_longer_steps():
    """Ten steps of one second, a minute of compilation, ten steps of four seconds."""
    clock, stream = Clock(), io.StringIO()
    units_left = lambda done: 10 - done + 10 * 4 if done <= 10 else 20 - done  # noqa: E731
    progress = Progress(20, "pretrain", stream=stream, clock=clock, every=5, every_seconds=1.0, units_left=units_left)
    for done in range(1, 21):
        if done in (1, 11):
            progress.restart()
            clock.now += 60.0
        clock.now += 1.0 if done <= 10 else 4.0
        progress.update(message="")
    etas = [line.split("ETA ")[1].strip() for line in stream.getvalue().splitlines()[:-1]]
    assert etas == ["45 s", "40 s", "20 s"]


def test_steps_left_weights_stages_by_flops():
    stages = make_stages(load_recipe("bert_base"))  # 900,000 steps of 128 tokens, 100,000 of 512
    run_stages = tuple(
        RunStage(**vars(stage), train_step=None, batches=None, evaluation=None, flops_per_token=flops)
        for stage, flops in zip(stages, (5.0, 6.0), strict=True)
    )
    assert steps_left(run_stages, 0) == 900_000 + 100_000 * 4 * 6 / 5
    assert steps_left(run_stages, 900_000) == 100_000 * 4 * 6 / 5  # the last step was short
    assert steps_left(run_stages, 900_001) == 99_999


def test_progress_without_every_is_throttled_by_time():
    lines = run(1000, 0.125, unit="MB")
    assert [line.partition(" /")[0] for line in lines] == ["pretrain  80", "pretrain  560", "pretrain  1,000"]
    assert lines[0].startswith("pretrain  80 / 1,000 MB (8%)  8 MB/s  ETA 1 min 55 s")
    assert run(10, 0.5, unit="MB") == [], "no lines for five seconds of work"


def test_terminal_has_a_live_line_with_eta_below_notes():
    clock, stream = Clock(), Terminal()
    with Progress(20, "train", stream=stream, clock=clock, every=5) as progress:
        for _ in range(5):
            clock.now += 2.0
            progress.update(message="loss 3")
        progress.note("hello")
        progress.update(15)
    text = stream.getvalue()
    assert "train  5 / 20 steps (25%)  0.5 step/s  ETA 30 s  loss 3  10 s" in text
    assert "\r\033[Khello\n" in text and text.endswith("train  20 / 20 steps (100%)  loss 3\n")
    assert text.count("\n") == 2


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0.4, "0 s"),
        (59.6, "1 min 00 s"),
        (725, "12 min 05 s"),
        (12_000, "3 h 20 min"),
        (187_200, "2 d 4 h"),
        (1e8, "3.2 years"),
    ],
)
def test_duration_uses_readable_units(seconds, text):
    assert duration(seconds) == text


def test_eta_includes_remaining_evaluations():
    """Ten steps of one second, then an evaluation; until one is measured, its time is estimated from the steps."""
    clock, stream = Clock(), io.StringIO()
    pauses_left = lambda done: 10 - done // 10  # noqa: E731
    progress = Progress(100, "pretrain", stream=stream, clock=clock, every=10, pauses_left=pauses_left, pause_units=3.0,
                        every_seconds=1.0)  # fmt: skip
    clock.now = 60.0
    for done in range(1, 51):
        clock.now += 1.0
        progress.update()
        if done % 10 == 0:
            progress.update(0, "")
            with progress.pause():
                clock.now += 20.0
    etas = [line.split("ETA ")[1].strip() for line in stream.getvalue().splitlines()]
    # 90 steps and 9 pauses of 3 s; then 80 steps and 8 pauses of 20 s, and so on
    assert etas == ["1 min 57 s", "4 min 00 s", "3 min 30 s", "3 min 00 s", "2 min 30 s"]
    assert all("1 step/s" in line for line in stream.getvalue().splitlines())


def test_rate_excludes_a_pause_before_the_first_update():
    clock, stream = Clock(), io.StringIO()
    progress = Progress(20, "pretrain", stream=stream, clock=clock, every=5)
    with progress.pause():
        clock.now += 100.0
    for _ in range(5):
        clock.now += 2.0
        progress.update(message="")
    assert stream.getvalue() == "pretrain  5 / 20 steps (25%)  0.5 step/s  ETA 30 s\n"


def test_long_run_warning_gives_advice() -> None:
    assert long_run_warning(24 * 89, 10) == ""
    assert long_run_warning(874_452, 1_000_000) == (
        "Warning: training.steps=1,000,000 takes 99.8 years; lower training.steps, set training.budget, train a "
        "smaller model (recipe bert_mini or bert_one_gpu), or use a faster machine"
    )


def test_period_of_lines_comes_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("BERTJAX_LINE_EVERY", "2.5")
    assert seconds_between_lines() == 2.5
    monkeypatch.setenv("BERTJAX_LINE_EVERY", "often")
    with pytest.raises(ValueError, match="BERTJAX_LINE_EVERY='often' in the environment: give a number of seconds"):
        seconds_between_lines()
