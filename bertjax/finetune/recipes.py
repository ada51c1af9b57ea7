"""Configs of fine-tuning runs: the recipe of a task, and a run for each setting and seed."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from bertjax.config import DataConfig, FinetuneConfig, ModelConfig, OptimizerConfig, TaskConfig, TrainingConfig
from bertjax.finetune.kinds.kind import Task
from bertjax.storage.remote import to_path
from bertjax.tokenization.tokenizer import Tokenizer

# Options that take several values, and their names in the directories of runs.
TRIED = {"learning_rate": "lr", "batch_size": "batch", "epochs": "epochs"}


@dataclass(frozen=True)
class Setting:
    """A combination of option values, with a run for each seed."""

    name: str  # "" if there is only one setting
    runs: tuple[FinetuneConfig, ...]  # one for each seed


def config_for(name: str, task: Task, origin: str, model: ModelConfig, tokenizer: Tokenizer) -> FinetuneConfig:
    """Make the config of a task's recipe. Steps, warm-up and periods of 0 depend on the data (see `job.resolved`)."""
    recipe = task.recipe
    return FinetuneConfig(
        name=name,
        init_from=origin,
        model=model,
        data=DataConfig(
            tokenizer=tokenizer.kind,
            vocab_size=tokenizer.vocab_size,
            **asdict(tokenizer.rules),
            sequence_length=min(recipe.max_length, model.max_position_embeddings),
        ),
        optimizer=OptimizerConfig(learning_rate=recipe.learning_rate, warmup_steps=0),
        training=TrainingConfig(
            steps=0,
            global_batch_size=recipe.batch_size,
            grad_accum_steps=1,
            log_every=0,
            eval_every=0,
            checkpoint_every=0,
            keep_last=1,
        ),
        task=TaskConfig(name=name, epochs=recipe.epochs, warmup=recipe.warmup),
    )


def make_settings(config: FinetuneConfig, tried: Mapping[str, Sequence[float]], seeds: int) -> list[Setting]:
    """Combine all values of the options in `tried`, with `seeds` seeds each, counted from the config's seed.

    Several runs have subdirectories of the config's directory; a single run has the directory itself. Raises ValueError
    naming a value that is repeated, out of range or without effect.
    """
    if seeds < 1:
        raise ValueError(f"--seeds {seeds}: give 1 or more")
    for key, values in tried.items():
        names = [f"{value:g}" for value in values]
        if len({*names}) < len(names):
            raise ValueError(f"--{key.replace('_', '-')} {' '.join(names)}: a value is repeated; give each once")
    first = config.training.seed
    settings = []
    for values in itertools.product(*tried.values()):
        chosen = dict(zip(tried, values, strict=True))
        name = "-".join(f"{TRIED[key]}{chosen[key]:g}" for key in tried if len(tried[key]) > 1)
        one = replace(
            config,
            optimizer=replace(
                config.optimizer, learning_rate=chosen.get("learning_rate", config.optimizer.learning_rate)
            ),
            training=replace(
                config.training, global_batch_size=int(chosen.get("batch_size", config.training.global_batch_size))
            ),
            task=replace(config.task, epochs=chosen.get("epochs", config.task.epochs)),
        )
        _check_ranges(one)
        runs = []
        for seed in range(first, first + seeds):
            directory = to_path(config.directory)
            for part in (name, f"seed-{seed}" if seeds > 1 else ""):
                directory = directory / part if part else directory
            runs.append(replace(one, run_dir=str(directory), training=replace(one.training, seed=seed)))
        settings.append(Setting(name, tuple(runs)))
    if "epochs" in tried and config.training.steps:
        raise ValueError(
            f"--epochs {' '.join(f'{value:g}' for value in tried['epochs'])} with training.steps="
            f"{config.training.steps}: the steps alone decide; leave one of them out"
        )
    return settings


def _check_ranges(config: FinetuneConfig) -> None:
    """Raise ValueError naming the first key of a task that is out of range."""
    task, rate, batch = config.task, config.optimizer.learning_rate, config.training.global_batch_size
    for key, value, valid, expected in (
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
        if not valid:
            raise ValueError(f"{key} is {value}; give {expected}")
