"""Compilation: XLA options, and the cache of compiled programs, which speeds up restarts."""

from __future__ import annotations

import contextlib
import hashlib
import json
import math
import os
import platform
import re
import secrets
import warnings
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import jax
import jax.monitoring
import jax.numpy as jnp
from jax.experimental.compilation_cache import compilation_cache
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.runtime.processes import Processes
from bertjax.storage.remote import to_path

ENVIRONMENT = "JAX_COMPILATION_CACHE_DIR"  # JAX's own variable, which takes precedence
LEAST_SECONDS = 0.5  # programs that compile faster are not cached
_COMPILE_EVENTS = "/jax/core/compile/"  # JAX's events of tracing, lowering and compiling


def set_compilation_cache(folder: str) -> str:
    """Cache compiled programs below a folder or URL; returns the cache's path, "" without a cache.

    An empty `folder` disables the cache. The environment takes precedence. Call this before the first compilation.
    """
    if ENVIRONMENT in os.environ:
        return os.environ[ENVIRONMENT]
    # CPU programs use the instructions of a processor model, and different machines may share the folder.
    folder = folder and f"{folder.rstrip('/')}/{_processor()}"
    jax.config.update("jax_compilation_cache_dir", folder or None)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", LEAST_SECONDS)
    compilation_cache.reset_cache()  # an earlier run in this process may have opened another cache
    return folder


def disable_unshared_cache(folder: str, processes: Processes) -> str:
    """Disable the cache unless all processes share the folder; returns a notice, "" if nothing changes.

    Only process 0 writes JAX's cache. On GPUs, XLA divides the search for the fastest kernels among all processes that
    compile a program, so they would wait forever for a process that reads the program from its own folder.
    """
    if processes.count == 1:
        return ""
    probe = _write_probe(folder) if processes.first else ""
    answers = processes.gather("folder of compiled programs", json.dumps([folder, probe]))
    folders = [json.loads(answer) for answer in answers]
    if not any(name for name, _ in folders):
        return ""
    first, probe = folders[0]
    is_shared = first == folder and probe and _exists(folder, probe)
    answers = processes.gather("access to compiled programs", "1" if is_shared else "")
    without_access = [number for number, answer in enumerate(answers) if not answer]
    if processes.first and probe:
        with contextlib.suppress(OSError):
            (to_path(folder) / probe).unlink()
    if not without_access:
        return ""
    jax.config.update("jax_enable_compilation_cache", False)
    return (
        f"compiled programs are not cached: {processes.describe(without_access)} cannot read what process 0 writes to "
        f"{first or 'no folder'}; name a folder that all hosts share (--compilation-cache, or {ENVIRONMENT})"
    )


def _write_probe(folder: str) -> str:
    """Write an empty file into the folder; returns its name, "" on failure."""
    name = f"shared-{secrets.token_hex(8)}"
    with contextlib.suppress(OSError, ValueError):
        if folder:
            to_path(folder).mkdir(parents=True, exist_ok=True)
            (to_path(folder) / name).write_bytes(b"")
            return name
    return ""


def _exists(folder: str, name: str) -> bool:
    with contextlib.suppress(OSError):
        return (to_path(folder) / name).is_file()
    return False


@contextlib.contextmanager
def compile_seconds() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the seconds spent in tracing, lowering and compiling inside the context so far."""
    seconds: list[float] = []

    def note(event: str, duration_secs: float, **metadata: str | int) -> None:
        if event.startswith(_COMPILE_EVENTS):
            seconds.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield lambda: math.fsum(seconds)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def _processor() -> str:
    """A short name for the processor model: its architecture, and a digest of its features."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        lines = [platform.processor()]
    features = sorted({line for line in lines if line.startswith(("flags", "Features", "model name"))}) or lines[:1]
    return f"{platform.machine()}-{hashlib.sha256(chr(10).join(features).encode()).hexdigest()[:8]}"


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
    """Versions of Python and relevant packages, the system and the devices, by name."""
    versions = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            versions[package] = metadata.version(package)
        except metadata.PackageNotFoundError:
            continue
    return versions | {
        "system": f"{platform.system()} {platform.machine()}, {os.cpu_count()} CPU cores",
        "devices": f"{jax.device_count()} × {jax.devices()[0].device_kind}",
        "processes": str(jax.process_count()),
    }


Options = dict[str, bool | int | str]


@dataclass(frozen=True)
class Flag:
    """A compiler option, and the reason to change it."""

    name: str
    value: bool | int
    reason: str


# These options concern communication between devices, so a single device gets none. XLA's defaults: off, 30 MiB.
GPU = (
    Flag(
        "xla_gpu_enable_latency_hiding_scheduler",
        True,
        "overlaps gathers of sharded weights and reductions of gradients with independent computation; the default "
        "order minimises memory and waits for each",
    ),
    Flag(
        "xla_gpu_all_reduce_combine_threshold_bytes",
        256 << 20,
        "the gradients of a stack of layers are ready together, at the end of the step; a few large reductions use "
        "the links better than one for every 30 MiB",
    ),
)
# The TPU compiler hides latency by default: in the fsdp step compiled for v5e:2x2, all-gathers are fused into matmuls,
# and xla_tpu_enable_async_collective_fusion_fuse_all_gather does not change a byte.
TPU: tuple[Flag, ...] = ()
DETERMINISTIC_GPU = (
    Flag(
        "xla_gpu_deterministic_ops",
        True,
        "excludes kernels that add in the order in which threads arrive, and kernels chosen by timing, which may vary "
        "between runs",
    ),
)
FLAGS: dict[str, tuple[Flag, ...]] = {"gpu": GPU, "cuda": GPU, "tpu": TPU}
DETERMINISTIC: dict[str, tuple[Flag, ...]] = {"gpu": DETERMINISTIC_GPU, "cuda": DETERMINISTIC_GPU}


def compiler_options(
    platform: str, devices: int, *, deterministic: bool = False, environ: Mapping[str, str] = os.environ
) -> Options:
    """Compiler options for a program on `devices` devices of a platform (cpu, gpu or cuda, tpu).

    Options that are set in the environment are left out.
    """
    flags = FLAGS.get(platform, ()) if devices > 1 else ()
    if deterministic:
        flags += DETERMINISTIC.get(platform, ())
    variables = f"{environ.get('XLA_FLAGS', '')} {environ.get('LIBTPU_INIT_ARGS', '')}"
    return {flag.name: flag.value for flag in flags if not re.search(rf"--{flag.name}(=|\s|$)", variables)}


def known_options(options: Options, mesh: Mesh) -> Options:
    """Drop options that the compiler for the mesh's devices does not support, with a warning.

    Names change between XLA releases. This compiles a trivial program.
    """
    supported_options = dict(options)
    nothing = jax.ShapeDtypeStruct((), jnp.float32, sharding=NamedSharding(mesh, P()))
    while supported_options:
        try:
            jax.jit(jnp.negative, compiler_options=supported_options).lower(nothing).compile()
            return supported_options
        except jax.errors.JaxRuntimeError as error:
            unknown = re.search(r"No such compile option: '(\w+)'", str(error))
            if unknown is None or unknown[1] not in supported_options:
                raise
            del supported_options[unknown[1]]
            warnings.warn(f"{unknown[1]} is not an option of this XLA version; it is left out", stacklevel=2)
    return supported_options
