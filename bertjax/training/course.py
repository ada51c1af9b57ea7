"""The course of a run: where each step stands in the plan that the run began with, after its end has been moved.

A run within a budget of time begins with a plan: so many steps, with a warm-up, a decay and stages in them. When the
machine turns out to be faster or slower, what is left of the plan is stretched over another number of steps. Each such
change is a record `STEP:STEPS` in `training.replans`: from step STEP on, the run ends at step STEPS. The position of a
step in the plan is a pure function of these records, so a run that is resumed, or repeated, takes the same course.
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
    """Steps from `start` on: the position of the first one in the plan, and how far each step goes in it."""

    start: int
    position: Fraction
    pace: Fraction

    def position_of(self, step: int) -> Fraction:
        """Where a step of the piece stands in the plan."""
        return self.position + (step - self.start) * self.pace


@dataclass(frozen=True)
class Course:
    """A plan of `planned` steps, and the records (step, end) of where its end was moved to, in order."""

    planned: int
    replans: tuple[tuple[int, int], ...] = ()

    @classmethod
    def of(cls, training: TrainingConfig) -> Course:
        """Raises ValueError for a record that is none, or that does not follow the one before it."""
        course = cls(training.steps, tuple(map(parse_replan, training.replans)))
        edges = [(0, training.steps), *course.replans]
        for (before, end), (step, moved) in itertools.pairwise(edges):
            if not (before < step < end and step < moved):
                raise ValueError(
                    f"training.replans={training.replans}: '{step}:{moved}' does not follow '{before}:{end}'; steps "
                    "rise, each before the end that there was and before the new one"
                )
        return course

    @property
    def end(self) -> int:
        """The step after the last one."""
        return self.replans[-1][1] if self.replans else self.planned

    @cached_property
    def pieces(self) -> tuple[Piece, ...]:
        """From each record to the next."""
        found = [Piece(0, Fraction(0), Fraction(1))]
        for step, end in self.replans:
            position = found[-1].position_of(step)
            found.append(Piece(step, position, (self.planned - position) / (end - step)))
        return tuple(found)

    def step_of(self, position: int) -> int:
        """The first step that stands at a position of the plan, or behind it."""
        reached = [piece for piece in self.pieces if piece.position < position] or [self.pieces[0]]
        piece = reached[-1]
        return piece.start + math.ceil((position - piece.position) / piece.pace)

    def position(self, step: jax.Array) -> jax.Array:
        """Where a step (int32 []) stands in the plan; float32 []. It does not depend on later records, to the bit."""
        starts = jnp.array([piece.start for piece in self.pieces], jnp.int32)
        columns = [[float(piece.position) for piece in self.pieces], [float(piece.pace) for piece in self.pieces]]
        positions, paces = jnp.array(columns, jnp.float32)
        number = jnp.searchsorted(starts, step, side="right") - 1
        return positions[number] + (step - starts[number]).astype(jnp.float32) * paces[number]


def parse_replan(text: str) -> tuple[int, int]:
    """The step and the end of a record of `training.replans`. Raises ValueError for a text that is none."""
    if not re.fullmatch(r"\d+:\d+", text):
        raise ValueError(f"training.replans={text!r}: give STEP:STEPS, as in 500:1650, an end at 1650 from step 500 on")
    step, end = text.split(":")
    return int(step), int(end)
