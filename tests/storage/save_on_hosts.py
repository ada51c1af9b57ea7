"""Run one of several processes that save a replicated state to a bucket, then save and restore a sharded array.

python save_on_hosts.py RUN CACHE PROCESS PROCESSES COORDINATOR
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
from bertjax.run.checkpoint_metadata import run_metadata
from bertjax.runtime.processes import join
from bertjax.storage.remote import RemotePath
from bertjax.storage.remote_run import staging_dir

STEP = 3
STATE = {
    "params": {"bias": np.arange(64, dtype=np.float32), "kernel": np.arange(2048, dtype=np.float32).reshape(64, 32)},
    "step": np.int32(STEP),
}
SHARDED = {"kernel": np.random.default_rng(1).normal(size=(64, 4096)).astype(np.float32)}
UPLOAD, DOWNLOAD = RemotePath.upload_all, RemotePath.download_all


def upload(folder: RemotePath, source: Path, names: list[str]) -> None:
    """Upload, and print the names."""
    print("uploads", *sorted(name for name in names if "/" in name), flush=True)
    UPLOAD(folder, source, names)


def download(folder: RemotePath, target: Path, names: list[str]) -> None:
    """Download, and print the bytes of arrays."""
    DOWNLOAD(folder, target, names)
    print("downloads", sum((target / name).stat().st_size for name in names if name[-1].isdigit()), flush=True)


def main() -> None:
    RemotePath.upload_all = upload
    run, cache, process, processes, coordinator = sys.argv[1:]
    number = int(process)
    with join(HostsConfig(coordinator=coordinator, processes=int(processes), process=number)) as together:
        mesh = jax.make_mesh((jax.device_count(),), ("data",), axis_types=(AxisType.Auto,))
        metadata = run_metadata(to_dict(Config()), tokenizer_fingerprint="aa", data_fingerprint="bb", mesh=mesh)
        whole = NamedSharding(mesh, PartitionSpec())
        with staging_dir(RemotePath(run), f"{cache}/{number}", number) as staging:
            if staging.claim is not None:
                staging.claim.take()
            together.gather("claimed")
            with Checkpoints(f"{run}/checkpoints", keep_last=1, staging=staging) as saved:
                saved.save(STEP, jax.tree.map(lambda x: put_on_devices(x, whole), STATE), metadata)
            together.gather("saved")
            divided = NamedSharding(mesh, PartitionSpec("data"))
            state = jax.tree.map(lambda x: put_on_devices(x, divided), SHARDED)
            with Checkpoints(f"{run}/sharded", keep_last=1, staging=staging) as saved:
                saved.save(STEP, state, metadata)
            together.gather("saved sharded")
            RemotePath.download_all = download
            abstract = jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=x.sharding), state)
            restored = Checkpoints(f"{run}/sharded", keep_last=1, staging=staging).restore(abstract, metadata)
            assert restored is not None
            for one, other in zip(
                restored.state["kernel"].addressable_shards, state["kernel"].addressable_shards, strict=True
            ):
                np.testing.assert_array_equal(one.data, other.data)
            print("restored", flush=True)


if __name__ == "__main__":
    main()
