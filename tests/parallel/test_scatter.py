"""`sum_and_scatter` for TPUs: equal to `psum_scatter`, and compiled without an all-reduce."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import topologies
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.config import MeshConfig
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.tpu import sum_and_scatter

# Shapes of gradients: the dim to scatter, and whether the first dim is the layer.
SHAPES = {
    (3, 16, 2, 4): (1, True),
    (3, 2, 4, 16): (3, True),
    (1, 6, 16): (2, True),
    (2, 4, 16): (2, False),
    (16, 2, 3): (0, False),
    (515, 8): (1, False),
}


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_sum_and_scatter_equals_psum_scatter(shape: tuple[int, ...]) -> None:
    dim, stacked = SHAPES[shape]
    mesh = make_mesh(MeshConfig(data=2, fsdp=4))
    x = np.random.default_rng(0).integers(-9, 9, (8, *shape)).astype(np.float32)  # one per device; sums are exact
    cut = P(*["fsdp" if number == dim else None for number in range(len(shape))])

    @jax.jit
    @partial(jax.shard_map, mesh=mesh, in_specs=P(("data", "fsdp")), out_specs=P("data", *cut), check_vma=False)
    def scattered(x: jax.Array) -> jax.Array:
        return sum_and_scatter(x[0], "fsdp", dim, stacked)[None]

    np.testing.assert_array_equal(scattered(jnp.asarray(x)), x.reshape(2, 4, *shape).sum(1))


@pytest.fixture(scope="module")
def tpus() -> Mesh:
    """A mesh of 16 TPU v5e chips for ahead-of-time compilation, without a TPU."""
    pytest.importorskip("libtpu", reason="needs the TPU's compiler: pip install libtpu")
    os.environ |= {"TPU_SKIP_MDS_QUERY": "1", "ALLOW_MULTIPLE_LIBTPU_LOAD": "true"}
    devices = topologies.get_topology_desc(platform="tpu", topology_name="v5e:4x4").devices
    return make_mesh(MeshConfig(data=2, fsdp=8), devices)


WEIGHTS = {
    (12, 768, 12, 64): (1, True),
    (12, 12, 64, 768): (3, True),
    (768, 12, 64): (0, False),
    (12, 64, 768): (2, False),
    (30592, 768): (1, False),
    (250112, 768): (1, False),
}


@pytest.mark.parametrize("shape", WEIGHTS, ids=str)
def test_sum_and_scatter_compiles_to_reduce_scatter(shape: tuple[int, ...], tpus: Mesh) -> None:
    dim, stacked = WEIGHTS[shape]
    cut = P(*["fsdp" if number == dim else None for number in range(len(shape))])

    def collectives(scatter: Callable[[jax.Array], jax.Array]) -> set[str]:
        program = jax.jit(jax.shard_map(scatter, mesh=tpus, in_specs=P(), out_specs=cut, check_vma=False))
        x = jax.ShapeDtypeStruct(shape, jnp.float32, sharding=NamedSharding(tpus, P()))
        return set(re.findall(r"(all-reduce|reduce-scatter)(?:-start)?\(", program.lower(x).compile().as_text()))

    assert collectives(lambda x: sum_and_scatter(x, "fsdp", dim, stacked)) == {"reduce-scatter"}
    # If this fails, XLA no longer needs the rewrite: delete parallel/tpu.py.
    assert collectives(lambda x: jax.lax.psum_scatter(x, "fsdp", scatter_dimension=dim, tiled=True)) == {"all-reduce"}
