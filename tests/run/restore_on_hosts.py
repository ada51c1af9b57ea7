"""One of two processes that save a state, each holding a half, and restore it after one's files were deleted.

python restore_on_hosts.py FOLDER PROCESS PROCESSES COORDINATOR
"""

from __future__ import annotations

import sys
from pathlib import Path

import jax
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from bertjax.config import Config, HostsConfig, to_dict
from bertjax.parallel.sharding import put_on_devices
from bertjax.run.checkpoint import Checkpoints
from bertjax.run.checkpoint_metadata import DamagedCheckpoint, run_metadata
from bertjax.runtime.processes import join


def main() -> None:
    folder, process, processes, coordinator = sys.argv[1:]
    with join(HostsConfig(coordinator=coordinator, processes=int(processes), process=int(process))) as together:
        mesh = jax.make_mesh((jax.device_count(),), ("fsdp",), axis_types=(AxisType.Auto,))
        metadata = run_metadata(to_dict(Config()), tokenizer_fingerprint="aa", data_fingerprint="bb", mesh=mesh)
        halves = NamedSharding(mesh, PartitionSpec("fsdp"))
        content = np.random.default_rng(1).normal(size=8192).astype(np.float32)  # too large to be stored in an index
        state = {name: put_on_devices(content, halves) for name in ("bias", "kernel")}
        abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
        with Checkpoints(folder, keep_last=2) as checkpoints:
            for step in (1, 2):
                checkpoints.save(step, state, metadata)
        together.gather("saved")
        if together.first:
            for file in Path(folder, "2", "state", "ocdbt.process_1").rglob("d/*"):
                file.unlink()
        together.gather("damaged")
        checkpoints = Checkpoints(folder, keep_last=2)
        try:
            checkpoints.restore(abstract, metadata)
        except DamagedCheckpoint as error:
            print(f"refused: {error}", flush=True)
        restored = checkpoints.restore(abstract, metadata, "previous")
        print(f"restored {restored.step}", *restored.notices, flush=True)


if __name__ == "__main__":
    main()
