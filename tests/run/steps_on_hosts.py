"""One process of a run that restores, trains a few steps, saves, and writes a report.

python steps_on_hosts.py JOB.json [--hosts.… as on the command line of bertjax]

JOB.json has `recipe`, `overrides`, `steps`, `save` (a directory or empty), `restore` (directories), `out`.
The report `OUT.<process>` has the losses, and for every step the digest of every row on this process's devices.
"""

from __future__ import annotations

import hashlib
import json
import sys
import zlib
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.config import Config, load_recipe, override
from bertjax.input.feed import open_feed
from bertjax.input.training_data import open_training_data
from bertjax.model.parameters import named_arrays
from bertjax.parallel.sharding import local_rows, put_on_devices, to_global
from bertjax.run.checkpoint import Checkpoints
from bertjax.run.checks import preflight
from bertjax.run.job import Job, assemble
from bertjax.runtime.processes import join
from bertjax.storage.progress import no_progress
from bertjax.training.stages import make_stages
from bertjax.training.state import TrainState, init_state

SAVED_STEP = 7


def main() -> None:
    job = json.loads(Path(sys.argv[1]).read_text())
    config = override(load_recipe(job["recipe"]), [*job["overrides"], *sys.argv[2:]], "steps")
    with join(config.hosts) as processes:
        report = run(config, job)
        Path(f"{job['out']}.{processes.number}").write_text(json.dumps(report))


def run(config: Config, job: dict[str, Any]) -> dict[str, Any]:
    """Do the job in one process; returns the report."""
    preflight(config)
    data = open_training_data([s.data for s in make_stages(config)], no_progress, config.training.objectives)
    run_job = assemble(config, data)
    with jax.set_mesh(run_job.mesh):
        restored = [restore_and_compare(run_job, Path(directory)) for directory in job["restore"]]
        if job["save"]:
            with Checkpoints(job["save"], keep_last=1) as checkpoints:
                checkpoints.save(SAVED_STEP, known_state(run_job), run_job.metadata)
        return {"restored": restored} | train_steps(run_job, job["steps"])


def known_state(job: Job) -> TrainState:
    """A state whose elements are a function of their array's name and shape."""
    shapes = job.blueprint.state
    return jax.tree.unflatten(
        jax.tree.structure(shapes),
        [put_on_devices(known_array(name, x), x.sharding) for name, x in named_arrays(shapes).items()],
    )


def known_array(name: str, shape: jax.ShapeDtypeStruct) -> np.ndarray:
    if np.issubdtype(shape.dtype, np.integer):
        return np.full(shape.shape, SAVED_STEP, shape.dtype)
    return np.random.default_rng(zlib.crc32(name.encode())).normal(size=shape.shape).astype(shape.dtype)


def restore_and_compare(job: Job, directory: Path) -> int:
    """Restore a saved `known_state` on this mesh and compare the local shards bit by bit; returns their number."""
    restored = Checkpoints(directory, keep_last=1).restore(job.blueprint.state, job.metadata)
    assert restored is not None and restored.step == SAVED_STEP, directory
    compared = 0
    for name, array in named_arrays(restored.state).items():
        expected = known_array(name, array)
        for shard in array.addressable_shards:
            assert np.asarray(shard.data).tobytes() == expected[shard.index].tobytes(), (directory, name)
            compared += 1
    return compared


def train_steps(job: Job, steps: int) -> dict[str, Any]:
    """Train some steps from fresh weights; returns the losses and the digests of the rows."""
    (rows,) = job.stages
    size = rows.training.global_batch_size
    state = init_state(job.blueprint, job.config.model, job.optimizer, job.config.training.seed)
    losses, digests = [], []
    local = local_rows(job.mesh, size)
    with open_feed(
        rows.batches, start_step=0, stop_step=steps, global_batch_size=size, rows=local, threads=1, engine="threads"
    ) as feed:
        for local_batch in feed:
            batch = to_global(job.mesh, local_batch)
            digests.append(row_digests(batch))
            state, metrics = rows.train_step(state, batch)
            losses.append(float(metrics["loss"]))
    return {"losses": losses, "rows": digests, "local_rows": [int(row) for row in local]}


def row_digests(batch: dict[str, jax.Array]) -> dict[int, str]:
    """Row number in the global batch -> digest of all its arrays, for rows on this process's devices."""
    hashes: dict[int, Any] = {}
    for name in sorted(batch):
        seen = set()
        for shard in batch[name].addressable_shards:
            start = shard.index[0].start or 0
            for number, row in enumerate(np.asarray(shard.data), start):
                if number not in seen:
                    seen.add(number)
                    hashes.setdefault(number, hashlib.sha256()).update(row.tobytes())
    return {number: digest.hexdigest()[:16] for number, digest in hashes.items()}


if __name__ == "__main__":
    main()
