"""The timekeeper of a run within a budget: it decides how many steps the run has, and moves the end during training.

Decisions are written to `budget.json` in the run's directory before they take effect. The first decision is a
config, that of `--training.steps N` with the same recipe; every later one is a record in `training.replans`. A resumed
run reads them, decides nothing more, and so ends at the same step, with the same bits.
"""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from typing import Any

from bertjax.config import Config, differences, from_dict, to_dict
from bertjax.run.budget import AIM, Budget, Costs, most_steps, moved, seconds_between, seconds_left, times_due
from bertjax.run.checkpoint import saved_steps
from bertjax.run.earlier_runs import expected_loss, loss_name
from bertjax.run.job import Job, rescheduled
from bertjax.run.progress import duration
from bertjax.run.rehearsal import Ending, rehearse
from bertjax.run.run_directory import write_config
from bertjax.runtime.processes import Processes
from bertjax.storage.files import write_durably
from bertjax.storage.progress import SIGNS
from bertjax.storage.remote import AnyPath, path_of
from bertjax.training.course import parse_replan
from bertjax.training.stages import stages_of

FILE = "budget.json"  # in a run's directory

_MEASURING = 0.03  # share of the budget for steps that are only measured, and at most so many seconds
_LONGEST_MEASURE = 120.0
_CHECKS = 8  # the end is reconsidered after each eighth of the steps that are left
_CLOSEST = 0.01  # share of the budget between two checks, and before the end
_SHORTEST_VIEW = 0.1  # share of the budget that the measured slowness covers at least
_ENOUGH = 0.003  # share of the budget by which the end may be off before it is moved
_REPORTED = 0.05  # change of the number of steps that is reported, as a share

_IMPORTED = time.monotonic()


def seconds_of_this_process() -> float:
    """Seconds since this process was started; where the system does not report it, since this module was imported."""
    try:
        with open("/proc/self/stat", encoding="utf-8") as file:
            ticks = int(file.read().rpartition(")")[2].split()[19])
        return time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, AttributeError, ValueError):
        return time.monotonic() - _IMPORTED


@dataclass(frozen=True)
class Decision:
    """The contents of `budget.json`."""

    budget: str
    settings: dict[str, Any]  # dotted key -> value, where the run differs from its recipe
    replans: tuple[str, ...]  # as training.replans
    about: dict[str, Any]  # the costs and the time that was spent when it was decided; for people

    def config_at(self, recipe: Config, step: int) -> Config:
        """The recipe as the run has it from a step on."""
        config = self._begun(recipe)
        done = tuple(f"{at}:{end}" for at, end in self.records if at <= step)
        return replace(config, training=replace(config.training, replans=done))

    @property
    def records(self) -> list[tuple[int, int]]:
        """Where the end was moved, and where to."""
        return [parse_replan(record) for record in self.replans]

    def _begun(self, recipe: Config) -> Config:
        values = to_dict(recipe)
        for key, value in self.settings.items():
            *parents, last = key.split(".")
            inner = values
            for name in parents:
                inner = inner[name]
            inner[last] = value
        return from_dict(values)

    def write(self, directory: AnyPath) -> None:
        """Write it, so that it survives a crash."""
        write_durably(directory / FILE, (json.dumps(asdict(self), indent=2) + "\n").encode())


def read_decision(directory: AnyPath) -> Decision | None:
    """The decision of the run in a directory; None if it has no budget. Raises ValueError for an invalid file."""
    path = directory / FILE
    if not path.exists():
        return None
    try:
        return _parsed(path.read_text(encoding="utf-8"))
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise ValueError(f"{path}: it is not a record of a budget ({error}); put the original back") from error


def begun_within(budget: str, directory: AnyPath) -> Decision:
    """The decision of a run that has begun. Raises ValueError if it was begun without a budget, or with another one."""
    found = read_decision(directory)
    if found is None:
        raise ValueError(
            f"training.budget={budget!r}: the run in {directory} was begun without a budget; continue with the steps "
            "that it was begun with, or give the new run a directory of its own (--run-dir)"
        )
    if found.budget != budget:
        raise ValueError(
            f"training.budget={budget!r}: the run in {directory} was begun with {found.budget}; give that budget to "
            "go on, or give the new run a directory of its own (--run-dir)"
        )
    return found


