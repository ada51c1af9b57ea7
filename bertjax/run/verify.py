"""A run and its checkpoints against their digests, without training or using them."""

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
from bertjax.run.run_directory import CONFIG_FILE, tokenizer_of
from bertjax.run.telemetry import METRICS_FILE, read_metrics
from bertjax.storage.json_documents import read_json
from bertjax.storage.sums import SUMS_FILE, Done, check_sums
from bertjax.tokenization.tokenizer import TextRules

_AT_ONCE = 256 << 20  # bytes of arrays


def checkpoints_in(run: Path) -> list[Path]:
    """All checkpoints of a run, the best one too."""
    folders = [path for part in (DIRECTORY, BEST) for path in (run / part).glob("*") if path.name.isdecimal()]
    return sorted((path for path in folders if path.is_dir()), key=lambda path: (path.parent.name, int(path.name)))


def check_checkpoint(directory: Path, done: Done = lambda more: None) -> Iterator[str]:
    """Differences of a checkpoint from what was saved, one sentence each.

    Arrays are read as a run that resumes reads them, some at a time, and their digests compared with the metadata,
    which has its own SHA-256. Files of Orbax that no array depends on are ignored.
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
        done(_bytes_of(arrays))


def bytes_of_checkpoint(directory: Path) -> int:
    """The bytes of its arrays; 0 if its metadata cannot be read."""
    try:
        return sum(
            x.size * x.dtype.itemsize for group in _groups(read_metadata(directory)["arrays"]) for x in group.values()
        )
    except ValueError:
        return 0


def check_run(run: Path, done: Done = lambda more: None) -> Iterator[str]:
    """Differences of a run's own files from what was written, one sentence each; checkpoints and exports are separate.

    A run that was finished lists its files in `SHA256SUMS`. Of one that was not, the log and the config must be
    readable. The vocabulary must be the one that its newest checkpoint was trained with, and every checkpoint one that
    the run's config may resume.
    """
    if (run / SUMS_FILE).exists():
        yield from check_sums(run, done, may_have_more=True)
    else:
        yield from _unreadable(run)
    directories = checkpoints_in(run)
    yield from _of_other_runs(run, directories)
    for directory in directories[-1:]:
        try:
            metadata = read_metadata(directory)
            tokenizer = tokenizer_of(run, TextRules.of(from_dict(metadata["config"]).data))
        except DamagedCheckpoint:
            continue  # which its own check reports
        except ValueError as error:
            yield str(error)
            continue
        if tokenizer.fingerprint != metadata["tokenizer_fingerprint"]:
            yield f"{run / tokenizer.main_file}: not the vocabulary that checkpoint {directory.name} was trained with"


def _of_other_runs(run: Path, directories: list[Path]) -> Iterator[str]:
    """The checkpoints that the config of the run may not resume; unreadable ones are reported elsewhere."""
    for directory in directories:
        try:
            config, metadata = to_dict(from_dict(read_json(run / CONFIG_FILE))), read_metadata(directory)
        except (FileNotFoundError, ValueError):
            continue
        try:
            check_compatible(metadata, metadata | {"config": config})
        except ValueError as error:
            yield f"{directory}: not of the run that {CONFIG_FILE} describes: {error}"


def _unreadable(run: Path) -> Iterator[str]:
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


def _bytes_of(arrays: dict[str, jax.ShapeDtypeStruct]) -> int:
    return sum(array.size * array.dtype.itemsize for array in arrays.values())


def _groups(records: dict[str, Any]) -> Iterator[dict[str, jax.ShapeDtypeStruct]]:
    """The arrays of a checkpoint, so many at a time as fit into `_AT_ONCE`."""
    group: dict[str, jax.ShapeDtypeStruct] = {}
    size = 0
    for name, record in records.items():
        array = jax.ShapeDtypeStruct(tuple(record["shape"]), jnp.dtype(record["dtype"]))
        nbytes = array.size * array.dtype.itemsize
        if group and size + nbytes > _AT_ONCE:
            yield group
            group, size = {}, 0
        group[name] = array
        size += nbytes
    yield group
