"""The objectives by name."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace

from bertjax.config import Config
from bertjax.config.registry import Registry
from bertjax.training.objectives.clm import CLM
from bertjax.training.objectives.distil_cosine import DISTIL_COSINE
from bertjax.training.objectives.distil_layers import DISTIL_LAYERS
from bertjax.training.objectives.distil_mlm import DISTIL_MLM
from bertjax.training.objectives.mlm import MLM
from bertjax.training.objectives.nsp import NSP
from bertjax.training.objectives.objective import Measure, Objective
from bertjax.training.objectives.rtd import RTD
from bertjax.training.objectives.sbo import SBO
from bertjax.training.objectives.sop import SOP

_ALL = (MLM, NSP, SOP, SBO, RTD, DISTIL_MLM, DISTIL_COSINE, DISTIL_LAYERS, CLM)
OBJECTIVES = Registry("objectives", {objective.name: objective for objective in _ALL}, Objective)


def choose(names: Sequence[str]) -> tuple[Objective, ...]:
    """Look up objectives by name.

    Raises ValueError, with the known names, if a name is unknown or repeated, or if there are none.
    """
    OBJECTIVES.require(names, "training.objectives")
    return tuple(OBJECTIVES[name] for name in names)


def make_objectives(config: Config) -> tuple[Objective, ...]:
    """Make the objectives of a run, with the weights and options in its config.

    Raises ValueError as `choose` does, and for `training.objective_weights` that do not fit the objectives.
    """
    objectives, weights = choose(config.training.objectives), config.training.objective_weights
    valid = all(math.isfinite(weight) and weight >= 0 for weight in weights)
    if weights and not (len(weights) == len(objectives) and valid and sum(weights) > 0):
        raise ValueError(
            f"training.objective_weights={weights}: give one for each of training.objectives="
            f"{config.training.objectives}, finite, none below 0 and not all of them 0"
        )
    return tuple(
        replace(objective, sums=functools.partial(objective.sums, **objective.options(config)), scale=scale)
        for objective, scale in zip(objectives, weights or [o.scale for o in objectives], strict=True)
    )


def list_measures(objectives: Iterable[Objective]) -> Iterator[tuple[str, Measure]]:
    """Yield (log name without its group, such as `mlm_loss`; measure) for each measure of the objectives, in order."""
    for objective in objectives:
        for measure in objective.measures:
            yield f"{objective.name}_{measure.figure}", measure
