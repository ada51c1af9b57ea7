"""Change the length of a run together with everything that scales with it.

A recipe's warm-up, decay, stages and periods are shares of its run. If only the length changes, the shape of the run
stays: the same shares of warm-up and decay, stages at the same points, a curve with as many points.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import replace
from typing import TypeVar

from bertjax.config.run import Config, OptimizerConfig, StageConfig

P = TypeVar("P", OptimizerConfig, StageConfig)

_LOG_LINES = 100  # about the most log lines of a shortened run


def rescale(config: Config, steps: int, user_keys: Collection[str] = ()) -> Config:
    """Set `training.steps`, and scale everything that depends on the number of steps.

    Warm-up, decay and stages keep their shares of the run. Periods become shorter with a shorter run, but not longer
    with a longer one, which reports as often and loses no more when it is interrupted. An evaluation costs the same in
    a run of any length, so evaluations and saves are never closer together than the steps that train on as many rows as
    one evaluation reads.

    The values of `user_keys`, dotted keys that the user set (`optimizer.warmup_steps`, `stages.0.start`, or `stages`
    for all of them), stay. Raises ValueError if there are fewer steps than stages.
    """
    if steps <= len(config.stages):
        raise ValueError(
            f"training.steps={steps:,} is too few for the {len(config.stages) + 1} stages of the recipe; train for "
            f"{len(config.stages) + 1} steps or more"
        )
    share = steps / config.training.steps
    stages = _scaled_stages(config, steps, share, user_keys)
    first = min([*(stage.start for stage in stages if stage.learning_rate is not None), steps])
    return replace(
        config,
        optimizer=replace(
            config.optimizer, **_without_keys(_scaled_lengths(config.optimizer, share, first), "optimizer", user_keys)
        ),
        training=replace(config.training, steps=steps, **_scaled_periods(config, steps, share, user_keys)),
        stages=stages,
    )


def with_lengths(config: Config, begun: Config, user_keys: Collection[str] = ()) -> Config:
    """Restore the warm-ups, decays and stage starts that a run began with, except for `user_keys`.

    Stages stay as they are if the run began with another number of them.
    """

    def restore(part: str, now: P, was: P, names: Sequence[str]) -> P:
        return replace(now, **{name: getattr(was, name) for name in names if f"{part}.{name}" not in user_keys})

    stages, lengths = config.stages, ("warmup_steps", "decay_steps")
    if len(stages) == len(begun.stages):
        pairs = enumerate(zip(stages, begun.stages, strict=True))
        stages = tuple(restore(f"stages.{number}", now, was, ("start", *lengths)) for number, (now, was) in pairs)
    return replace(config, optimizer=restore("optimizer", config.optimizer, begun.optimizer, lengths), stages=stages)


def keys_given(overrides: Sequence[str]) -> frozenset[str]:
    """The dotted keys that command-line overrides set: `--optimizer.warmup-steps 5` gives optimizer.warmup_steps."""
    words = (word[2:].partition("=")[0] for word in overrides if word.startswith("--"))
    return frozenset(word.replace("-", "_") for word in words)


def _scaled_periods(config: Config, steps: int, share: float, user_keys: Collection[str]) -> dict[str, int]:
    training = config.training
    closest = -(-training.eval_rows // training.global_batch_size)
    scaled = {
        "log_every": _period(training.log_every, share, max(steps // _LOG_LINES, 1)),
        "eval_every": _period(training.eval_every, share, closest),
        "checkpoint_every": _period(training.checkpoint_every, share, closest),
    }
    scaled = _without_keys(scaled, "training", user_keys)
    if training.keep_every and "training.keep_every" not in user_keys:
        # Scaled both ways, because these checkpoints are never deleted; must be a multiple of the period to have any.
        period = scaled.get("checkpoint_every", training.checkpoint_every)
        scaled["keep_every"] = nearest_multiple(round(training.keep_every * share), period)
    return scaled


def nearest_multiple(value: int, period: int) -> int:
    """The multiple of a period that is nearest to a value; at least the period itself."""
    return period * max(round(value / period), 1)


def _scaled_stages(config: Config, steps: int, share: float, user_keys: Collection[str]) -> tuple[StageConfig, ...]:
    """Scale the stages to keep their shares of the run; each has at least one step."""
    if "stages" in user_keys:
        return config.stages
    stages: list[StageConfig] = []
    for number, stage in enumerate(config.stages):
        if f"stages.{number}.start" in user_keys:
            stages.append(stage)
            continue
        before = stages[-1].start if stages else 0
        last = steps - (len(config.stages) - number)
        stages.append(replace(stage, start=min(max(round(stage.start * share), before + 1), last)))
    ends = [stage.start for stage in stages if stage.learning_rate is not None] + [steps]
    for number, stage in enumerate(stages):
        if stage.learning_rate is not None:
            length = min((end for end in ends if end > stage.start), default=stage.start + 1) - stage.start
            scaled = _scaled_lengths(stage, share, length)
            stages[number] = replace(stage, **_without_keys(scaled, f"stages.{number}", user_keys))
    return tuple(stages)


def _scaled_lengths(schedule: OptimizerConfig | StageConfig, share: float, length: int) -> dict[str, int]:
    """Scale warm-up and decay so that both fit into a schedule of `length` steps."""
    warmup = _length(schedule.warmup_steps or 0, share, length - 1)
    decay = _length(schedule.decay_steps or 0, share, length - warmup)
    scaled = {"warmup_steps": warmup, "decay_steps": decay}
    return {name: value for name, value in scaled.items() if getattr(schedule, name) is not None}


def _without_keys(scaled: dict[str, int], part: str, user_keys: Collection[str]) -> dict[str, int]:
    return {name: value for name, value in scaled.items() if f"{part}.{name}" not in user_keys}


def _length(value: int, share: float, most: int) -> int:
    """Scale a number of steps: at least 1 unless it was 0, and at most `most`."""
    return min(max(round(value * share), min(value, 1)), most)


def _period(value: int, share: float, closest: int) -> int:
    return min(value, max(round(value * share), closest))
