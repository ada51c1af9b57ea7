"""Planted substitutions in generated proteins: harmful ones at conserved sites, neutral ones at free sites."""

from __future__ import annotations

from random import Random

import numpy as np

from bertjax.interpret.substitutions import Substitution, Variant
from bertjax.text.sources.generated_proteins import LETTERS, families, member


def planted(count: int, first: int = 10_000_000) -> tuple[list[Variant], list[Variant]]:
    """(harmful, neutral) substitutions of `count` members outside the range that usual sources read."""
    sites, draw = families(), Random(1)
    variants: dict[str, list[Variant]] = {"conserved": [], "free": []}
    for number in range(first, first + count):
        protein = member(number, sites)
        for place, old in enumerate(protein.letters, 1):
            site = sites[protein.family][protein.first + place - 1]
            if site.kind in variants and (site.kind == "free" or old == site.letters):
                new = draw.choice([letter for letter in LETTERS if letter != old])
                variants[site.kind].append(Variant(protein.letters, (Substitution(old, place, new),)))
    return variants["conserved"], variants["free"]


def area_under_curve(worse: list[float], better: list[float]) -> float:
    """The share of pairs (one of `worse`, one of `better`) in which the first has the lower score; ties count half."""
    below, upto = (np.searchsorted(np.sort(worse), better, side) for side in ("left", "right"))
    return float((below + upto).mean() / (2 * len(worse)))
