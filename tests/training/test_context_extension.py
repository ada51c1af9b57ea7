"""A stage with longer rows and other rotation angles: another function of the same arrays, and exact resumption."""

from __future__ import annotations

import json
import random
import re
import shutil
import signal
import sys
from dataclasses import replace
from pathlib import Path

import jax
import pytest
from generated_corpus import write_corpus
from test_step import batches
from their_families import SIZES, small
from tiny_runs import checkpoints, command, digests, finish, start

from bertjax.config import Config, DataConfig, MeshConfig, OptimizerConfig, StageConfig, TrainingConfig
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import to_global
from bertjax.run.run_directory import load_run
from bertjax.training.optimizer import make_optimizer
from bertjax.training.stages import make_stages, stage_step
from bertjax.training.state import draw_blueprint, init_state

SIZES_OF_STEP = SIZES | {"vocab_size": 300, "max_position_embeddings": 64}
SHORT = small("modernbert", rope_theta=100.0, **SIZES_OF_STEP)
# A stage changes the angles of global layers only.
GLOBAL = replace(SHORT, num_hidden_layers=1, first_norm=True)
CONFIG = Config(
    model=SHORT,
    data=DataConfig(packing="pairs", sequence_length=48),
    training=TrainingConfig(steps=40, global_batch_size=8, grad_accum_steps=1, objectives=("mlm",)),
    optimizer=OptimizerConfig(warmup_steps=2, schedule="warmup_stable_decay", name="stable_adamw"),
    stages=(
        StageConfig(start=10, learning_rate=3e-4, rope_theta=1600.0, decay_steps=20),
        StageConfig(start=30, sequence_length=24),
    ),
)
BOUNDARY, STEPS, SAVED = 20, 40, 5
# Rows of 32 tokens, then of 96, which layers with windows compute in blocks. Layers 0 and 3 are global.
RECIPE = f"""
from dataclasses import replace

from bertjax.config import Config, DataConfig, OptimizerConfig, StageConfig, TrainingConfig
from bertjax.families.modernbert import MODERNBERT

def config():
    return Config(
        name="tiny",
        model=replace(MODERNBERT.presets["base"], hidden_size=16, num_hidden_layers=4, num_attention_heads=2,
                      intermediate_size=24, max_position_embeddings=96, window=4, rope_theta=50.0,
                      rope_theta_local=20.0),
        data=DataConfig(vocab_size=300, sequence_length=32, max_predictions=20, held_out=0.1, workers=1,
                        rows="doc_sentences", packing="pairs", pairs_per_row=4, mask_probability=0.3,
                        mask_count="each"),
        optimizer=OptimizerConfig(name="stable_adamw", learning_rate=2e-3, warmup_steps=5, clip_norm=0.0,
                                  schedule="warmup_stable_decay", decay_shape="1-sqrt"),
        training=TrainingConfig(steps={STEPS}, global_batch_size=8, objectives=("mlm",), log_every={SAVED},
                                eval_every={STEPS}, eval_rows=16, checkpoint_every={SAVED}, keep_last=20),
        stages=(StageConfig(start={BOUNDARY}, sequence_length=96, max_predictions=50, global_batch_size=4,
                            grad_accum_steps=2, learning_rate=1e-3, rope_theta=500.0, decay_steps=10),),
    )
"""


def test_stage_inherits_rope_theta() -> None:
    stages = make_stages(CONFIG)
    assert [stage.model.rope_theta for stage in stages] == [100.0, 1600.0, 1600.0]
    assert [stage.model.rope_theta_local for stage in stages] == [SHORT.rope_theta_local] * 3
    assert [stage.optimizer.decay_steps for stage in stages] == [0, 20, 20]


def test_step_uses_the_network_of_its_stage() -> None:
    mesh, optimizer = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1]), make_optimizer(CONFIG.optimizer)
    with jax.set_mesh(mesh):
        blueprint = draw_blueprint(SHORT, optimizer, mesh)
        steps = [stage_step(CONFIG, stage, blueprint, optimizer) for stage in make_stages(CONFIG)]
    assert [step.gradient.blueprint.model.rope_theta for step in steps] == [100.0, 1600.0, 1600.0]
    assert steps[0].gradient.blueprint.graphdef != steps[1].gradient.blueprint.graphdef


