"""The NumPy halves of the objectives, by name."""

from __future__ import annotations

from collections.abc import Sequence

from bertjax.config.plugins import Registry
from bertjax.input.targets import distil_cosine, distil_layers, distil_mlm, mlm, nsp, rtd, sbo, sop
from bertjax.input.targets.target import Pairing, Target

_ALL: dict[str, Target] = {
    "mlm": mlm.TARGET,
    "nsp": nsp.TARGET,
    "sop": sop.TARGET,
    "sbo": sbo.TARGET,
    "rtd": rtd.TARGET,
    "distil_mlm": distil_mlm.TARGET,
    "distil_cosine": distil_cosine.TARGET,
    "distil_layers": distil_layers.TARGET,
}
TARGETS = Registry("targets", _ALL)
OF_BERT = ("mlm", "nsp")


def choose(objectives: Sequence[str]) -> dict[str, Target]:
    """Return the NumPy halves of objectives by name.

    Raises ValueError for an unknown name, none at all, the same twice, or two that want pairs made differently.
    """
    unknown = [name for name in objectives if name not in TARGETS]
    if unknown or not objectives or len(set(objectives)) < len(objectives):
        raise ValueError(
            f"training.objectives={tuple(objectives)}: choose one or more of {', '.join(TARGETS)}, each once"
        )
    chosen = {name: TARGETS[name] for name in objectives}
    of_pairs = [name for name, target in chosen.items() if target.pairing]
    if len(of_pairs) > 1:
        raise ValueError(
            f"training.objectives={tuple(objectives)}: {' and '.join(of_pairs)} want pairs of different kinds; leave "
            "one of them out"
        )
    return chosen


def pairing_of(objectives: Sequence[str]) -> Pairing:
    """How sentence pairs are made for these objectives: as BERT's, where none is about pairs. Raises as `choose`."""
    return next((target.pairing for target in choose(objectives).values() if target.pairing), Pairing())
