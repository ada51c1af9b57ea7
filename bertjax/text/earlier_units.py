"""Take over finished units of unchanged files from an interrupted preparation.

A store's name is a fingerprint of all of its text, so a changed, new or missing file makes another store, and the units
of the other files would be made again. A unit's record has the digest of its own content and reading options. If
another unfinished store under the same root has an equal unit, its shards are linked into this store's folder, so that
nothing is copied.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.storage.atomic_directories import publish, scratch_dir
from bertjax.storage.json_documents import read_json
from bertjax.text.corpus import Unit
from bertjax.text.screening import compares, publish_files
from bertjax.text.shards import ShardJob, UnitRecord, finished_record, unit_digest
from bertjax.text.store.manifest import shard_files


def take_over_units(units: Sequence[Unit], job: ShardJob) -> None:
    """Link the shards of units that another preparation has finished into the folder of `job`.

    Does nothing in object storage, or if filters compare documents across units.
    """
    if not isinstance(job.folder, Path) or compares(job.data.filters):
        return
    missing = {unit_digest(unit, job): unit for unit in units if finished_record(unit, job) is None}
    for path in job.folder.parent.glob("store-*.partial/unit-*.json") if missing else ():
        if path.parent == job.folder:
            continue
        try:
            record = read_json(path, UnitRecord)
        except (FileNotFoundError, ValueError):  # removed because its store was published, or damaged
            continue
        if (unit := missing.get(record["digest"])) and _take_over(unit, record, path.parent, job):
            del missing[record["digest"]]


def _take_over(unit: Unit, record: Mapping[str, Any], earlier: Path, job: ShardJob) -> bool:
    """Link the shards of a record; returns False if one is missing or the disk does not support links."""
    assert isinstance(job.folder, Path)
    shards: dict[str, Any] = {}
    with scratch_dir(job.folder, f"{unit.name}-") as name:
        scratch = Path(name)
        try:
            for split, shard in record["shards"].items():
                shards[split] = shard and _link_shard(shard, earlier, f"{split}-{unit.number:05}", scratch)
        except OSError:
            return False
        for file in sorted(scratch.iterdir()):
            publish(file, job.folder)
        new_record = json.dumps({**record, "inputs": job.inputs, "shards": shards}).encode()
        publish_files({f"{unit.name}.json": new_record}, scratch, job.records)
    return True


def _link_shard(shard: Mapping[str, Any], folder: Path, name: str, scratch: Path) -> dict[str, Any]:
    """Link a shard's files into `scratch` under a new name; returns its new record. Raises OSError if one is bad."""
    renamed = copy.deepcopy(dict(shard))
    for file in shard_files(renamed):
        earlier = folder / file["name"]
        file["name"] = name + file["name"].removeprefix(shard["name"])
        os.link(earlier, scratch / file["name"])
        if (size := earlier.stat().st_size) != file["bytes"]:
            raise OSError(f"{earlier} has {size} bytes instead of {file['bytes']}")
    renamed["name"] = name
    return renamed
