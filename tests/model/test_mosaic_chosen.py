"""The kernel for BigBird's blocks on TPUs, interpreted on a CPU, equals the XLA reference."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_sides import assert_same, heads_split_over, some_ids
from jax.experimental.pallas import tpu as pltpu

from bertjax.model.attention import mosaic
from bertjax.model.attention.block_sparse import (
    block_sparse_attention,
    blocks_of_transformers_evaluation,
    random_blocks,
)

KEYS = jnp.asarray([3, 0xFEDCBA98], jnp.uint32)


def outputs_and_gradients(
    backend: str, ids: jax.Array, chosen: np.ndarray, head_dim: int, block: int, keys: jax.Array | None
) -> list[np.ndarray]:
    q, k, v, read = jax.random.normal(jax.random.key(0), (4, *ids.shape, len(chosen), head_dim))

    def total(q: jax.Array, k: jax.Array, v: jax.Array) -> tuple[jax.Array, jax.Array]:
        out = block_sparse_attention(q, k, v, ids, jnp.asarray(chosen), keys, 0.1, block=block, backend=backend)
        return jnp.sum(out * read), out

    gradients, out = jax.jit(jax.grad(total, argnums=(0, 1, 2), has_aux=True))(q, k, v)
    return [np.asarray(x, np.float64) for x in (out, *gradients)]


CASES = {
    "padded, half a group": (384, False, random_blocks(0, 1, 1, 6, 1), 64, 64, KEYS),
    "two heads": (512, False, random_blocks(0, 1, 2, 8, 2), 64, 64, KEYS),
    "four blocks in a tile": (384, False, random_blocks(0, 1, 1, 12, 3), 64, 32, None),
    "as transformers evaluates": (512, False, blocks_of_transformers_evaluation(1, 8, 3), 128, 64, None),
    "packed": (512, True, random_blocks(0, 1, 1, 8, 1), 128, 64, KEYS),
}
FIRST, *OTHERS = (pytest.param(*case, id=name) for name, case in CASES.items())
LONG = [pytest.param(*case.values, id=case.id, marks=pytest.mark.long) for case in OTHERS]


@pytest.mark.parametrize(("length", "packed", "chosen", "head_dim", "block", "keys"), [FIRST, *LONG])
def test_chosen_blocks_kernel_matches_reference(
    length: int, packed: bool, chosen: np.ndarray, head_dim: int, block: int, keys: jax.Array | None
) -> None:
    ids = some_ids(length, packed)
    actual, reference = (
        outputs_and_gradients(backend, ids, chosen, head_dim, block, keys) for backend in ("mosaic_interpreted", "xla")
    )
    assert_same(actual, reference, 1e-5)


@pytest.mark.long
def test_split_heads_see_their_own_blocks() -> None:
    ids, chosen, actual = some_ids(384, packed=False), random_blocks(0, 1, 2, 6, 1), []
    for devices in (1, 2):
        with jax.set_mesh(heads_split_over(devices)):
            actual.append(outputs_and_gradients("mosaic_interpreted", ids, chosen, 128, 64, KEYS))
    assert_same(*actual, 1e-6)


@pytest.mark.long
def test_chosen_blocks_kernel_reads_within_bounds(monkeypatch: pytest.MonkeyPatch) -> None:
    """The TPU interpreter fills new memory with NaN, and raises for accesses outside of an array."""
    run = mosaic.mosaic_attention

    def interpreted(*arrays, chosen: jax.Array) -> jax.Array:
        return run(*arrays[:6], arrays[6]._replace(interpret=pltpu.InterpretParams()), chosen=chosen)

    monkeypatch.setattr(mosaic, "mosaic_attention", interpreted)
    ids, chosen = some_ids(384, packed=True), random_blocks(0, 1, 2, 6, 1)
    actual, reference = (
        outputs_and_gradients(backend, ids, chosen, 64, 64, KEYS) for backend in ("mosaic_interpreted", "xla")
    )
    assert_same(actual, reference, 1e-5)
