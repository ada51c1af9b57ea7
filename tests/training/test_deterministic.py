"""`deterministic` gives the same bits in every process on a GPU; elsewhere no option is needed."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import jax
import pytest

from bertjax.config import Config, ExecutionConfig, OptimizerConfig, TrainingConfig
from bertjax.run.checks import preflight

pytestmark = pytest.mark.run

PROGRAM = """
import hashlib, sys, jax
sys.path.insert(0, sys.argv[1])
from random_batches import random_batches
from bertjax.config import Config, DataConfig, ExecutionConfig, MeshConfig, ModelConfig, TrainingConfig
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import to_global
from bertjax.training.optimizer import make_optimizer
from bertjax.training.stages import stage_step, make_stages
from bertjax.training.state import draw_blueprint, init_state

jax.config.update("jax_enable_compilation_cache", False)  # a new compilation must give the same bits too
model = ModelConfig(vocab_size=3000, hidden_size=256, num_hidden_layers=2, num_attention_heads=4,
                    intermediate_size=1024, attention_probs_dropout_prob=0.0)
config = Config(model=model, execution=ExecutionConfig(dtype="bfloat16"),
                data=DataConfig(sequence_length=512), training=TrainingConfig(steps=20_000, grad_accum_steps=1),
                deterministic=True)
mesh, optimizer = make_mesh(MeshConfig(), jax.devices()[:1]), make_optimizer(config.optimizer)
with jax.set_mesh(mesh):
    blueprint = draw_blueprint(model, optimizer, mesh, config.execution)
    state = init_state(blueprint, model, optimizer, 0)
    step = stage_step(config, make_stages(config)[0], blueprint, optimizer)
    for batch in random_batches(5, rows=32, length=512, predictions=8, vocab_size=3000):
        state, _ = step(state, to_global(mesh, batch))
print(hashlib.sha256(b"".join(jax.device_get(x).tobytes() for x in jax.tree.leaves(state))).hexdigest())
"""


@pytest.mark.skipif(jax.default_backend() != "gpu", reason="needs a GPU: elsewhere every run has the same bits")
def test_three_processes_on_a_gpu_end_with_equal_bits() -> None:
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parent)]
    ends = {subprocess.run(command, capture_output=True, text=True, check=True).stdout for _ in range(3)}
    assert len(ends) == 1


@pytest.mark.parametrize("backend", ["mosaic", "cudnn"])
def test_unusable_attention_is_refused_before_preparing_text(backend: str) -> None:
    config = Config(
        execution=ExecutionConfig(attention=backend),
        optimizer=OptimizerConfig(warmup_steps=1),
        training=TrainingConfig(steps=10, global_batch_size=8),
    )
    with pytest.raises(
        ValueError, match=f"execution.attention='{backend}': it runs on .* compiled for cpu; set execution.att"
    ):
        preflight(config)
    assert preflight(replace(config, execution=ExecutionConfig(attention="auto")))
