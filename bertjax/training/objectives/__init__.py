"""Training objectives: the JAX half of each, one per file, and the registry of their names.

The NumPy half of the same name, which makes an objective's arrays of a batch, is in `bertjax.input.targets`.
"""

from bertjax.training.objectives.baselines import HeldOutFacts
from bertjax.training.objectives.objective import (
    TEACHER,
    Batch,
    Forward,
    Keys,
    Measure,
    Objective,
    Sums,
    classified,
)
from bertjax.training.objectives.registry import OBJECTIVES, choose, list_measures, make_objectives

__all__ = [
    "OBJECTIVES",
    "TEACHER",
    "Batch",
    "Forward",
    "HeldOutFacts",
    "Keys",
    "Measure",
    "Objective",
    "Sums",
    "choose",
    "classified",
    "list_measures",
    "make_objectives",
]
