"""A run within a budget of time: how many steps fit, given what everything costs on this machine.

Everything is pure arithmetic here. `bertjax.run.rehearsal` measures the costs, `bertjax.run.timekeeper` reads
the clock and records what was decided.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace

from bertjax.config import Config
from bertjax.config.budget import seconds_of
from bertjax.config.rescale import rescale
from bertjax.run.progress import duration
from bertjax.training.stages import Stage, stages_of

AIM = 0.985  # share of the budget after which the command should end: late is worse than early
LEAST_STEPS = 10  # of the shortest run that is worth training
_MOST_STEPS = 1 << 40
_EVALUATING = 0.1  # share of the time that all evaluations may take, and likewise all saves
_LEAST_EVAL_ROWS = 256


@dataclass(frozen=True)
class Costs:
    """Seconds, as measured at one time: on a machine with other load everything slows down together."""

    pace: tuple[float, ...]  # of a step, by stage
    evaluation: tuple[float, ...]  # of one evaluation, by stage
    save: float  # of one checkpoint, the part that steps wait for
    ending: float  # from the end of the last save to the end of the command

    def slower(self, factor: float) -> Costs:
        """These costs when a step takes `factor` times as long.

        What happens a few times is slowed by the square root of `factor`: other load slows steps, which keep all cores
        busy, the most, and the rehearsal measured the machine under a similar load.
        """
        part = math.sqrt(factor)
        evaluations = tuple(one * part for one in self.evaluation)
        return Costs(tuple(one * factor for one in self.pace), evaluations, self.save * part, self.ending * part)


def seconds_left(config: Config, step: int, costs: Costs) -> float:
    """From a step of a run to the end of the command."""
    stages = stages_of(config)
    return seconds_between(config, stages, step, stages[-1].stop, costs) + costs.ending


def seconds_between(config: Config, stages: Sequence[Stage], first: int, last: int, costs: Costs) -> float:
    """For the steps from `first` to `last`, with the evaluations and saves after them."""
    total, training = 0.0, config.training
    for stage, pace, evaluation in zip(stages, costs.pace, costs.evaluation, strict=True):
        begins, ends = max(stage.start, first), min(stage.stop, last)
        if begins < ends:
            total += (ends - begins) * pace
            total += times_due(training.eval_every, begins, ends, stage.stop) * evaluation
            total += times_due(training.checkpoint_every, begins, ends, stage.stop) * costs.save
    return total


def times_due(period: int, first: int, last: int, stop: int) -> int:
    """How often a period is due after the steps from `first` to `last` of a stage that ends at `stop`."""
    return last // period - first // period + bool(last == stop and stop % period)


def most_steps(config_of: Callable[[int], Config], step: int, costs: Costs, seconds: float, least: int) -> int:
    """The largest number of steps, `least` or more, with which the command ends within `seconds` from a step on."""

    def fits(steps: int) -> bool:
        try:
            return seconds_left(config_of(steps), step, costs) <= seconds
        except ValueError:  # a stage or a warm-up has no room
            return True

    # Both bounds are found by doubling, so that every number tried is near the result.
    within, beyond = least, max(2 * least, 2)
    while fits(beyond) and beyond < _MOST_STEPS:
        within, beyond = beyond, 2 * beyond
    while beyond - within > 1:
        middle = (within + beyond) // 2
        within, beyond = (middle, beyond) if fits(middle) else (within, middle)
    return within


@dataclass(frozen=True)
class Budget:
    """The user's input: a length of time, the keys whose values they set, and the clock that is used."""

    text: str
    given: Collection[str] = ()
    clock: Callable[[], float] = time.monotonic  # seconds since the command began

    @property
    def seconds(self) -> float:
        """Of the whole command."""
        return seconds_of(self.text)

    def scheduled(self, config: Config, steps: int, costs: Costs) -> Config:
        """The recipe with that many steps: its shape of run, with as many evaluations and saves as time allows."""
        config = rescale(config, steps, self.given)
        training = config.training
        most = {
            "eval_every": max(int(_EVALUATING * self.seconds / max(costs.evaluation[-1], 1e-9)), 1),
            "checkpoint_every": max(int(_EVALUATING * self.seconds / max(costs.save, 1e-9)), 1),
        }
        # The last period ends half-way beyond the end: otherwise an end that moves a little later adds one more.
        periods = {
            name: max(getattr(training, name), math.ceil(steps / (count - 0.5)))
            for name, count in most.items()
            if f"training.{name}" not in self.given
        }
        return replace(config, training=replace(training, **periods))

    def affordable(self, config: Config, costs: Costs) -> tuple[Config, Costs]:
        """The recipe with fewer rows in an evaluation, if the one at the end alone would take too long."""
        rows, allowed = config.training.eval_rows, _EVALUATING * self.seconds
        if costs.evaluation[-1] <= allowed or "training.eval_rows" in self.given:
            return config, costs
        batch = config.training.global_batch_size
        fewer = int(rows * allowed / costs.evaluation[-1]) // batch * batch
        fewer = min(rows, max(fewer, batch, _LEAST_EVAL_ROWS))
        less = tuple(seconds * fewer / rows for seconds in costs.evaluation)
        return replace(config, training=replace(config.training, eval_rows=fewer)), replace(costs, evaluation=less)

    def decide(self, config: Config, costs: Costs, spent: float) -> tuple[Config, Costs]:
        """The config of the run that ends in the budget, after `spent` seconds, and what its parts cost.

        Raises ValueError if hardly a step fits, or if the values that the user set do not fit the number of steps.
        """
        recipe, costs = self.affordable(config, costs)
        least = max(LEAST_STEPS, len(config.stages) + 1)
        seconds = AIM * self.seconds - spent
        steps = most_steps(lambda steps: self.scheduled(recipe, steps, costs), 0, costs, seconds, least)
        chosen = self.scheduled(recipe, steps, costs)
        stages_of(chosen)
        if (needed := seconds_left(chosen, 0, costs)) > seconds and steps == least:
            enough = 1.1 * (spent + needed) / AIM
            raise ValueError(
                f"training.budget={self.text!r} is too short: {duration(spent)} were used for the start, text and "
                f"compilation, and {steps} steps with evaluation, report and export need {duration(needed)}; give "
                f"{_rounded_up(enough)} or more"
            )
        return chosen, costs


def _rounded_up(seconds: float) -> str:
    return f"{-(-int(seconds) // 10) * 10}s" if seconds < 300 else f"{int(seconds) // 60 + 1}m"


def moved(config: Config, step: int, end: int) -> Config:
    """The config of a run whose end is moved to `end` at `step`. Raises ValueError as `stages_of` does."""
    replans = (*config.training.replans, f"{step}:{end}")
    changed = replace(config, training=replace(config.training, replans=replans))
    stages_of(changed)
    return changed
