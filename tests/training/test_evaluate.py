"""An evaluation's rows do not depend on batch sizes; it runs one batch ahead, so that a signal ends it soon."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pair_corpora import MemorySplit, Specials, random_documents

from bertjax.config import DataConfig, MeshConfig, TrainingConfig
from bertjax.input.batches import RowBatches
from bertjax.parallel.mesh import make_mesh
from bertjax.run.job import held_out_sets
from bertjax.training.evaluate import HeldOut


class Numbered:
    """Batches that contain only their number."""

    def batch(self, number, size, rows=None):
        return {"number": np.full(size if rows is None else len(rows), number, np.float32)}


def test_evaluation_runs_one_batch_ahead():
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


@pytest.mark.parametrize("devices", [1, 4])
@pytest.mark.parametrize(("batch_size", "grad_accum_steps"), [(8, 1), (8, 2), (16, 1), (16, 4), (64, 1), (64, 8)])
def test_held_out_rows_do_not_depend_on_batch_size(batch_size, grad_accum_steps, devices):
    data = DataConfig(sequence_length=32, max_predictions=5)
    seen = [RowBatches(MemorySplit(random_documents(12, seed=seed)), Specials(), data, seed) for seed in range(3)]
    training = TrainingConfig(eval_rows=21, global_batch_size=batch_size, grad_accum_steps=grad_accum_steps)
    mesh = make_mesh(MeshConfig(data=devices), jax.devices()[:devices])
    names = ("eval", "eval/source_0", "eval/source_1")
    sets = held_out_sets(dict(zip(names, seen, strict=True)), training, mesh)
    for held_out, batches, rows in zip(sets, seen, (21, 7, 7), strict=True):
        expected = batches.rows(np.arange(rows))
        for read in (list(held_out), list(held_out.whole_batches())):
            for key, values in expected.items():
                actual = np.concatenate([np.asarray(batch[key]) for batch in read])
                np.testing.assert_array_equal(actual[:rows], values, err_msg=key)
                assert not actual[rows:].any(), key
