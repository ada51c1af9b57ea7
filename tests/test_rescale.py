"""Recipes at other numbers of steps keep their shares and the user's values, and remain valid."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bertjax.config import Config, OptimizerConfig, StageConfig, TrainingConfig, differences, load_recipe, override
from bertjax.config.rescale import keys_given, rescale
from bertjax.training.stages import make_stages

CONFIGS = Path(__file__).parents[1] / "configs"


def recipe(name: str) -> Config:
    return load_recipe(CONFIGS / name)


def changed(config: Config, base: Config) -> dict:
    return {key: new for key, (_, new) in differences(config, base).items()}


def test_rescale_to_the_same_steps_changes_nothing() -> None:
    for name in ("quickstart.py", "bert_mini.py", "bert_base.py", "lamb.py"):
        config = recipe(name)
        assert rescale(config, config.training.steps) == config


def test_shorter_run_keeps_its_shares() -> None:
    config = recipe("quickstart.py")  # 2,400 steps
    assert changed(rescale(config, 240), config) == {
        "training.steps": 240,
        "optimizer.warmup_steps": 20,
        "training.log_every": 5,
        "training.eval_every": 120,
        "training.checkpoint_every": 60,
    }


def test_longer_run_reports_and_saves_as_often() -> None:
    config = recipe("quickstart.py")
    assert changed(rescale(config, 24_000), config) == {"training.steps": 24_000, "optimizer.warmup_steps": 2_000}


def test_short_run_is_not_dominated_by_evaluations() -> None:
    """In 30 steps, the same share would evaluate 8,192 rows after every second step of 32 rows."""
    config = rescale(recipe("bert_mini.py"), 30)
    assert config.training.eval_every == config.training.checkpoint_every == 8_192 // 32
    assert config.optimizer.warmup_steps == 1
    assert config.training.log_every == 1


def test_stages_keep_starts_and_checkpoints_their_number() -> None:
    config = rescale(recipe("bert_base.py"), 10_000)  # 1,000,000 steps, the second stage from 900,000 on
    assert [stage.start for stage in config.stages] == [9_000]
    assert (config.optimizer.warmup_steps, config.training.checkpoint_every) == (100, 50)
    assert config.training.keep_every == 1_000


def test_keep_every_is_a_multiple_of_checkpoint_every() -> None:
    config = rescale(recipe("bert_base.py"), 123_457)
    assert config.training.keep_every % config.training.checkpoint_every == 0
    assert rescale(recipe("bert_base.py"), 3_000_000).training.keep_every == 300_000


def test_each_schedule_keeps_its_share_of_warmup() -> None:
    config = rescale(recipe("lamb.py"), 860)  # a tenth; the second schedule begins at 7,038 and warms up for 200
    assert config.optimizer.warmup_steps == 200
    assert [(stage.start, stage.warmup_steps) for stage in config.stages] == [(704, 20)]


def test_decay_steps_keep_their_share() -> None:
    config = Config(
        optimizer=OptimizerConfig(schedule="warmup_stable_decay", warmup_steps=10, decay_steps=200),
        training=TrainingConfig(steps=1_000),
    )
    assert rescale(config, 300).optimizer.decay_steps == 60
    assert rescale(replace(config, optimizer=OptimizerConfig(warmup_steps=10)), 300).optimizer.decay_steps == 0


def test_decay_steps_of_a_stage_keep_their_share() -> None:
    config = rescale(recipe("modernbert.py"), 5_000)
    whole = recipe("modernbert.py")
    share = whole.stages[-1].decay_steps / whole.training.steps
    assert config.stages[-1].decay_steps == round(5_000 * share) > 50
    assert rescale(whole, 5_000, {f"stages.{len(whole.stages) - 1}.decay_steps"}).stages[-1] == replace(
        config.stages[-1], decay_steps=whole.stages[-1].decay_steps
    )


def test_rescale_keeps_the_users_values() -> None:
    words = ["--optimizer.warmup-steps", "7", "--training.eval_every=9", "--stages.0.start", "100", "--name", "x"]
    keys = keys_given(words)
    assert keys == {"optimizer.warmup_steps", "training.eval_every", "stages.0.start", "name"}
    config = override(recipe("lamb.py"), words, "bertjax pretrain configs/lamb.py")
    now = rescale(config, 860, keys)
    assert (now.optimizer.warmup_steps, now.training.eval_every, now.stages[0].start) == (7, 9, 100)
    assert (now.stages[0].warmup_steps, now.training.checkpoint_every) == (20, 20)


def test_rescale_keeps_the_users_stages() -> None:
    """As set in Python by `bertjax.recipe("bert_base", {"stages": ..., "training.steps": 800})`."""
    config = Config(training=TrainingConfig(steps=8_000), stages=(StageConfig(start=700, sequence_length=64),))
    assert rescale(config, 800, {"stages"}).stages == config.stages
    assert rescale(config, 800).stages[0].start == 70


def test_stage_beyond_the_end_is_refused() -> None:
    config = rescale(recipe("lamb.py"), 860, {"stages.0.start"})
    with pytest.raises(ValueError, match=r"training.steps=860 is not after stages.0.start"):
        make_stages(config)


@pytest.mark.parametrize("name", sorted(path.name for path in CONFIGS.glob("*.py")))
def test_every_recipe_is_valid_at_every_length(name: str) -> None:
    config = recipe(name)
    for steps in [*range(len(config.stages) + 1, 40), 99, 1_000, 54_321, 10_000_000]:
        stages = make_stages(rescale(config, steps))
        assert stages[-1].stop == steps and len(stages) == len(config.stages) + 1


def test_stages_stay_a_step_apart_in_a_short_run() -> None:
    """Stages that would coincide stay a step apart; with too few steps for all stages, the recipe is refused."""
    stages = tuple(StageConfig(start=start, learning_rate=1e-4, warmup_steps=3) for start in (90, 91, 99))
    config = Config(optimizer=OptimizerConfig(warmup_steps=10), training=TrainingConfig(steps=100), stages=stages)
    assert [stage.start for stage in rescale(config, 4).stages] == [1, 2, 3]
    assert [stage.warmup_steps for stage in rescale(config, 4).stages] == [0, 0, 0]
    assert [stage.start for stage in rescale(config, 20).stages] == [17, 18, 19]
    with pytest.raises(ValueError, match=r"training.steps=3 is too few for the 4 stages"):
        rescale(config, 3)
