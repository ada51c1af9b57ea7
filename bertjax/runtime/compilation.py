"""How programs are compiled: the options of XLA, and the cache of compiled programs that a restart reads."""

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
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.runtime.processes import Processes
from bertjax.storage.remote import path_of

ENVIRONMENT = "JAX_COMPILATION_CACHE_DIR"  # jax's own variable; it takes precedence
KEPT_FROM_SECONDS = 0.5  # programs that compile faster are not cached
_COMPILING = "/jax/core/compile/"  # jax's events of tracing, lowering and compiling


def keep_compiled_programs(folder: str) -> str:
    """Cache compiled programs below a folder or URL; returns its path, "" for no cache.

    An empty `folder` caches nothing, and the environment takes precedence. Call it before anything is compiled.
    """
    if ENVIRONMENT in os.environ:
        return os.environ[ENVIRONMENT]
    if folder:
        # Programs for a CPU use the instructions of its model, and different machines may share a folder.
        folder = f"{folder.rstrip('/')}/{_processor()}"
        jax.config.update("jax_compilation_cache_dir", folder)
        jax.config.update("jax_persistent_cache_min_compile_time_secs", KEPT_FROM_SECONDS)
    return folder


def keep_only_what_is_shared(folder: str, processes: Processes) -> str:
    """Cache nothing unless all processes read one `folder`; returns a line to print, "" if nothing changes.

    Of several processes JAX lets process 0 alone write. On GPUs XLA divides the search for the fastest kernels among
    all processes that compile a program, and they would wait for one that has read the program from its own folder.
    """
    if processes.count == 1:
        return ""
    word = _written(folder) if processes.first else ""
    theirs = [json.loads(text) for text in processes.gather("folder of compiled programs", json.dumps([folder, word]))]
    if not any(other for other, _ in theirs):
        return ""
    first, word = theirs[0]
    reads = first == folder and word and _is_there(folder, word)
    alone = [number for number, found in enumerate(processes.gather("who reads it", "1" if reads else "")) if not found]
    if processes.first and word:
        with contextlib.suppress(OSError):
            (path_of(folder) / word).unlink()
    if not alone:
        return ""
    jax.config.update("jax_enable_compilation_cache", False)
    return (
        f"compiled programs are not kept: {processes.called(alone)} cannot read what process 0 writes to "
        f"{first or 'no folder'}; name a folder that all share (--compilation-cache, or {ENVIRONMENT})"
    )


def _written(folder: str) -> str:
    """The name of a new file in the folder; "" if it cannot be written."""
    name = f"shared-{secrets.token_hex(8)}"
    with contextlib.suppress(OSError, ValueError):
        if folder:
            path_of(folder).mkdir(parents=True, exist_ok=True)
            (path_of(folder) / name).write_bytes(b"")
            return name
    return ""


def _is_there(folder: str, name: str) -> bool:
    with contextlib.suppress(OSError):
        return (path_of(folder) / name).is_file()
    return False


@contextlib.contextmanager
def compile_seconds() -> Iterator[Callable[[], float]]:
    """Yield a function that returns the seconds of tracing, lowering and compiling so far, within the context."""
    taken: list[float] = []

    def note(event: str, duration_secs: float, **metadata: str | int) -> None:
        if event.startswith(_COMPILING):
            taken.append(duration_secs)

    jax.monitoring.register_event_duration_secs_listener(note)
    try:
        yield lambda: math.fsum(taken)
    finally:
        jax.monitoring.unregister_event_duration_listener(note)


def _processor() -> str:
    """A short name for the kind of processor: its architecture, and a digest of its features."""
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


Options = dict[str, bool | int | str]


@dataclass(frozen=True)
class Flag:
    """One setting of the compiler, and why bertjax changes it."""

    name: str
    value: bool | int
    reason: str


# All options concern traffic between devices, and are not set for a single one. By the sources of XLA the first is off,
# and the second 30 MiB, unless said otherwise.
GPU = (
    Flag(
        "xla_gpu_enable_latency_hiding_scheduler",
        True,
        "overlaps the gathers of sharded weights and the reductions of gradients with arithmetic that does not need "
        "them; the default order keeps memory lowest and waits for each",
    ),
    Flag(
        "xla_gpu_all_reduce_combine_threshold_bytes",
        256 << 20,
        "gradients of a stack of layers come at once, at the end of the step: few large reductions use the links "
        "better than one for every 30 MiB",
    ),
)
# The TPU's compiler hides latency by default: the fsdp step compiled for v5e:2x2 already has its all-gathers within the
# matmuls, and is the same to the byte with xla_tpu_enable_async_collective_fusion_fuse_all_gather.
TPU: tuple[Flag, ...] = ()
DETERMINISTIC_GPU = (
    Flag(
        "xla_gpu_deterministic_ops",
        True,
        "no kernel that adds in the order in which threads arrive, and none chosen by timing, which another start "
        "may decide otherwise",
    ),
)
FLAGS: dict[str, tuple[Flag, ...]] = {"gpu": GPU, "cuda": GPU, "tpu": TPU}
DETERMINISTIC: dict[str, tuple[Flag, ...]] = {"gpu": DETERMINISTIC_GPU, "cuda": DETERMINISTIC_GPU}


def compiler_options(
    platform: str, devices: int, *, deterministic: bool = False, environ: Mapping[str, str] = os.environ
) -> Options:
    """The compiler options of a program for `devices` devices of a platform (cpu, gpu or cuda, tpu).

    Options set in the environment are left out.
    """
    flags = FLAGS.get(platform, ()) if devices > 1 else ()
    if deterministic:
        flags += DETERMINISTIC.get(platform, ())
    said = f"{environ.get('XLA_FLAGS', '')} {environ.get('LIBTPU_INIT_ARGS', '')}"
    return {flag.name: flag.value for flag in flags if not re.search(rf"--{flag.name}(=|\s|$)", said)}


def known_options(options: Options, mesh: Mesh) -> Options:
    """The options that the compiler for the mesh's devices knows; others are left out with a warning.

    Names change between releases of XLA. Found by compiling a trivial program.
    """
    known = dict(options)
    nothing = jax.ShapeDtypeStruct((), jnp.float32, sharding=NamedSharding(mesh, P()))
    while known:
        try:
            jax.jit(jnp.negative, compiler_options=known).lower(nothing).compile()
            return known
        except jax.errors.JaxRuntimeError as error:
            unknown = re.search(r"No such compile option: '(\w+)'", str(error))
            if unknown is None or unknown[1] not in known:
                raise
            del known[unknown[1]]
            warnings.warn(f"{unknown[1]} is unknown to this version of XLA and left out", stacklevel=2)
    return known
