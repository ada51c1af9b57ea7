"""Checkpoints in object storage, where renames are not atomic and machines have no common disk.

Save: in every process, Orbax writes the shards of the local devices to a local folder, which is then uploaded. Together
the objects equal the checkpoint that Orbax would write to a shared disk. An array has one file per shard, however many
devices hold it, and the processes divide the writing by size. Once all shards are uploaded, process 0 writes the
metadata. A folder without metadata is not a checkpoint, so a checkpoint is never partial; the next save removes such
folders left by killed jobs.

Restore: every process downloads the shards that its devices need, and Orbax reads them from the local disk onto any
mesh.

This works for every kind of URL that fsspec opens; Orbax 0.12 itself supports only gs://.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import json
import logging
import shutil
import tempfile
import threading
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh, NamedSharding, Sharding

from bertjax.storage.remote import AnyPath, RemotePath
from bertjax.storage.remote_run import StagingDir

STATE, METADATA = "state", "metadata"  # the items of a checkpoint
_DOCUMENT = f"{METADATA}/metadata"  # the path that Orbax uses
_GRID = ".zarray"  # Zarr's description of an array, with the shape of its chunks
_COMMITTED = "commit_success.txt"  # the marker that Orbax expects in object storage
_UPLOAD_SECONDS = 3600  # limit for the slowest process
# Log messages of Orbax to hide: warnings at every save, and errors that it also raises.
_EXPECTED = (
    *("Global object size logging disabled", "Skipping merge of OCDBT checkpoints"),
    *("Handler Commit operations or the Commit", "_SignalingThread.run() raised", "Save Finalize thread"),
    *("Failed to write metadata", "Failed to update metadata"),
)


class RemoteCheckpoints:
    """The counterpart of `ocp.CheckpointManager` for object storage; every process calls every method."""

    def __init__(self, directory: RemotePath, staging: StagingDir, *, keep_last: int, keep_every: int) -> None:
        self._directory, self._claim = directory, staging.claim
        self._name = directory.name  # distinguishes it from another directory that the run writes at the same time
        self._folder = staging.folder / self._name
        self._keep_last, self._keep_every = keep_last, keep_every
        self._orbax = ocp.AsyncCheckpointer(
            _handler(),
            # In the background, one process would wait for a directory that another has already removed.
            async_options=ocp.AsyncOptions(create_directories_asynchronously=False),
            multiprocessing_options=alone(),
        )
        self._barrier = ocp.multihost.get_barrier_sync_fn()
        self._saves = 0
        self._upload: threading.Thread | None = None
        self._failure: BaseException | None = None

    def save(self, step: int, tree: Any, document: Mapping[str, Any]) -> None:
        """Start writing a checkpoint; returns once the arrays are copied."""
        if jax.process_index() == 0:
            self._require_claim()
            for number in sorted(_numbers(self._directory) - set(steps(self._directory))):
                (self._directory / str(number)).rmtree()
        shutil.rmtree(self._folder, ignore_errors=True)
        multihost_utils.sync_global_devices(f"{self._name}/{step} can be uploaded")
        self._orbax.save((self._folder / STATE).absolute(), args=ocp.args.PyTreeSave(spread_writers(tree)))
        self._saves += 1
        self._upload = threading.Thread(target=self._run, args=(step, document), name=f"upload of {self._name}/{step}")
        self._upload.start()

    def wait_until_finished(self) -> None:
        """Wait for the last save, and raise its error if it failed."""
        if self._upload is not None:
            self._upload.join()
            self._upload = None
        if self._failure is not None:
            failure, self._failure = self._failure, None
            raise failure

    def is_saving_in_progress(self) -> bool:
        """Whether the last save is still being written or uploaded."""
        return self._upload is not None and self._upload.is_alive()

    def close(self) -> None:
        """Wait, and stop Orbax's threads."""
        try:
            self.wait_until_finished()
        finally:
            self._orbax.close()

    def _run(self, step: int, document: Mapping[str, Any]) -> None:
        """Publish in a thread, and keep the error for `wait_until_finished`."""
        try:
            self._publish(step, document)
        except BaseException as error:
            self._failure = error

    def _publish(self, step: int, document: Mapping[str, Any]) -> None:
        self._orbax.wait_until_finished()
        target, folder = self._directory / str(step), self._folder / STATE
        files = [path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()]
        # Files outside folders are the same in all processes, and storage limits the write rate of an object.
        mine = [name for name in files if name != _COMMITTED and ("/" in name or jax.process_index() == 0)]
        (target / STATE).upload_all(folder, mine)
        # If a process dies during its upload, the heartbeat notices long before this timeout.
        self._barrier(key=f"{self._name}/{step} uploaded {self._saves}", timeout_ms=_UPLOAD_SECONDS * 1000)
        if jax.process_index() == 0:
            self._require_claim()
            (target / STATE / _COMMITTED).write_bytes(f"all of {target / STATE} is written".encode())
            (target / _DOCUMENT).write_bytes(json.dumps(document).encode())
            self._remove_old()
        # Afterwards all processes see the same checkpoints.
        self._barrier(key=f"{self._name}/{step} written {self._saves}", timeout_ms=_UPLOAD_SECONDS * 1000)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _remove_old(self) -> None:
        for step in steps(self._directory)[: -self._keep_last]:
            if not self._keep_every or step % self._keep_every:
                remove(self._directory / str(step))

    def _require_claim(self) -> None:
        if self._claim is not None:
            self._claim.require()


