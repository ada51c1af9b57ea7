"""Topology names, the errors for unknown ones, and the default mesh of a run on TPUs."""

from __future__ import annotations

import importlib.util
from types import SimpleNamespace

import pytest

from bertjax.config import Config, MeshConfig, ModelConfig, TrainingConfig
from bertjax.plan.roofline import _rate
from bertjax.plan.topologies import CHIPS, SHAPES, Topology, find_chip, open_topology, parse_name
from bertjax.training.stages import mesh_of_tpus


@pytest.mark.parametrize("kind", CHIPS)
def test_every_usual_topology_name_is_parsed(kind: str) -> None:
    for shape in SHAPES[kind]:
        assert str(parse_name(f"{kind}:{shape}")) == f"{kind}:{shape}"
    assert CHIPS[kind].flops > 1e14
    assert CHIPS[kind].usable > 1e10


@pytest.mark.parametrize(
    ("name", "slices", "message"),
    [
        ("v5:16x16", 1, r"unknown; nearest: v5e:16x16"),
        ("v5e16x16", 1, r"unknown; nearest: v5e:16x16"),
        ("h100:8x", 1, r"unknown; nearest: h100:8x8"),
        ("mars", 1, r"unknown; names are local, or like v4:8x16x16"),
        ("v5p:4x4", 1, r"a v5p slice has 3 dims; nearest: v5p:4x4x4"),
        ("v5e:2x2x2", 1, r"a v5e slice has 2 dims; nearest: v5e:2x2"),
        ("h100:2x2x8", 1, r"HOSTSxGPUS"),
        ("h100:8", 2, r"--slices 2 .* hosts of GPUs are part of the name"),
        ("v5e:4x4", 0, r"--slices 0"),
        ("v5litepod-16", 1, r"unknown; with as many chips: v5e:4x4"),
        ("v5p-16", 1, r"with as many chips: v5p:2x2x2"),
        ("v5lite:4x4", 1, r"unknown; nearest: v5e:4x4"),
        ("trillium:8x8", 1, r"unknown; nearest: v6e:8x8"),
        ("ironwood-64", 1, r"with as many chips: tpu7x:4x4x4"),
    ],
)
def test_unknown_topology_is_refused_with_the_nearest_names(name: str, slices: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse_name(name, slices)


def test_local_topology_refuses_several_slices() -> None:
    with pytest.raises(ValueError, match="--slices 2 with --topology local"):
        open_topology("local", 2)


@pytest.mark.parametrize(
    ("places", "links"), [(range(16), 2.0), (range(8), 1.0), (range(0, 16, 2), 0.5), (range(0, 8, 4), 0.25)]
)
def test_ring_spans_all_coordinates_of_a_wrapped_dim(places: range, links: float) -> None:
    devices = tuple(SimpleNamespace(coords=(x, y, 0)) for x in range(16) for y in range(16))
    topology = Topology("v5e:16x16", devices, CHIPS["v5e"], (True, True), None)
    group = [device for device in devices if device.coords[0] in places and device.coords[1] == 3]
    assert _rate(group, topology, CHIPS["v5e"]) == links * CHIPS["v5e"].link


def test_wraps_follow_the_hardware() -> None:
    assert parse_name("v5e:16x16").wraps == (True, True)
    assert parse_name("v5e:8x16").wraps == (False, True)
    assert parse_name("v5p:4x4x8").wraps == (True, True, True)
    assert parse_name("v5p:2x4x4").wraps == (False, False, False)


def test_find_chip_accepts_real_device_kinds() -> None:
    for kind, name in [("TPU v5 lite", "v5e"), ("TPU v5p", "v5p"), ("TPU v5", "v5p"), ("TPU v6 lite", "v6e")]:
        assert find_chip(kind) is CHIPS[name]
    assert find_chip("NVIDIA H200") is CHIPS["h200"]
    assert find_chip("NVIDIA H100 80GB HBM3") is CHIPS["h100"]
    assert find_chip("cpu") is None


def test_missing_cuda_compiler_names_the_package() -> None:
    if importlib.util.find_spec("jax_cuda12_plugin"):
        pytest.skip("jax's CUDA plug-in is installed")
    with pytest.raises(ModuleNotFoundError, match=r"pip install 'bertjax\[cuda\]'"):
        open_topology("h100:8")


@pytest.mark.parametrize(
    ("rows", "heads", "devices", "slices", "mesh"),
    [
        (256, 12, 16, 1, MeshConfig(fsdp=8)),
        (144, 12, 32, 1, MeshConfig(fsdp=8, tensor=2)),
        (8, 12, 32, 1, MeshConfig(fsdp=8, tensor=4)),
        (144, 3, 32, 1, MeshConfig(fsdp=8, length=2)),  # two devices cannot share three heads
        (144, 1, 32, 1, MeshConfig(fsdp=8)),  # refused later: nor tokens, with a convolution
        (48, 12, 32, 2, MeshConfig(fsdp=8, tensor=2)),
        (8, 12, 16, 2, MeshConfig(fsdp=4, tensor=2)),
        (9 * 64, 12, 1024, 4, MeshConfig(fsdp=8, length=16)),
    ],
)
def test_devices_share_heads_or_tokens_where_rows_are_too_few(
    rows: int, heads: int, devices: int, slices: int, mesh: MeshConfig
) -> None:
    conv = {"position_embedding": "relative", "relative_max": 8, "conv_kernel": 3} if heads == 1 else {}
    model = ModelConfig(vocab_size=1000, hidden_size=768, num_attention_heads=heads, **conv)
    config = Config(model=model, training=TrainingConfig(global_batch_size=rows, grad_accum_steps="auto"))
    assert mesh_of_tpus(config, devices, slices) == mesh
