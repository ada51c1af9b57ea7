"""The collectives of the compiled train step on every kind of mesh: each expected one once, and no others.

The programs are compiled for eight fake CPU devices; `test_tpu.py` has one that is compiled for a TPU.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import jax
import pytest
from jax.sharding import PartitionSpec

from bertjax.config import Config, DataConfig, MeshConfig, ModelConfig, OptimizerConfig, TrainingConfig
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import is_names, spec
from bertjax.plan.collectives import Collective, find_collectives
from bertjax.plan.compiling import blueprint_on, compile_stage
from bertjax.plan.hlo import parse
from bertjax.training.stages import make_stages

ROWS, LENGTH, HIDDEN, FLOAT = 32, 24, 64, 4
SMALL = 256  # bytes: metrics, weights of the losses, the norm of the gradient
METRICS = 1024  # bytes of them in one exchange with gradients


def recipe(mesh: MeshConfig, microbatches: int) -> Config:
    return Config(
        mesh=mesh,
        model=ModelConfig(
            vocab_size=300,
            hidden_size=HIDDEN,
            num_hidden_layers=2,
            num_attention_heads=8,
            intermediate_size=128,
            max_position_embeddings=LENGTH,
        ),
        data=DataConfig(sequence_length=LENGTH, max_predictions=6),
        optimizer=OptimizerConfig(warmup_steps=2),
        training=TrainingConfig(steps=100, global_batch_size=ROWS, grad_accum_steps=microbatches),
    )


@dataclass(frozen=True)
class Step:
    """The collectives of a compiled step, and the bytes of parameters per tensor shard, split over fsdp or whole."""

    sent: list[Collective]
    split: int
    whole: int

    def large(self, kind: str, *axes: str) -> int:
        """Total bytes of the large collectives of this kind along exactly these axes; each must run once a step."""
        matches = [one for one in self.sent if (one.kind, one.axes) == (kind, axes) and one.payload > SMALL]
        assert all(one.times == 1 for one in matches), f"more than once a step: {matches}"
        return sum(one.payload for one in matches)

    def kinds(self) -> set[tuple[str, tuple[str, ...]]]:
        """The kind and the axes of every collective that is larger than metrics."""
        return {(one.kind, one.axes) for one in self.sent if one.payload > SMALL}


def compiled(mesh: MeshConfig, microbatches: int) -> Step:
    config = recipe(mesh, microbatches)
    device_mesh = make_mesh(mesh)
    program = compile_stage(config, make_stages(config)[0], device_mesh, "cpu")
    sizes = {True: 0, False: 0}
    blueprint = blueprint_on(config, device_mesh)
    names = jax.tree.leaves(blueprint.logical_axes, is_leaf=is_names)
    for leaf, logical in zip(jax.tree.leaves(blueprint.state.params), names, strict=True):
        axes = tuple(spec(logical))
        shard = math.prod(leaf.shape) * FLOAT // (device_mesh.shape["tensor"] if "tensor" in axes else 1)
        sizes["fsdp" in axes and device_mesh.shape["fsdp"] > 1] += shard
    return Step(find_collectives(program.module, device_mesh, (0,) * 8), sizes[True], sizes[False])


def test_permutation_sends_the_whole_array() -> None:
    mesh, around = make_mesh(MeshConfig()), [(n, (n + 1) % 8) for n in range(8)]
    rotated = jax.shard_map(
        lambda x: jax.lax.ppermute(x, "data", around),
        mesh=mesh,
        in_specs=PartitionSpec("data"),
        out_specs=PartitionSpec("data"),
    )
    text = jax.jit(rotated).lower(jax.ShapeDtypeStruct((8, 1024), jax.numpy.float32)).compile().as_text()
    (permutation,) = find_collectives(parse(text), mesh, (0,) * 8)
    assert (permutation.kind, permutation.payload, permutation.moved) == ("collective-permute", 4096, 4096)


@pytest.mark.parametrize("microbatches", [pytest.param(1, marks=pytest.mark.long), 4])
def test_data_parallel_reduces_each_gradient_once_only(microbatches: int) -> None:
    step = compiled(MeshConfig(8), microbatches)
    assert step.kinds() == {("all-reduce", ("data",))}
    assert step.whole <= step.large("all-reduce", "data") <= step.whole + METRICS


@pytest.mark.parametrize(
    "mesh",
    [pytest.param(MeshConfig(1, 8), id="fsdp"), pytest.param(MeshConfig(2, 4), id="data,fsdp")],
)
@pytest.mark.long  # the suite has all of it on data, fsdp and tensor, below
def test_fsdp_gathers_weights_and_scatters_gradients_only(mesh: MeshConfig) -> None:
    step = compiled(mesh, 4)
    every = ("data", "fsdp") if mesh.data > 1 else ("fsdp",)
    assert step.large("all-gather", "fsdp") == step.split
    assert step.large("reduce-scatter", "fsdp") == step.split
    assert step.whole <= step.large("all-reduce", *every) <= step.whole + METRICS
    allowed = {("all-gather", ("fsdp",)), ("reduce-scatter", ("fsdp",)), ("all-reduce", every)}
    if mesh.data > 1:  # the scattered gradients of each device are summed over data
        shards = step.split // mesh.fsdp
        assert shards <= step.large("all-reduce", "data") <= shards + METRICS
        allowed.add(("all-reduce", ("data",)))
    assert step.kinds() == allowed


@pytest.mark.parametrize(
    "mesh",
    [
        pytest.param(MeshConfig(1, 1, 8), marks=pytest.mark.long, id="tensor"),
        pytest.param(MeshConfig(2, 2, 2), id="data,fsdp,tensor"),
    ],
)
def test_tensor_axis_sends_activations_only(mesh: MeshConfig) -> None:
    """Only activations are summed along `tensor`: after attention and MLP, and for the word table's two uses."""
    step = compiled(mesh, 4)
    activation = ROWS // 4 // (mesh.data * mesh.fsdp) * LENGTH * HIDDEN * FLOAT
    along_tensor = [one for one in step.sent if "tensor" in one.axes and one.payload > SMALL]
    assert along_tensor
    assert all(one.axes == ("tensor",) and one.largest <= activation for one in along_tensor), along_tensor
    others = {(kind, axes) for kind, axes in step.kinds() if axes != ("tensor",)}
    if mesh.fsdp == 1:
        assert not others
        return
    # Each tensor shard gathers its weights and scatters its gradients separately.
    assert step.large("all-gather", "fsdp") == step.split
    assert step.large("reduce-scatter", "fsdp") == step.split
    assert step.split // mesh.fsdp <= step.large("all-reduce", "data") <= step.split // mesh.fsdp + METRICS
    assert step.whole <= step.large("all-reduce", "data", "fsdp") <= step.whole + METRICS
    gathers = {("all-gather", ("fsdp",)), ("reduce-scatter", ("fsdp",))}
    assert others == gathers | {("all-reduce", ("data",)), ("all-reduce", ("data", "fsdp"))}
