"""The objectives by name."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from bertjax.training.objectives.mlm import MLM
from bertjax.training.objectives.nsp import NSP
from bertjax.training.objectives.objective import Measure, Objective
from bertjax.training.objectives.rtd import RTD
from bertjax.training.objectives.sbo import SBO
from bertjax.training.objectives.sop import SOP

OBJECTIVES: dict[str, Objective] = {objective.name: objective for objective in (MLM, NSP, SOP, SBO, RTD)}


def choose(names: Sequence[str]) -> tuple[Objective, ...]:
    """Objectives by name.

    Raises ValueError for an unknown name, for no name and for the same name twice, with the list of names.
    """
    unknown = [name for name in names if name not in OBJECTIVES]
    if unknown or not names or len(set(names)) < len(names):
        raise ValueError(
            f"training.objectives={tuple(names)}: choose one or more of {', '.join(OBJECTIVES)}, each once"
        )
    return tuple(OBJECTIVES[name] for name in names)


def measures_of(objectives: Iterable[Objective]) -> Iterator[tuple[str, Measure]]:
    """(name of the figure in the log behind its group, such as `mlm_loss`; the measure) of objectives, in order."""
    for objective in objectives:
        for measure in objective.measures:
            yield f"{objective.name}_{measure.figure}", measure