def as_begun(config: Config) -> Config:
    """The config of the run in the directory, if that has begun within a budget. Raises as `begun_within`."""
    directory = path_of(config.directory)
    saved = saved_steps(directory) if config.training.budget else []
    return begun_within(config.training.budget, directory).config_at(config, saved[-1]) if saved else config


def _parsed(text: str) -> Decision:
    values = json.loads(text)
    return Decision(**values | {"replans": tuple(values["replans"])})


class Timekeeper:
    """Of one run, in every process; the clock that counts is that of the first."""

    def __init__(
        self,
        budget: Budget,
        processes: Processes,
        end: Ending,
        say: Callable[[str], None],
    ) -> None:
        """`end` is what the command does after training."""
        self._budget, self._processes, self._end, self._say, self._clock = budget, processes, end, say, budget.clock
        self._directory: AnyPath | None = None
        self._decision: Decision | None = None
        self._recorded: dict[int, int] = {}
        self._costs: Costs | None = None  # while the end may still be moved
        self._marks: list[tuple[int, float]] = []  # steps, and the clock when they began
        self._next = -1
        self._reported_end = 0

    def schedule(self, job: Job, directory: AnyPath, saved: list[int]) -> Job:
        """The job with the steps that fit, or with those that were decided when the run began."""
        self._directory = directory
        newest = int(self._agree("newest checkpoint", str(saved[-1] if saved else 0)))
        return self._resume(job, newest) if newest else self._decide(job)

    def at(self, job: Job, step: int) -> Job:
        """The job as it is from a step on, where the run begins or resumes; later records wait for their step."""
        assert self._decision is not None, "scheduled before"
        self._recorded = {at: end for at, end in self._decision.records if at > step}
        job = rescheduled(job, self._decision.config_at(job.config, step))
        self._reported_end = job.stages[-1].stage.stop
        return job

    def begin(self, job: Job, step: int) -> None:
        """The first step of this process is next, and the directory is this run's."""
        if self._costs is not None:
            assert self._decision is not None and self._directory is not None
            if self._processes.first:
                self._decision.write(self._directory)
            self._marks = [(step, self._clock())]
            self._next = self._next_check(job, step, self._costs)

    def reconsider(self, job: Job, step: int) -> Job | None:
        """The job with another end from this step on, if it has one: all processes call it after every step."""
        if step in self._recorded:
            return rescheduled(job, moved(job.config, step, self._recorded.pop(step)))
        if step != self._next:
            return None
        with self._processes.taking_time():
            words = json.dumps(self._check(job, step)) if self._processes.first else ""
            end, self._next = json.loads(self._agree("end of the run", words))
        if end == job.stages[-1].stage.stop:
            return None
        config = moved(job.config, step, end)
        assert self._decision is not None and self._directory is not None
        self._decision = replace(self._decision, replans=config.training.replans)
        if self._processes.first:
            self._decision.write(self._directory)
            write_config(self._directory, config)
        return rescheduled(job, config)

    def news(self, job: Job, step: int) -> str:
        """The message about a moved end; empty if it hardly moved since the last message."""
        end = job.stages[-1].stage.stop
        if abs(end - self._reported_end) < _REPORTED * self._reported_end:
            return ""
        slower, self._reported_end = end < self._reported_end, end
        return (
            f"step {step:,}: the machine is {'slower' if slower else 'faster'} than before; to end in "
            f"{self._budget.text} the run now has {end:,} steps"
        )

    def _agree(self, what: str, words: str) -> str:
        return self._processes.gather(what, words)[0]

    def _resume(self, job: Job, newest: int) -> Job:
        assert self._directory is not None
        words = ""
        if self._processes.first:
            words = json.dumps(asdict(begun_within(self._budget.text, self._directory)))
        self._decision = _parsed(self._agree("the run's budget", words))
        job = self.at(job, newest)
        end = max([job.stages[-1].stage.stop, *list(self._recorded.values())[-1:]])
        self._say(f"budget: {end:,} steps were decided when the run began; a resumed run keeps its end")
        return job

    def _decide(self, job: Job) -> Job:
        """Measure and decide; the same for all processes, from the measurements of the first."""
        assert self._directory is not None
        budget, stepping = self._budget, min(_MEASURING * self._budget.seconds, _LONGEST_MEASURE)
        self._say(
            f"budget: {duration(budget.seconds)}, {duration(self._clock())} used so far; measuring a few "
            "steps, an evaluation, a checkpoint and an export, which are discarded"
        )
        with SIGNS.doing("measuring the machine for the budget"):
            costs = rehearse(job, self._directory, stepping, self._processes, self._end)
        words = ""
        if self._processes.first:
            spent = self._clock()
            config, costs = budget.decide(job.config, costs, spent)
            settings = {key: new for key, (_, new) in differences(config, job.config).items()}
            about = {"costs": asdict(costs), "spent": spent}
            words = json.dumps(asdict(Decision(budget.text, settings, (), about)))
        self._decision = _parsed(self._agree("steps of the budget", words))
        costs_of = self._decision.about["costs"]
        self._costs = Costs(
            tuple(costs_of["pace"]), tuple(costs_of["evaluation"]), costs_of["save"], costs_of["ending"]
        )
        job = self.at(job, 0)
        self._say(self._schedule_summary(job))
        if self._processes.first and (
            expected := expected_loss(job.metadata, job.config.training.steps, self._directory)
        ):
            self._say(f"budget: {loss_name(job.metadata['config'])} to expect at the end: {expected}")
        return job

    def _schedule_summary(self, job: Job) -> str:
        assert self._decision is not None and self._costs is not None
        costs, stages, training = self._costs, stages_of(job.config), job.config.training
        evaluations = sum(times_due(training.eval_every, one.start, one.stop, one.stop) for one in stages)
        paces = ", then ".join(f"{pace:.3g} s" for pace in costs.pace)
        settings = ", ".join(f"{key} {value}" for key, value in self._decision.settings.items() if key != "stages")
        starts = "".join(f", stages.{stage.number - 1}.start {stage.start}" for stage in stages[1:])
        return (
            f"budget: {stages[-1].stop:,} steps of {paces} each, {evaluations} evaluation(s) of {training.eval_rows:,} "
            f"rows in {duration(costs.evaluation[-1])} each, report and export in {duration(costs.ending)}; the "
            f"command ends {duration(AIM * self._budget.seconds)} after the start. As with {settings}{starts}. The "
            "end is moved if the machine becomes slower or faster"
        )

    def _check(self, job: Job, step: int) -> tuple[int, int]:
        """Where the run is to end, and the step of the next check; by the first process."""
        assert self._costs is not None
        now, end = self._clock(), job.stages[-1].stage.stop
        self._marks.append((step, now))
        costs = self._costs.slower(self._slowness(job.config, step, end - step))
        seconds = AIM * self._budget.seconds - now
        if abs(seconds_left(job.config, step, costs) - seconds) > _ENOUGH * self._budget.seconds:
            least = _least_end(job.config, step)
            end = most_steps(lambda end: moved(job.config, step, end), step, costs, seconds, least)
            job = rescheduled(job, moved(job.config, step, end)) if end != job.stages[-1].stage.stop else job
        return end, self._next_check(job, step, costs)

    def _slowness(self, config: Config, step: int, ahead: int) -> float:
        """How many times longer than in the rehearsal steps take, over as many past steps as are ahead.

        Over at least a share of the budget: a short time says little about the rest of the run.
        """
        assert self._costs is not None
        now, least = self._marks[-1][1], _SHORTEST_VIEW * self._budget.seconds
        within = [(at, then) for at, then in self._marks[:-1] if step - at >= ahead and now - then >= least]
        since, then = within[-1] if within else self._marks[0]
        return (now - then) / seconds_between(config, stages_of(config), since, step, self._costs)

    def _next_check(self, job: Job, step: int, costs: Costs) -> int:
        """The step of the next check; -1 for none."""
        end, number = job.stages[-1].stage.stop, _stage_number(job.config, step)
        closest = math.ceil(_CLOSEST * self._budget.seconds / costs.pace[number])
        following = step + max(-(-(end - step) // _CHECKS), closest, 1)
        return following if following + closest <= end and following < end else -1


def _stage_number(config: Config, step: int) -> int:
    return next((stage.number for stage in stages_of(config) if step < stage.stop), len(config.stages))


def _least_end(config: Config, step: int) -> int:
    """The first end that leaves a step to each stage that has not begun."""
    end = step + 1
    while True:
        try:
            moved(config, step, end)
            return end
        except ValueError:
            end += 1
