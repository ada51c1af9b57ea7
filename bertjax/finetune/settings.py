"""The runs of a task: one for each combination of settings that are tried, and of each as many as there are seeds."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from bertjax.config import FinetuneConfig
from bertjax.storage.remote import place_of

# What may have several values: the key, and how a setting is called in the names of runs.
TRIED = {"learning_rate": "lr", "batch_size": "batch", "epochs": "epochs"}


@dataclass(frozen=True)
class Setting:
    """Settings under one name, which is empty if nothing else was tried, and the configs of its runs by seed."""

    name: str
    runs: tuple[FinetuneConfig, ...]


def settings_of(config: FinetuneConfig, tried: Mapping[str, Sequence[float]], seeds: int) -> list[Setting]:
    """All combinations of the values of `tried`, each run under `seeds` seeds from the config's own on.

    Each run has a directory below the config's, which is its own if there is only one. Raises ValueError naming a value
    that is given twice, or that no run can have.
    """
    if seeds < 1:
        raise ValueError(f"--seeds {seeds}: give 1 or more")
    for key, values in tried.items():
        names = [f"{value:g}" for value in values]
        if len({*names}) < len(names):
            raise ValueError(f"--{key.replace('_', '-')} {' '.join(names)}: one is there twice; give each once")
    several = {key: values for key, values in tried.items() if len(values) > 1}
    found = []
    for values in itertools.product(*tried.values()):
        chosen = dict(zip(tried, values, strict=True))
        name = "-".join(f"{TRIED[key]}{chosen[key]:g}" for key in several)
        one = _with(config, chosen)
        _require_possible(one)
        first = config.training.seed
        runs = [_placed(one, name, seed, seeds) for seed in range(first, first + seeds)]
        found.append(Setting(name, tuple(runs)))
    return found


def _with(config: FinetuneConfig, chosen: Mapping[str, float]) -> FinetuneConfig:
    optimizer, training, task = config.optimizer, config.training, config.task
    if "learning_rate" in chosen:
        optimizer = replace(optimizer, learning_rate=chosen["learning_rate"])
    if "batch_size" in chosen:
        training = replace(training, global_batch_size=int(chosen["batch_size"]))
    if "epochs" in chosen:
        task = replace(task, epochs=chosen["epochs"])
    return replace(config, optimizer=optimizer, training=training, task=task)


def _require_possible(config: FinetuneConfig) -> None:
    """Raise ValueError naming the first key of a task's training whose value no run can have."""
    task, rate, batch = config.task, config.optimizer.learning_rate, config.training.global_batch_size
    for key, value, possible, wanted in (
        ("optimizer.learning_rate (--learning-rate)", rate, 0 < rate < math.inf, "a number above 0"),
        ("training.global_batch_size (--batch-size)", batch, batch >= 1, "1 or more"),
        ("task.epochs (--epochs)", task.epochs, 0 < task.epochs < math.inf, "a number above 0"),
        ("task.patience (--patience)", task.patience, task.patience >= 0, "1 or more, or 0 to train to the end"),
        ("task.layer_decay (--layer-decay)", task.layer_decay, 0 < task.layer_decay <= 1, "a number above 0, up to 1"),
        ("task.examples", task.examples, task.examples >= 0, "1 or more, or 0 for all"),
        ("task.max_answer", task.max_answer, task.max_answer >= 1, "1 or more"),
        ("task.n_best", task.n_best, task.n_best >= 1, "1 or more"),
        ("task.temperature", task.temperature, task.temperature > 0, "a number above 0"),
    ):
        if not possible:
            raise ValueError(f"{key} is {value}; give {wanted}")


def _placed(config: FinetuneConfig, name: str, seed: int, seeds: int) -> FinetuneConfig:
    place = place_of(config.directory)
    for part in (name, f"seed-{seed}" if seeds > 1 else ""):
        place = place / part if part else place
    return replace(config, run_dir=str(place), training=replace(config.training, seed=seed))