@pytest.mark.long
def test_step_rotates_by_the_angles_of_its_stage() -> None:
    mesh, optimizer = make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1]), make_optimizer(CONFIG.optimizer)
    batch = next(iter(batches()))
    batch = batch | {"token_type_ids": batch["token_type_ids"] * 0}
    losses, config = {}, replace(CONFIG, model=GLOBAL)
    with jax.set_mesh(mesh):
        blueprint = draw_blueprint(GLOBAL, optimizer, mesh)
        beyond = replace(GLOBAL, rope_theta=1600.0)
        for name, recipe, number, at in (
            ("first", config, 0, blueprint),
            ("second", config, 1, blueprint),
            ("by itself", replace(config, model=beyond), 0, draw_blueprint(beyond, optimizer, mesh)),
        ):
            step = stage_step(recipe, make_stages(recipe)[number], at, optimizer)
            # Large initial weights, so that angles matter.
            state = init_state(at, replace(GLOBAL, initializer_range=0.5), optimizer, 0)
            losses[name] = float(step(state, to_global(mesh, batch))[1]["loss"])
    assert losses["second"] == losses["by itself"] and abs(losses["second"] - losses["first"]) > 1e-4, losses


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path, Path]:
    """Recipe, source, and the directory of an uninterrupted run through the extension."""
    folder = tmp_path_factory.mktemp("extended")
    recipe, source = folder / "recipe.py", write_corpus(folder / "corpus.txt", 300)
    recipe.write_text(RECIPE)
    finish(command(recipe, source, folder / "whole"), folder / "whole.log")
    assert load_run(folder / "whole").config.model.rope_theta == 500.0
    assert load_run(folder / "whole" / "checkpoints" / str(BOUNDARY)).config.model.rope_theta == 50.0
    return recipe, source, folder / "whole"


def run_with_kills(extended: tuple[Path, Path, Path], run_dir: Path, steps: list[int]) -> None:
    """Kill a run inside each of these steps, then let it finish."""
    recipe, source, _ = extended
    log = run_dir.with_suffix(".log")
    keys = {"data.sources": [f"lines:{source}"], "data.root": str(recipe.parent / "data"), "run_dir": str(run_dir)}
    words = [sys.executable, str(Path(__file__).parent.parent / "run" / "killed_run.py"), str(recipe), json.dumps(keys)]
    for step in steps:
        assert start([*words, "before_step", str(step)], log).wait(120) == -signal.SIGKILL, log.read_text()[-3000:]
    finish(command(recipe, source, run_dir), log)


@pytest.mark.long
@pytest.mark.parametrize("seed", range(3))
def test_run_killed_at_random_steps_ends_with_equal_bits(
    seed: int, extended: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    rng = random.Random(seed)
    # The step before the boundary, the first step of the extension, and three random ones.
    steps = {BOUNDARY, BOUNDARY + 1, *(rng.randrange(2 * SAVED + 1, STEPS) for _ in range(3))}
    run_with_kills(extended, tmp_path / "killed", sorted(steps))
    assert digests(tmp_path / "killed") == digests(extended[2])


@pytest.mark.long
@pytest.mark.parametrize("step", range(SAVED, STEPS, SAVED))
def test_run_resumed_from_any_checkpoint_ends_with_equal_bits(
    step: int, extended: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    recipe, source, reference = extended
    run_dir, log = tmp_path / "run", tmp_path / "log"
    shutil.copytree(reference, run_dir)
    assert str(step) in checkpoints(run_dir)
    for name in checkpoints(run_dir):
        if int(name) > step:
            shutil.rmtree(run_dir / "checkpoints" / name)
    finish(command(recipe, source, run_dir), log)
    assert re.findall(r"^resuming .* at step (\d+)", log.read_text(), re.M) == [str(step)]
    assert digests(run_dir) == digests(reference)