def steps(directory: RemotePath) -> list[int]:
    """Steps with a checkpoint, ascending; a checkpoint has metadata, which is written last."""
    return sorted(number for number in _numbers(directory) if (directory / str(number) / _DOCUMENT).is_file())


def remove(checkpoint: RemotePath) -> None:
    """Remove a checkpoint, starting with its metadata, so that the rest never counts as a checkpoint."""
    (checkpoint / _DOCUMENT).unlink(missing_ok=True)
    checkpoint.rmtree()


def set_aside(checkpoint: RemotePath, target: RemotePath) -> None:
    """Rename a checkpoint by copying it."""
    checkpoint.copy_to(target)
    remove(checkpoint)


@contextlib.contextmanager
def local_state(state: AnyPath, arrays: Mapping[str, Any], staging: Path | None = None) -> Iterator[Path]:
    """Yield a local folder with the files that Orbax needs to read some arrays: `state` itself, or a download.

    `arrays` has a jax.ShapeDtypeStruct for each. If it has a sharding, only the shards for this process's devices are
    downloaded. Raises OSError if the disk is too small for the download.
    """
    if isinstance(state, Path):
        yield state
        return
    structs = {name.replace("/", "."): array for name, array in arrays.items()}
    with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=staging) as path:
        folder, sizes = Path(path), state.sizes()
        # 1. The files about all arrays, and the description of each array
        index = [name for name in sizes if "/" not in name or name.startswith("array_metadatas/")]
        state.download_all(folder, [*index, *(f"{name}/{_GRID}" for name in structs if f"{name}/{_GRID}" in sizes)])
        # 2. The shards
        shards = [
            f"{name}/{file}" for name, array in structs.items() for file in _local_shards(folder / name, array, sizes)
        ]
        needed, free = sum(sizes[name] for name in shards), shutil.disk_usage(folder).free
        if needed > free:
            raise OSError(
                f"{state}: downloading it to {folder.parent} needs {needed:,} bytes and {free:,} are free; make room, "
                "or set TMPDIR (for a run: data.cache_dir) to a larger disk"
            )
        state.download_all(folder, shards)
        yield folder


def _local_shards(folder: Path, array: Any, sizes: Mapping[str, int]) -> list[str]:
    """The files of an array that this process's devices need; all files if its description is damaged."""
    files = {file for name in sizes if (file := name.removeprefix(f"{folder.name}/")) != name} - {_GRID}
    if array.sharding is None:
        return sorted(files)
    try:
        chunks = json.loads((folder / _GRID).read_bytes())["chunks"]
        rows = [
            [
                range(*_chunk_range(part, length, size))
                for part, length, size in zip(index, array.shape, chunks, strict=True)
            ]
            for index in array.sharding.addressable_devices_indices_map(array.shape).values()
        ]
    except (OSError, ValueError, TypeError, LookupError, ZeroDivisionError):
        return sorted(files)  # Orbax will report the damage
    needed = {".".join(map(str, numbers)) or "0" for row in rows for numbers in itertools.product(*row)}
    return sorted(files & needed)


