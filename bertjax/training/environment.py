"""What a run ran on, as strings for its log and report."""

from __future__ import annotations

import os
import platform
from importlib import metadata

import jax

_PACKAGES = (
    "bertjax",
    "jax",
    "jaxlib",
    "flax",
    "optax",
    "orbax-checkpoint",
    "tensorflow",
    "tensorflow-cpu",
    "tokenizers",
    "numpy",
)


def environment() -> dict[str, str]:
    """Name -> version of Python and the packages that matter (those installed), the system and the devices."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return found | {
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores",
        "devices": f"{jax.device_count()} × {jax.devices()[0].device_kind}",
        "processes": str(jax.process_count()),
    }
