"""A budget of time in figures: what fits, what a moved end does to schedule and stages, and what is refused."""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction

import jax
import jax.numpy as jnp
import pytest

from bertjax.config import (
    Config,
    DataConfig,
    OptimizerConfig,
    StageConfig,
    TrainingConfig,
    from_dict,
    to_dict,
    validate,
)
from bertjax.config.budget import seconds_of
from bertjax.run.budget import AIM, Budget, Costs, most_steps, moved, seconds_between, seconds_left
from bertjax.training.course import Course
from bertjax.training.stages import stages_of

SCHEDULES = ["linear", "linear_after_warmup", "polynomial", "cosine", "warmup_stable_decay"]


def config(*stages: StageConfig, steps: int = 1000, **optimizer: object) -> Config:
    stable = optimizer.get("schedule") == "warmup_stable_decay"
    return Config(
        data=DataConfig(sequence_length=128, max_predictions=20),
        training=TrainingConfig(steps=steps, global_batch_size=32, eval_rows=1_024, eval_every=200),
        optimizer=OptimizerConfig(**{"warmup_steps": 100, "decay_steps": 300 * stable, **optimizer}),
        stages=stages,
    )


def rates(run: Config, steps: range) -> list[float]:
    """The learning rate of each step, by the stage that it is in."""
    jitted = [(stage, jax.jit(stage.schedule())) for stage in stages_of(run)]
    return [float(next(rate for stage, rate in jitted if step < stage.stop)(jnp.int32(step))) for step in steps]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90s", 90), ("10m", 600), ("2h", 7_200), ("1d", 86_400), ("1h30m", 5_400), ("1.5h", 5_400), ("1d2h3m4s", 93_784)],
)
def test_lengths_of_time(text: str, seconds: float) -> None:
    assert seconds_of(text) == seconds
    assert validate(replace(config(), training=replace(config().training, budget=text)))


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
def test_other_texts_are_refused_before_anything_else(text: str, message: str) -> None:
    with pytest.raises(ValueError, match=rf"training.budget='{text}'.*{message}"):
        validate(replace(config(), training=replace(config().training, budget=text)))


def test_a_course_ends_its_plan_where_the_run_ends() -> None:
    course = Course(1000, ((300, 1400), (500, 800)))
    assert course.end == 800
    assert course.pieces[1].pace == Fraction(700, 1100)
    assert course.pieces[2].position == 300 + 200 * Fraction(700, 1100)
    assert course.pieces[2].position_of(800) == 1000
    assert [course.step_of(position) for position in (0, 299, 300, 1000)] == [0, 299, 300, 800]
    for position in range(1001):
        step = course.step_of(position)
        piece = [piece for piece in course.pieces if piece.start <= max(step - 1, 0)][-1]
        assert step == 0 or piece.position_of(step - 1) < position <= piece.position_of(step)


def test_a_course_on_the_device_is_the_exact_one() -> None:
    course = Course(1000, ((300, 1400), (500, 800)))
    position = jax.jit(course.position)
    for step in range(801):
        exact = [piece for piece in course.pieces if piece.start <= step][-1].position_of(step)
        assert float(position(jnp.int32(step))) == pytest.approx(float(exact), rel=3e-7, abs=0)


@pytest.mark.parametrize("schedule", SCHEDULES)
def test_a_moved_end_stretches_the_rest_of_the_schedule(schedule: str) -> None:
    plan = config(schedule=schedule)
    run = moved(plan, 400, 700)
    assert stages_of(run)[-1].stop == 700
    assert rates(run, range(400)) == rates(plan, range(400))
    stretched = rates(run, range(400, 700))
    assert stretched[0] == rates(plan, range(400, 401))[0]
    # Each of the 300 steps goes two of the plan's 600.
    assert stretched == pytest.approx(rates(plan, range(400, 1000, 2)), rel=1e-5)


def test_later_records_leave_earlier_steps_as_they_are() -> None:
    once = moved(config(schedule="cosine"), 300, 1477)
    twice = moved(moved(once, 700, 911), 800, 1003)
    assert rates(twice, range(700)) == rates(once, range(700))
    assert stages_of(twice)[-1].stop == 1003


def test_stages_move_with_the_end_until_they_have_begun() -> None:
    plan = config(
        StageConfig(start=600, sequence_length=64), StageConfig(start=900, learning_rate=3e-4, warmup_steps=9)
    )
    early, late = moved(plan, 400, 700), moved(plan, 700, 1600)
    assert [(stage.start, stage.stop) for stage in stages_of(early)] == [(0, 500), (500, 650), (650, 700)]
    assert [(stage.start, stage.stop) for stage in stages_of(late)] == [(0, 600), (600, 1300), (1300, 1600)]
    assert rates(late, range(1300, 1600, 3)) == pytest.approx(rates(plan, range(900, 1000)), rel=1e-5)
    assert from_dict(to_dict(late)) == late