def _chunk_range(part: slice, length: int, size: int) -> tuple[int, int]:
    """The range of chunks of `size` elements that cover a part of an axis."""
    start, stop, _ = part.indices(length)
    return start // size, -(-stop // size)


def alone() -> ocp.options.MultiprocessingOptions:
    """Orbax options to use a process's own disk without waiting for other processes."""
    process = jax.process_index()
    return ocp.options.MultiprocessingOptions(
        primary_host=None, active_processes={process}, barrier_sync_key_prefix=f"process_{process}"
    )


def _numbers(directory: RemotePath) -> set[int]:
    return {int(entry.name) for entry in directory.iterdir() if entry.name.isdecimal()}


def hide_expected_logs() -> None:
    """Hide log messages of Orbax that are expected."""
    logging.getLogger("absl").addFilter(_is_unexpected)


def _is_unexpected(record: logging.LogRecord) -> bool:
    return not any(text in record.getMessage() for text in _EXPECTED)


def _handler() -> ocp.PyTreeCheckpointHandler:
    """A handler that writes one file per shard of an array, named by its index.

    OCDBT files of several processes cannot be combined. By default Orbax splits an array into as many files as it has
    replicas, and every process would have to download all of them to restore it.
    """
    arrays = ocp.type_handlers.ArrayHandler(use_replica_parallel=False)
    registry = ocp.type_handlers.create_type_handler_registry((jax.Array, arrays))
    return ocp.PyTreeCheckpointHandler(
        use_ocdbt=False, use_zarr3=False, multiprocessing_options=alone(), type_handler_registry=registry
    )


def spread_writers(tree: Any) -> Any:
    """Return the same arrays, without a copy, with their first replicas balanced over the processes by size.

    Orbax writes the first replica of a shard, which is otherwise in process 0 for all arrays.
    """
    leaves, structure = jax.tree.flatten(tree)
    written: Counter[int] = Counter()  # process -> bytes
    for number in sorted(range(len(leaves)), key=lambda number: -leaves[number].nbytes):
        orders = _orders(leaves[number].sharding)
        if not orders:
            continue
        writers = min(orders, key=lambda processes: max(written[process] for process in processes))
        written.update({process: leaves[number].nbytes // len(writers) for process in writers})
        pieces = [shard.data for shard in leaves[number].addressable_shards]
        leaves[number] = jax.make_array_from_single_device_arrays(leaves[number].shape, orders[writers], pieces)
    return jax.tree.unflatten(structure, leaves)


@functools.lru_cache
def _orders(sharding: Sharding) -> dict[frozenset[int], NamedSharding]:
    """Map each group of processes that together hold the array to a sharding whose first replica they hold."""
    if not isinstance(sharding, NamedSharding):
        return {}
    mesh = sharding.mesh
    assert isinstance(mesh, Mesh), "the arrays are on devices"
    split = {name for names in sharding.spec if names for name in ((names,) if isinstance(names, str) else names)}
    axes = [axis for axis, name in enumerate(mesh.axis_names) if name not in split]
    orders: dict[frozenset[int], NamedSharding] = {}
    for turn in np.ndindex(*(mesh.devices.shape[axis] for axis in axes)):
        devices = np.roll(mesh.devices, [-step for step in turn], axes)
        first = devices[tuple(0 if axis in axes else slice(None) for axis in range(devices.ndim))]
        processes = frozenset(device.process_index for device in np.ravel(first))
        if processes not in orders:
            moved = Mesh(devices, mesh.axis_names, axis_types=mesh.axis_types)
            orders[processes] = NamedSharding(moved, sharding.spec, memory_kind=sharding.memory_kind)
    return orders
