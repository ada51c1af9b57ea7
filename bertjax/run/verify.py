"""Verify the files and checkpoints of a run against their digests."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from bertjax.config import from_dict, to_dict
from bertjax.run.checkpoint import BEST, DIRECTORY, read_metadata, restore_arrays
from bertjax.run.checkpoint_metadata import DamagedCheckpoint
from bertjax.run.compatibility import check_compatible
from bertjax.run.run_directory import CONFIG_FILE, load_run_tokenizer
from bertjax.run.telemetry import METRICS_FILE, read_metrics
from bertjax.storage.json_documents import read_json
from bertjax.storage.sums import SUMS_FILE, Done, check_sums
from bertjax.tokenization.tokenizer import TextRules

_GROUP_BYTES = 256 << 20  # of arrays to restore at once


def checkpoints_in(run: Path) -> list[Path]:
    """All checkpoints of a run, including the best one."""
    folders = [path for part in (DIRECTORY, BEST) for path in (run / part).glob("*") if path.name.isdecimal()]
    return sorted((path for path in folders if path.is_dir()), key=lambda path: (path.parent.name, int(path.name)))


def check_checkpoint(directory: Path, done: Done = lambda more: None) -> Iterator[str]:
    """Yield a sentence for each difference between a checkpoint and its digests.

    Arrays are restored in groups, as on resume, and compared with the metadata, which has its own SHA-256. Orbax files
    that no array depends on are ignored.
    """
    try:
        metadata = read_metadata(directory)
    except ValueError as error:
        yield str(error)
        return
    for arrays in _groups(metadata["arrays"]):
        try:
            restore_arrays(
                directory, metadata | {"arrays": {name: metadata["arrays"][name] for name in arrays}}, arrays
            )
        except DamagedCheckpoint as error:
            yield str(error)
        done(_size(arrays))


def bytes_of_checkpoint(directory: Path) -> int:
    """Bytes of a checkpoint's arrays; 0 if its metadata cannot be read."""
    try:
        return sum(map(_size, _groups(read_metadata(directory)["arrays"])))
    except ValueError:
        return 0


def check_run(run: Path, done: Done = lambda more: None) -> Iterator[str]:
    """Yield a sentence for each problem in a run's own files, without its checkpoints and exports.

    The files of a finished run must match `SHA256SUMS`; in other runs, the log and the config must be readable. The
    vocabulary must match the newest checkpoint, and the run's config must be able to resume every checkpoint.
    """
    if (run / SUMS_FILE).exists():
        yield from check_sums(run, done, may_have_more=True)
    else:
        yield from _check_readable(run)
    directories = checkpoints_in(run)
    yield from _check_resumable(run, directories)
    for directory in directories[-1:]:
        try:
            metadata = read_metadata(directory)
            tokenizer = load_run_tokenizer(run, TextRules.of(from_dict(metadata["config"]).data))
        except DamagedCheckpoint:
            continue  # `check_checkpoint` reports it
        except ValueError as error:
            yield str(error)
            continue
        if tokenizer.fingerprint != metadata["tokenizer_fingerprint"]:
            yield f"{run / tokenizer.main_file}: checkpoint {directory.name} was trained with another vocabulary"


def _check_resumable(run: Path, directories: list[Path]) -> Iterator[str]:
    """Yield a sentence for each checkpoint that the run's config cannot resume; `check_checkpoint` reports damage."""
    for directory in directories:
        try:
            config, metadata = to_dict(from_dict(read_json(run / CONFIG_FILE))), read_metadata(directory)
        except (FileNotFoundError, ValueError):
            continue
        try:
            check_compatible(metadata, metadata | {"config": config})
        except ValueError as error:
            yield f"{directory}: does not belong to the run described by {CONFIG_FILE}: {error}"


def _check_readable(run: Path) -> Iterator[str]:
    """Yield a sentence for each error in the config and the log of a run."""
    try:
        from_dict(read_json(run / CONFIG_FILE))
    except FileNotFoundError:
        yield f"{run / CONFIG_FILE}: missing"
    except ValueError as error:
        yield f"{run / CONFIG_FILE}: {error}"
    try:
        if (run / METRICS_FILE).exists():
            read_metrics(run / METRICS_FILE)
    except ValueError as error:
        yield str(error)


def _size(arrays: dict[str, jax.ShapeDtypeStruct]) -> int:
    return sum(array.size * array.dtype.itemsize for array in arrays.values())


def _groups(records: dict[str, Any]) -> Iterator[dict[str, jax.ShapeDtypeStruct]]:
    """Yield the arrays of a checkpoint in groups of at most `_GROUP_BYTES`."""
    group: dict[str, jax.ShapeDtypeStruct] = {}
    size = 0
    for name, record in records.items():
        array = jax.ShapeDtypeStruct(tuple(record["shape"]), jnp.dtype(record["dtype"]))
        nbytes = array.size * array.dtype.itemsize
        if group and size + nbytes > _GROUP_BYTES:
            yield group
            group, size = {}, 0
        group[name] = array
        size += nbytes
    yield group
