"""Where compiled programs are kept, so that a run that starts again need not wait for the compiler."""

from __future__ import annotations

import hashlib
import os
import platform
from importlib import metadata
from pathlib import Path

import jax

ENVIRONMENT = "JAX_COMPILATION_CACHE_DIR"  # jax's own; it wins
KEPT_FROM_SECONDS = 0.5  # of compiling; what takes less is not worth a file


def keep_compiled_programs(folder: str) -> str:
    """Have jax keep what it compiles below a folder, or at a URL; returns where, "" for nowhere.

    An empty folder keeps nothing, and what the environment says goes before any. Call it before anything is compiled.
    """
    if ENVIRONMENT in os.environ:
        return os.environ[ENVIRONMENT]
    if folder:
        # Programs for a CPU hold its own instructions, and a folder may be shared by machines that differ.
        folder = f"{folder.rstrip('/')}/{_processor()}"
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", KEPT_FROM_SECONDS)
    return folder


def _processor() -> str:
    """A short name for the kind of processor: its architecture, and a digest of what it can do."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = [platform.processor()]
    able = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}) or lines[:1]
    return f"{platform.machine()}-{hashlib.sha256(chr(10).join(able).encode()).hexdigest()[:8]}"


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
