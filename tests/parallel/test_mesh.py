"""Meshes: which configs fit or are refused, and which process holds which rows."""

from __future__ import annotations

from dataclasses import replace

import jax
import numpy as np
import pytest
from their_families import IN_TRANSFORMERS, small

from bertjax.config import MeshConfig, ModelConfig, TrainingConfig
from bertjax.families.networks import abstract_network
from bertjax.model.encoder import padded_vocab_size
from bertjax.parallel.mesh import batch_shards, make_mesh
from bertjax.parallel.sharding import (
    batch_sharding,
    check_divisible,
    divided_sizes,
    is_names,
    local_rows,
    spec,
    to_global,
)

MODEL = ModelConfig(hidden_size=32, num_attention_heads=4, intermediate_size=64)


def test_axis_of_minus_one_takes_the_remaining_devices() -> None:
    assert dict(make_mesh(MeshConfig(-1, 2, 2)).shape) == {"data": 2, "fsdp": 2, "tensor": 2}
    assert batch_shards(make_mesh(MeshConfig())) == 8


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MeshConfig(3, 1, 1), "does not fit the 8 cpu devices"),
        (MeshConfig(2, 2, 1), "does not fit the 8 cpu devices"),
        (MeshConfig(-1, -1, 1), "at most one may be -1"),
        (MeshConfig(0, 1, 1), "every axis must be at least 1"),
    ],
)
def test_mesh_that_does_not_fit_is_refused(config: MeshConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_mesh(config)


@pytest.mark.parametrize(
    ("config", "axis"), [(MeshConfig(-1, 2), 0), (MeshConfig(-1, 4, dcn_fsdp=2), 1)], ids=["over data", "over fsdp"]
)
def test_slices_lie_along_their_axis(config: MeshConfig, axis: int) -> None:
    devices = jax.devices()
    mesh = make_mesh(config, devices, [n % 2 for n in range(8)])
    number = {device: n % 2 for n, device in enumerate(devices)}
    slices = np.vectorize(number.__getitem__)(mesh.devices)
    halves = np.split(slices, 2, axis)
    assert {len(set(half.flat)) for half in halves} == {1}
    assert sorted(mesh.devices.flat, key=lambda device: device.id) == devices


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (MeshConfig(dcn_data=3), r"mesh.dcn_data=3 .* does not match the 2 slice"),
        (MeshConfig(dcn_fsdp=3), r"mesh.dcn_fsdp must divide the number of slices, which is 2"),
        (MeshConfig(data=1, fsdp=8), r"mesh.data=1 cannot be split over 2 of the 2 slices"),
    ],
)
def test_slices_that_do_not_fit_are_refused(config: MeshConfig, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_mesh(config, jax.devices(), [0] * 4 + [1] * 4)


def test_factor_across_slices_is_refused_with_one_slice() -> None:
    with pytest.raises(ValueError, match=r"mesh.dcn_data=2 .* does not match the 1 slice"):
        make_mesh(MeshConfig(dcn_data=2))


@pytest.mark.parametrize(
    ("mesh", "model", "training", "message"),
    [
        (MeshConfig(8), {}, {"global_batch_size": 12}, r"global_batch_size=12.*multiple of 8"),
        (MeshConfig(8), {}, {"global_batch_size": 16, "grad_accum_steps": 4}, r"grad_accum_steps=4.*multiple of 32"),
        (MeshConfig(1, 8), {"hidden_size": 36}, {}, r"model.hidden_size=36 .*mesh.fsdp=8"),
        (MeshConfig(1, 1, 8), {}, {}, r"model.num_attention_heads=4 .*mesh.tensor=8"),
    ],
)
def test_check_divisible_refuses_uneven_sizes(mesh: MeshConfig, model: dict, training: dict, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        check_divisible(
            make_mesh(mesh),
            replace(MODEL, **model),
            replace(TrainingConfig(), **training),
            30_592,
        )


@pytest.mark.parametrize("family", IN_TRANSFORMERS)
def test_divided_sizes_covers_every_family(family: str) -> None:
    model = small(family)
    checked = {(axis, size) for _, size, axis in divided_sizes(model, padded_vocab_size(model))}
    _, shapes, axes = abstract_network(model)
    names = jax.tree.leaves(axes, is_leaf=is_names)
    for leaf, dims in zip(jax.tree.leaves(shapes), names, strict=True):
        divided = {(axis, size) for axis, size in zip(spec(dims), leaf.shape, strict=True) if axis}
        assert divided <= checked, dims


def test_mesh_axis_splits_one_dim_only() -> None:
    assert tuple(spec(("embed", "embed"))) == ("fsdp", None)
    with pytest.raises(KeyError):
        spec(("embedd",))


@pytest.mark.parametrize("config", [MeshConfig(8), MeshConfig(2, 2, 2)])
def test_to_global_keeps_the_order_of_rows(config: MeshConfig) -> None:
    mesh = make_mesh(config)
    rows = local_rows(mesh, 16)
    np.testing.assert_array_equal(rows, np.arange(16))
    batch = {"x": np.arange(32).reshape(16, 2)}
    placed = to_global(mesh, batch)["x"]
    assert placed.sharding == batch_sharding(mesh)
    np.testing.assert_array_equal(jax.device_get(placed), batch["x"])
