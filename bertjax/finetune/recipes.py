"""The config of a task: its recipe, on the network that it starts from."""

from __future__ import annotations

from dataclasses import asdict

from bertjax.config import DataConfig, FinetuneConfig, ModelConfig, OptimizerConfig, TaskConfig, TrainingConfig
from bertjax.finetune.tasks import Task
from bertjax.tokenization.tokenizer import Tokenizer


def config_for(name: str, task: Task, origin: str, model: ModelConfig, tokenizer: Tokenizer) -> FinetuneConfig:
    """The recipe of a task, google-research/bert's run_classifier.py and run_squad.py unless the task says otherwise.

    Steps, warm-up and periods of 0 follow from the data (see `job.resolved`).
    """
    recipe = task.recipe
    return FinetuneConfig(
        name=name,
        init_from=origin,
        model=model,
        data=DataConfig(
            vocab_size=tokenizer.vocab_size,
            **asdict(tokenizer.rules),
            sequence_length=min(recipe.max_length, model.max_position_embeddings),
        ),
        optimizer=OptimizerConfig(learning_rate=recipe.learning_rate, warmup_steps=0),
        training=TrainingConfig(
            steps=0,
            global_batch_size=recipe.batch_size,
            log_every=0,
            eval_every=0,
            checkpoint_every=0,
            keep_last=1,
        ),
        task=TaskConfig(name=name, epochs=recipe.epochs, warmup=recipe.warmup),
    )
