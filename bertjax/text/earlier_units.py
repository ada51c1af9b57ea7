"""Take over finished units of unchanged files from an interrupted preparation.

A store is named after all of its text, so that a changed, new or missing file makes another store, and the units of
the other files would be made again. A unit's record has the digest of its own content and of how it is read. Where
another unfinished store of the same root has an equal unit, links to its shards are put into this store's folder, so
that nothing is copied.
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

    Takes none in object storage, nor where filters compare documents across units.
    """
    if not isinstance(job.folder, Path) or compares(job.data.filters):
        return
    missing = {unit_digest(unit, job): unit for unit in units if finished_record(unit, job) is None}
    for path in job.folder.parent.glob("store-*.partial/unit-*.json") if missing else ():
        if path.parent == job.folder:
            continue
        try:
            record = read_json(path, UnitRecord)
        except (FileNotFoundError, ValueError):  # gone, as when its store was published, or damaged
            continue
        if (unit := missing.get(record["digest"])) and _take_over(unit, record, path.parent, job):
            del missing[record["digest"]]


def _take_over(unit: Unit, record: Mapping[str, Any], earlier: Path, job: ShardJob) -> bool:
    """Link the shards of a record; returns whether they are all there and the disk can link them."""
    assert isinstance(job.folder, Path)
    shards: dict[str, Any] = {}
    with scratch_dir(job.folder, f"{unit.name}-") as name:
        scratch = Path(name)
        try:
            for split, shard in record["shards"].items():
                shards[split] = shard and _linked(shard, earlier, f"{split}-{unit.number:05}", scratch)
        except OSError:
            return False
        for file in sorted(scratch.iterdir()):
            publish(file, job.folder)
        made = json.dumps({**record, "inputs": job.inputs, "shards": shards}).encode()
        publish_files({f"{unit.name}.json": made}, scratch, job.records)
    return True


def _linked(shard: Mapping[str, Any], folder: Path, name: str, scratch: Path) -> dict[str, Any]:
    """The record of a shard under another name, with links to its files in `scratch`. Raises OSError without them."""
    renamed = copy.deepcopy(dict(shard))
    for file in shard_files(renamed):
        earlier = folder / file["name"]
        file["name"] = name + file["name"].removeprefix(shard["name"])
        os.link(earlier, scratch / file["name"])
        if (size := earlier.stat().st_size) != file["bytes"]:
            raise OSError(f"{earlier} has {size} bytes instead of {file['bytes']}")
    renamed["name"] = name
    return renamed