@pytest.mark.parametrize(
    ("replans", "message"),
    [
        (("500",), r"training.replans='500': give STEP:STEPS"),
        (("500:400",), r"'500:400' does not follow '0:1000'"),
        (("1000:1200",), r"'1000:1200' does not follow '0:1000'"),
        (("500:700", "400:900"), r"'400:900' does not follow '500:700'"),
        (("500:700", "700:900"), r"'700:900' does not follow '500:700'"),
    ],
)
def test_records_that_cannot_be_are_refused(replans: tuple[str, ...], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        stages_of(replace(config(), training=replace(config().training, replans=replans)))


def test_a_stage_without_steps_is_refused() -> None:
    plan = config(StageConfig(start=990, sequence_length=64), StageConfig(start=991, sequence_length=32))
    with pytest.raises(ValueError, match="leave a stage without steps"):
        moved(plan, 980, 982)


def test_the_time_that_is_left_is_counted_event_by_event() -> None:
    run = config(StageConfig(start=600, sequence_length=64), steps=1050)
    run = replace(run, training=replace(run.training, checkpoint_every=300))
    costs = Costs(pace=(0.5, 0.25), evaluation=(7.0, 5.0), save=2.0, ending=11.0)
    for first, last in [(first, 1050) for first in (0, 1, 199, 200, 599, 600, 601, 1049)] + [(150, 599), (150, 600)]:
        total = 0.0
        for step in range(first, last):
            second = step >= 600
            stop = 1050 if second else 600
            total += costs.pace[second]
            total += costs.evaluation[second] * ((step + 1) % 200 == 0 or step + 1 == stop)
            total += costs.save * ((step + 1) % 300 == 0 or step + 1 == stop)
        assert seconds_between(run, stages_of(run), first, last, costs) == pytest.approx(total)
        assert last < 1050 or seconds_left(run, first, costs) == pytest.approx(total + costs.ending)


@pytest.mark.parametrize("seconds", [40.0, 100.0, 1234.5, 80_000.0])
def test_one_step_more_would_not_fit(seconds: float) -> None:
    recipe, budget = config(), Budget("1d", {"training.eval_every", "training.checkpoint_every"})
    costs = Costs(pace=(0.31,), evaluation=(2.0,), save=1.0, ending=9.0)

    def planned(steps: int) -> Config:
        return budget.scheduled(recipe, steps, costs)

    steps = most_steps(planned, 0, costs, seconds, 10)
    assert seconds_left(planned(steps), 0, costs) <= seconds < seconds_left(planned(steps + 1), 0, costs)


def test_a_budget_scales_the_recipe_and_limits_what_is_no_training() -> None:
    recipe = config(steps=30_000)
    costs = Costs(pace=(0.3,), evaluation=(20.0,), save=3.0, ending=8.0)
    run, of_run = Budget("5m").decide(recipe, costs, spent=40.0)
    assert 250 < run.training.steps < 30_000
    assert run.optimizer.warmup_steps == round(100 * run.training.steps / 30_000)
    evaluations = -(-run.training.steps // run.training.eval_every)
    assert evaluations * of_run.evaluation[0] <= 0.1 * 300 + 1e-9
    assert AIM * 300 - 1 < 40.0 + seconds_left(run, 0, of_run) <= AIM * 300


def test_the_last_evaluation_has_fewer_rows_where_it_would_take_the_budget() -> None:
    costs = Costs(pace=(0.3,), evaluation=(60.0,), save=1.0, ending=5.0)
    run, of_run = Budget("2m").decide(config(), costs, spent=30.0)
    assert run.training.eval_rows == 256 and of_run.evaluation == (15.0,)
    kept, of_kept = Budget("3m", {"training.eval_rows"}).decide(config(), costs, spent=30.0)
    assert kept.training.eval_rows == 1_024 and of_kept == costs


def test_an_end_that_is_moved_on_has_no_further_evaluation_where_only_one_fits() -> None:
    costs = Costs(pace=(0.3,), evaluation=(29.0,), save=1.0, ending=5.0)
    run, costs = Budget("5m").decide(config(steps=30_000), costs, spent=30.0)
    longer = moved(run, 100, run.training.steps + run.training.steps // 3)
    alone = replace(costs, pace=(0.0,), save=0.0, ending=0.0)
    assert seconds_left(run, 0, alone) == seconds_left(longer, 0, alone) == 29.0


def test_what_the_user_set_stays() -> None:
    given = {"optimizer.warmup_steps", "training.eval_every", "training.checkpoint_every"}
    run, _ = Budget("5m", given).decide(config(steps=30_000), Costs((0.3,), (1.0,), 1.0, 8.0), spent=40.0)
    assert (run.optimizer.warmup_steps, run.training.eval_every) == (100, 200)
    assert run.training.checkpoint_every == TrainingConfig.checkpoint_every
    with pytest.raises(ValueError, match=r"optimizer.warmup_steps=100 must be below training.steps=\d+"):
        Budget("1m", given).decide(config(steps=30_000), Costs((0.5,), (1.0,), 1.0, 8.0), spent=20.0)


def test_a_budget_that_is_too_short_says_how_long_it_must_be() -> None:
    costs = Costs(pace=(2.0,), evaluation=(10.0,), save=2.0, ending=10.0)
    with pytest.raises(ValueError, match=r"training.budget='1m' is too short: 40 s were used .* give 90s or more"):
        Budget("1m").decide(config(), costs, spent=40.0)
    run, _ = Budget("90s").decide(config(), costs, spent=40.0)
    assert run.training.steps >= 10
