"""An evaluation's pace: batches are handed to the devices one ahead, so that a signal ends it soon."""

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import MeshConfig
from bertjax.parallel.mesh import make_mesh
from bertjax.training.evaluate import HeldOut


class Numbered:
    """Batches that are their numbers."""

    def batch(self, number, size, rows=None):
        return {"number": np.full(size if rows is None else len(rows), number, np.float32)}


def test_one_batch_is_under_way_while_the_next_is_made():
    work = jax.jit(lambda x: jax.lax.fori_loop(0, 200, lambda _, y: jnp.tanh(y @ y), x + jnp.ones((200, 200))).sum())
    work(0.0).block_until_ready()
    sums: list[jax.Array] = []
    behind: list[int] = []

    def step(_, batch):
        sums.append(work(batch["number"][0]))
        return sums[-1]

    def go_on():
        behind.append(sum(not array.is_ready() for array in sums))
        return True

    mesh = make_mesh(MeshConfig(data=1), jax.devices()[:1])
    HeldOut(Numbered(), mesh, 32, 4).evaluate(step, {}, (), go_on)
    assert len(behind) == 8 and max(behind) <= 1, behind
