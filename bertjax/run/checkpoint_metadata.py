"""The metadata of a checkpoint: a JSON document with its own SHA-256, its schema, and checks for damage."""

from __future__ import annotations

import contextlib
import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NotRequired, TypedDict

import jax
import jaxlib.version
import numpy as np
import orbax.checkpoint as ocp
from jax.experimental import multihost_utils
from jax.sharding import Mesh

import bertjax
from bertjax.config import from_dict, to_dict
from bertjax.runtime.host_memory import device_memory
from bertjax.storage.json_documents import Between, Count, Sha256, checked, parse_json
from bertjax.storage.remote import AnyPath


class DamagedCheckpoint(ValueError):
    """A checkpoint that was changed since it was saved, or that cannot be verified."""


@contextlib.contextmanager
def all_or_none(directory: AnyPath, together: bool) -> Iterator[None]:
    """With `together`, raise DamagedCheckpoint in all processes if any process raises it inside."""
    damage: DamagedCheckpoint | None = None
    try:
        yield
    except DamagedCheckpoint as error:
        damage = error
    failed = multihost_utils.process_allgather(np.bool_(damage is not None)) if together else []
    if damage is not None:
        raise damage
    if others := np.flatnonzero(failed).tolist():
        raise DamagedCheckpoint(
            f"checkpoint {directory} is damaged: process {', '.join(map(str, others))} cannot read it"
        )


# Key of the user's `training.skips`, if spikes have added others.
GIVEN_SKIPS = "given_skips"
# Key of the names of modules that began with random weights, if other weights came from `init_from`.
DRAWN = "drawn"


class ArrayRecord(TypedDict):
    """An array of the state; `digest` is `ArrayDigest.hex`."""

    shape: list[Count]
    dtype: str
    digest: Annotated[str, Between(32, 32)]


class Metadata(TypedDict):
    """The keys of a checkpoint's metadata that are read."""

    step: Annotated[int, Between(0, 2**31 - 1)]
    config: dict[str, Any]
    tokenizer_fingerprint: str
    data_fingerprint: str
    teacher_digest: NotRequired[str]
    drawn: NotRequired[list[str]]
    given_skips: NotRequired[list[str]]
    versions: NotRequired[dict[str, str]]
    arrays: dict[str, ArrayRecord]


class _Document(TypedDict):
    content: dict[str, Any]
    sha256: Sha256


def run_metadata(
    config: dict[str, Any], *, tokenizer_fingerprint: str, data_fingerprint: str, mesh: Mesh, teacher_digest: str = ""
) -> dict[str, Any]:
    """Collect the metadata of a run: config, fingerprints (hex), versions, device kind and memory, mesh sizes."""
    return {
        "config": config,
        "tokenizer_fingerprint": tokenizer_fingerprint,
        "data_fingerprint": data_fingerprint,
        "teacher_digest": teacher_digest,
        "versions": {
            "bertjax": bertjax.__version__,
            "jax": jax.__version__,
            "jaxlib": jaxlib.version.__version__,
            "orbax-checkpoint": ocp.__version__,
        },
        "device_kind": mesh.devices.flat[0].device_kind,
        "device_memory": device_memory(mesh.local_devices[0]),
        "mesh": {axis: int(size) for axis, size in mesh.shape.items()},
    }


def make_document(content: Mapping[str, Any]) -> dict[str, Any]:
    """Add a SHA-256 to the metadata of a checkpoint: the keys of `run_metadata`, `step` and `arrays`."""
    return {"content": dict(content), "sha256": _sha256(content)}


def parse_document(written: bytes, directory: AnyPath, file: str) -> dict[str, Any]:
    """Parse and verify the metadata of a checkpoint, and fill its config with defaults; `file` is in `directory`.

    Raises DamagedCheckpoint if it was changed or is for another step, and ValueError for a config with unknown keys.
    """
    damage = f"checkpoint {directory} is damaged: {file}"
    try:
        document: dict[str, Any] = parse_json(written, f"{damage} cannot be read", _Document)
        content = document["content"]
        if document["sha256"] != _sha256(content):
            raise DamagedCheckpoint(f"{damage} differs from its SHA-256")
        metadata: dict[str, Any] = checked(content, Metadata, damage)
    except DamagedCheckpoint:
        raise
    except ValueError as error:
        raise DamagedCheckpoint(str(error)) from None
    if metadata["step"] != int(directory.name):
        raise DamagedCheckpoint(f"checkpoint {directory} holds step {metadata['step']}; it was renamed or copied there")
    try:
        config = to_dict(from_dict(metadata["config"]))
    except ValueError as error:
        raise ValueError(
            f"checkpoint {directory}: {error}; read it with the version of bertjax that wrote it "
            f"({metadata.get('versions', {}).get('bertjax', 'an unknown one')})"
        ) from None
    return metadata | {"config": config}


def version_notices(saved: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Return a notice if the libraries that wrote a checkpoint are unknown or differ from the installed ones."""
    saved_versions, here = saved.get("versions", {}), current.get("versions", {})
    bits = "from here on, steps may differ in their last bits from an uninterrupted run"
    if missing := [name for name in here if name not in saved_versions]:
        return [f"versions: the checkpoint does not record its {', '.join(missing)}; {bits}"]
    changed = [
        f"{name} {saved_versions[name]} (here: {here[name]})" for name in here if saved_versions[name] != here[name]
    ]
    return [f"versions: the checkpoint was written with {', '.join(changed)}; {bits}"] if changed else []


def _sha256(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
