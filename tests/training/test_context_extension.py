"""A stage of longer rows that rotates by other angles: another function of the same arrays, and resumed exactly."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from generated_corpus import write_corpus
from test_step import batches
from their_families import SIZES, small
from tiny_runs import command, digests, finish, write_recipe

from bertjax.config import Config, DataConfig, MeshConfig, OptimizerConfig, StageConfig, TrainingConfig
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import to_global
from bertjax.training.optimizer import make_optimizer
from bertjax.training.run_directory import load_run
from bertjax.training.stages import stage_step, stages_of
from bertjax.training.state import draw_blueprint, init_state

SIZES_OF_STEP = SIZES | {"vocab_size": 300, "max_position_embeddings": 64}
SHORT = small("modernbert", rope_theta=100.0, **SIZES_OF_STEP)
CONFIG = Config(
    model=SHORT,
    data=DataConfig(packing="pairs", sequence_length=48),
    training=TrainingConfig(steps=40, global_batch_size=8, objectives=("mlm",)),
    optimizer=OptimizerConfig(warmup_steps=2, schedule="warmup_stable_decay", name="stable_adamw"),
    stages=(
        StageConfig(start=10, learning_rate=3e-4, rope_theta=1600.0, decay_steps=20),
        StageConfig(start=30, sequence_length=24),
    ),
)


def test_a_stage_goes_on_with_the_angles_of_the_one_before_it() -> None:
    stages = stages_of(CONFIG)
    assert [stage.model.rope_theta for stage in stages] == [100.0, 1600.0, 1600.0]
    assert [stage.model.rope_theta_local for stage in stages] == [SHORT.rope_theta_local] * 3
    assert [stage.optimizer.decay_steps for stage in stages] == [0, 20, 20]


def test_the_step_of_a_stage_rotates_by_its_angles() -> None:
    mesh, optimizer = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1]), make_optimizer(CONFIG.optimizer)
    batch = next(iter(batches()))
    batch = batch | {"token_type_ids": batch["token_type_ids"] * 0}
    losses = {}
    with jax.set_mesh(mesh):
        blueprint = draw_blueprint(SHORT, optimizer, mesh)
        beyond = replace(SHORT, rope_theta=1600.0)
        for name, config, number, at in (
            ("first", CONFIG, 0, blueprint),
            ("second", CONFIG, 1, blueprint),
            ("by itself", replace(CONFIG, model=beyond), 0, draw_blueprint(beyond, optimizer, mesh)),
        ):
            step = stage_step(config, stages_of(config)[number], at, optimizer)
            # A large draw, so that angles matter.
            state = init_state(at, replace(SHORT, initializer_range=0.5), optimizer, 0)
            losses[name] = float(step(state, to_global(mesh, batch))[1]["loss"])
    assert losses["second"] == losses["by itself"] and abs(losses["second"] - losses["first"]) > 1e-4, losses


@pytest.mark.long
def test_killed_within_the_extension_it_ends_with_the_same_bits(tmp_path: Path) -> None:
    recipe, source, log = write_recipe(tmp_path), write_corpus(tmp_path / "corpus.txt", 300), tmp_path / "log"
    stage = "StageConfig(start=40, sequence_length=32, learning_rate=1e-3, rope_theta=500.0, decay_steps=20)"
    text = recipe.read_text().replace("OptimizerConfig, ", "OptimizerConfig, StageConfig, ", 1)
    text = text.replace("        training=", f"        stages=({stage},),\n        training=")
    recipe.write_text(text.replace("ModelConfig(h", 'ModelConfig(position_embedding="rope", rope_theta=50.0, h'))
    settings = ("--optimizer.name", "stable_adamw", "--optimizer.schedule", "warmup_stable_decay")
    settings += ("--optimizer.decay-shape", "1-sqrt", "--data.sequence-length", "16", "--training.keep-last", "20")
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    finish(command(recipe, source, whole, *settings), log)
    assert load_run(whole).config.model.rope_theta == 500.0
    assert load_run(whole / "checkpoints" / "40").config.model.rope_theta == 50.0
    shutil.copytree(whole, killed)
    for folder in (killed / "checkpoints").iterdir():
        if int(folder.name) > 60:
            shutil.rmtree(folder)
    finish(command(recipe, source, killed, *settings), log)
    assert "at step 60" in log.read_text() and digests(killed) == digests(whole)
