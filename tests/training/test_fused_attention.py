"""The train step with fused attention: the same losses on a mesh, and no more communication than without it."""

from __future__ import annotations

import os
import re
from dataclasses import replace

import jax
import numpy as np
import pytest
from random_batches import random_batches
from small_training import Training

from bertjax.config import Config, DataConfig, ExecutionConfig, MeshConfig, ModelConfig, OptimizerConfig, TrainingConfig
from bertjax.input.batches import batch_spec
from bertjax.model.attention.choice import AttentionChoice
from bertjax.parallel.mesh import make_abstract_mesh, make_mesh
from bertjax.parallel.sharding import batch_sharding
from bertjax.plan.compiling import lower_train_step
from bertjax.training import step as step_module
from bertjax.training.optimizer import make_optimizer
from bertjax.training.stages import make_stages, stage_step
from bertjax.training.state import draw_blueprint

ROWS, LENGTH = 4, 128
MODEL = ModelConfig(
    vocab_size=300,
    hidden_size=64,
    num_hidden_layers=1,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=512,
    attention_probs_dropout_prob=0.0,
)
OPTIMIZER = OptimizerConfig(learning_rate=5e-3, warmup_steps=1)


WITH_DROPOUT = replace(MODEL, num_attention_heads=2, attention_probs_dropout_prob=0.1)  # heads of 32 dims


def losses(mesh: MeshConfig, model: ModelConfig) -> np.ndarray:
    batches = random_batches(2, rows=ROWS, length=LENGTH, predictions=6, vocab_size=model.vocab_size)
    return Training(mesh, model, OPTIMIZER, execution=ExecutionConfig(logits_chunk=16), dropout_seed=3).losses(batches)


@pytest.mark.long
def test_kernel_runs_on_the_rows_and_heads_of_each_device(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = losses(MeshConfig(1, 1, 1), WITH_DROPOUT)
    monkeypatch.setattr(step_module, "choose_attention", lambda *_: AttentionChoice("mosaic_interpreted", ""))
    np.testing.assert_allclose(losses(MeshConfig(1, 1, 2), WITH_DROPOUT), expected, rtol=1e-5)


def test_tpu_step_with_dropout_uses_the_kernel() -> None:
    config = replace(run(MeshConfig(2, 1, 2), "pairs", "auto"), model=WITH_DROPOUT)
    text = lower_train_step(config, make_stages(config)[0], make_abstract_mesh(config.mesh, 4), "tpu").as_text()
    assert text.count("tpu_custom_call") >= 2 and "512x512x" not in text


def run(mesh: MeshConfig, packing: str, attention: str) -> Config:
    return Config(
        model=MODEL,
        execution=ExecutionConfig(dtype="bfloat16", attention=attention, logits_chunk=16),
        data=DataConfig(sequence_length=512, packing=packing, pairs_per_row=4),
        mesh=mesh,
        training=TrainingConfig(steps=20_000, global_batch_size=8, grad_accum_steps=1),
    )


@pytest.fixture(scope="module")
def tpus() -> list[jax.Device]:
    """Four chips of a TPU v5e, without the hardware."""
    pytest.importorskip("libtpu", reason="needs the TPU's compiler: pip install libtpu")
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true"}
    from jax.experimental import topologies

    return topologies.get_topology_desc(platform="tpu", topology_name="v5e:2x2").devices


def traced(config: Config, devices: list[jax.Device], platform: str | None = None) -> jax.stages.Traced:
    mesh, optimizer, stage = make_mesh(config.mesh, devices), make_optimizer(config.optimizer), make_stages(config)[0]
    rows = batch_sharding(mesh)
    batch = {
        name: jax.ShapeDtypeStruct(shape, dtype, sharding=rows)
        for name, (shape, dtype) in batch_spec(stage.data, stage.training.global_batch_size).items()
    }
    with jax.set_mesh(mesh):
        blueprint = draw_blueprint(config.model, optimizer, mesh, config.execution)
        return stage_step(config, stage, blueprint, optimizer, platform).trace(blueprint.state, batch)


def collectives(text: str) -> set[tuple[str, str]]:
    """The name and array types of every collective, without layouts."""
    kinds = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute"
    matches = re.findall(rf"= ([^=\n]*?) ({kinds})(?:-start)?\(", text)
    return {(name, re.sub(r"\{[^}]*\}", "", types)) for types, name in matches}


@pytest.fixture(scope="module")
def by_kernel(tpus: list[jax.Device]) -> str:
    return traced(run(MeshConfig(2, 1, 2), "pairs", "auto"), tpus).lower().compile().as_text()


@pytest.mark.long  # the suite lowers one, below
def test_mosaic_compiles_for_a_tpu_over_the_heads_of_each_device(by_kernel: str) -> None:
    calls = re.findall(r".*custom_call_target=\"tpu_custom_call\".*", by_kernel)
    assert len(calls) >= 2  # forward and backward
    rows, whole = 8 // 2, 4
    assert all(f"bf16[{rows},3,512,128]" in call for call in calls)  # a group of heads, mostly padding
    assert f"[{rows},{whole},512,16]" not in by_kernel and f"[{rows},512,{whole},16]" not in by_kernel


@pytest.mark.long
def test_mosaic_adds_no_communication_to_xla(by_kernel: str, tpus: list[jax.Device]) -> None:
    plain = traced(run(MeshConfig(2, 1, 2), "pairs", "xla"), tpus).lower().compile().as_text()
    assert "tpu_custom_call" not in plain
    assert collectives(by_kernel) and collectives(by_kernel) <= collectives(plain)


@pytest.mark.parametrize(
    "mesh",
    [
        MeshConfig(2, 1, 2),
        *(pytest.param(mesh, marks=pytest.mark.long) for mesh in (MeshConfig(4, 1, 1), MeshConfig(2, 1, 1, length=2))),
    ],
    ids=["data=2,tensor=2", "data=4", "data=2,length=2"],
)
def test_step_lowered_for_gpus_uses_cudnn(mesh: MeshConfig, monkeypatch: pytest.MonkeyPatch) -> None:
    # jax checks the version of the installed cuDNN before lowering; here there is none.
    monkeypatch.setattr("jax._src.cudnn.fused_attention_stablehlo.check_cudnn_version", lambda: 91_100)
    monkeypatch.setattr("bertjax.training.step.compute_capability", lambda device: "9.0")
    step = traced(run(mesh, "none", "cudnn"), jax.devices()[:4], "cuda")
    text = step.lower(lowering_platforms=("cuda",)).as_text()
    heads = 4 // (mesh.tensor * mesh.length)
    calls = re.findall(r"@__cudnn\$fmha\w*\(.*", text)
    assert len(calls) >= 2 and all(f"tensor<{8 // mesh.data}x512x{heads}x16xbf16>" in call for call in calls)
