"""Registry of the NumPy halves of objectives."""

from __future__ import annotations

from collections.abc import Sequence

from bertjax.config.registry import Registry
from bertjax.input.targets import clm, distil_cosine, distil_layers, distil_mlm, mlm, nsp, rtd, sbo, sop
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
    "clm": clm.TARGET,
}
TARGETS = Registry("targets", _ALL)
OF_BERT = ("mlm", "nsp")


def choose(objectives: Sequence[str]) -> dict[str, Target]:
    """Look up the NumPy halves of objectives.

    Raises ValueError for an unknown name, no name, a repeated name, or two objectives of sentence pairs.
    """
    TARGETS.require(objectives, "training.objectives")
    chosen = {name: TARGETS[name] for name in objectives}
    with_pairs = [name for name, target in chosen.items() if target.pairing]
    if len(with_pairs) > 1:
        raise ValueError(
            f"training.objectives={tuple(objectives)}: {' and '.join(with_pairs)} need different sentence pairs; leave "
            "one of them out"
        )
    return chosen


def choose_pairing(objectives: Sequence[str]) -> Pairing:
    """Choose how to form sentence pairs for these objectives; the default is BERT's rule. Raises like `choose`."""
    return next((target.pairing for target in choose(objectives).values() if target.pairing), Pairing())
