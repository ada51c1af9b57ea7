"""The course of a run: the position of each step in the original schedule, after the run's end has been moved.

A run within a budget of time begins with a schedule: a number of steps, with a warm-up, a decay and stages. When the
machine becomes faster or slower, the rest of the schedule is stretched over another number of steps. Each such
change is a record `STEP:STEPS` in `training.replans`: from step STEP on, the run ends at step STEPS. The position of a
step in the schedule is a pure function of these records, so a resumed or repeated run takes the same course.
"""

from __future__ import annotations

import itertools
import math
import re
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

import jax
import jax.numpy as jnp

from bertjax.config import TrainingConfig


@dataclass(frozen=True)
class Piece:
    """Steps from `start` on: the position of the first one in the schedule, and how far each step advances in it."""

    start: int
    position: Fraction
    pace: Fraction

    def position_of(self, step: int) -> Fraction:
        """The position of a step of the piece in the schedule."""
        return self.position + (step - self.start) * self.pace


@dataclass(frozen=True)
class Course:
    """A schedule of `scheduled` steps, and the records (step, end) of its moved ends, in order."""

    scheduled: int
    replans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, training: TrainingConfig) -> Course:
        """Raises ValueError for an invalid record, or one that does not follow the one before it."""
        course = cls(training.steps, tuple(map(parse_replan, training.replans)))
        edges = [(0, training.steps), *course.replans]
        for (before, end), (step, moved) in itertools.pairwise(edges):
            if not (before < step < end and step < moved):
                raise ValueError(
                    f"training.replans={training.replans}: '{step}:{moved}' does not follow '{before}:{end}'; steps "
                    "rise, each before the previous end and before the new one"
                )
        return course

    @property
    def end(self) -> int:
        """The step after the last one."""
        return self.replans[-1][1] if self.replans else self.scheduled

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """From each record to the next."""
        found = [Piece(0, Fraction(0), Fraction(1))]
        for step, end in self.replans:
            position = found[-1].position_of(step)
            found.append(Piece(step, position, (self.scheduled - position) / (end - step)))
        return tuple(found)

    def step_of(self, position: int) -> int:
        """The first step at a position of the schedule, or after it."""
        reached = [piece for piece in self.pieces if piece.position < position] or [self.pieces[0]]
        piece = reached[-1]
        return piece.start + math.ceil((position - piece.position) / piece.pace)

    def position(self, step: jax.Array) -> jax.Array:
        """The position of a step (int32 []) in the schedule; float32 []. Later records do not change a bit of it."""
        starts = jnp.array([piece.start for piece in self.pieces], jnp.int32)
        columns = [[float(piece.position) for piece in self.pieces], [float(piece.pace) for piece in self.pieces]]
        positions, paces = jnp.array(columns, jnp.float32)
        number = jnp.searchsorted(starts, step, side="right") - 1
        return positions[number] + (step - starts[number]).astype(jnp.float32) * paces[number]


def parse_replan(text: str) -> tuple[int, int]:
    """The step and the end of a record of `training.replans`. Raises ValueError for an invalid text."""
    if not re.fullmatch(r"\d+:\d+", text):
        raise ValueError(f"training.replans={text!r}: give STEP:STEPS, as in 500:1650, an end at 1650 from step 500 on")
    step, end = text.split(":")
    return int(step), int(end)
