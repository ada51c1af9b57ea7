"""Runs of a recipe with several seeds, and the reference curves that they come to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from bertjax.config import Config
from bertjax.pipeline.pretraining import pretrain
from bertjax.training.reference_curve import Reference, reference_of, write_reference


def make_reference(config: Config, name: str, command: str, seeds: Sequence[int], path: Path) -> Reference:
    """Train a config once with each seed, in `<run directory>_seed<n>`, and write the curves to a file.

    Runs that are finished are not trained again, and those that were stopped go on. Raises ValueError as `pretrain` and
    `reference_of` do.
    """
    runs = []
    for seed in seeds:
        one = replace(config, run_dir=f"{config.directory}_seed{seed}", training=replace(config.training, seed=seed))
        runs.append(pretrain(one).directory)
    reference = reference_of(name, command, runs)
    write_reference(path, reference)
    return reference
