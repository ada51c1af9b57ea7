"""Host memory: its size, and reuse of memory pages from one step to the next on a CPU."""

from __future__ import annotations

import ctypes
import functools
import os
from pathlib import Path
from typing import TYPE_CHECKING

import jax

if TYPE_CHECKING:
    from jaxlib._jax import Device  # jax.Device is a variable to type checkers

# <malloc.h> of glibc
_M_TRIM_THRESHOLD, _M_TOP_PAD, _M_MMAP_MAX = -1, -2, -4
_NEVER = -1
_HEAP = 64 << 20  # bytes; the largest heap of a thread in glibc
_EXTRA = 96  # bytes added to a buffer: XLA's alignment, and glibc's smallest block
_SMALL = 32 << 20  # bytes; several sets of smaller temporaries do not matter
_SHIFT = 1 << 20  # bytes by which a block may move and still reuse its pages
_MADV_HUGEPAGE = 14  # <sys/mman.h> of Linux
# Of cgroups version 2 and 1; "max" or a huge number means no limit.
_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def keep_freed_memory() -> bool:
    """Let this process reuse the pages of freed buffers; returns whether this is possible (it requires glibc).

    On a CPU, XLA allocates the buffers of a step in every step. glibc maps blocks of such sizes and unmaps them when
    they are freed, and the kernel clears every page, which takes a seventh of a BERT-Base step on two cores. Only the
    main thread's heap can grow to any size without being mapped, so programs run in the calling thread instead of an
    XLA thread. This costs nothing, because a run on a CPU waits for each step anyway. XLA's own threads allocate a
    thousand blocks per step, each from the thread's own heap; sharing the main thread's heap made them wait for one
    another for a sixth of a small model's step. Call this before JAX's first computation.
    """
    jax.config.update("jax_cpu_enable_async_dispatch", False)  # the environment has no variable for it
    try:
        mallopt = _glibc().mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER), (_M_TOP_PAD, _HEAP))
    accepted = [mallopt(option, value) for option, value in settings]
    return all(accepted)


class Temporaries:
    """Keeps one set of pages, for the temporaries of a step, from one step to the next.

    The bytes after a freed block may be allocated before the next step requests the same size. The block is then too
    small, and glibc takes another one. Without this class the pages of the first block stay mapped as well: five sets
    after a hundred steps of a small model.
    """

    def __init__(self) -> None:
        # Programs for several devices run in XLA's threads.
        self._enabled = jax.default_backend() == "cpu" and jax.local_device_count() == 1 and keep_freed_memory()
        self._sizes: dict[int, int] = {}  # bytes of the temporaries of each live program
        self._bytes = 0
        self._address = 0

    def reuse(self) -> None:
        """Call this before a step. Releases free pages if the step would not reuse the pages of the last one."""
        if not self._enabled or not self._has_large_program() or abs(self._next_address() - self._address) < _SHIFT:
            return
        _glibc().malloc_trim(0)
        self._address = self._next_address()
        # Advise the kernel to map the heap in pages of 2 MiB, so that a moved block takes a 500th of the page faults.
        # This follows the trim because released pages lose the advice.
        for line in Path("/proc/self/maps").read_text().splitlines():
            if line.endswith("[heap]"):  # several lines if a part of the heap already has the advice
                start, end = (int(address, 16) for address in line.split()[0].split("-"))
                _glibc().madvise(start, end - start, _MADV_HUGEPAGE)  # fails harmlessly without kernel support

    def _next_address(self) -> int:
        """The address that a block for the temporaries would get now; frees it again without touching a page."""
        block = _glibc().malloc(self._bytes + _EXTRA)
        _glibc().free(block)
        return block

    def _has_large_program(self) -> bool:
        """Whether a program with large temporaries is loaded; the largest program is assumed to be the step."""
        programs = jax.local_devices()[0].client.live_executables()
        if len(programs) != len(self._sizes):
            # Query each program once, because it takes half a millisecond for a large one. They do not support weak
            # references.
            before = self._sizes
            self._sizes = {
                id(x): before[id(x)] if id(x) in before else x.get_compiled_memory_stats().temp_size_in_bytes
                for x in programs
            }
            self._bytes = max(self._sizes.values(), default=0)
        return self._bytes > _SMALL


def machine_memory() -> int:
    """Memory of this machine in bytes, or the limit of its container."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *filter(None, map(_container_limit, _CONTAINER_LIMITS))])


def device_memory(device: Device) -> float | None:
    """Bytes that programs may use on a device of this process; for a CPU device, its share of the machine's memory.

    None if the device does not report it.
    """
    limit = (device.memory_stats() or {}).get("bytes_limit")
    if limit is None and device.platform == "cpu":
        return machine_memory() / jax.local_device_count()
    return limit


def _container_limit(file: Path) -> int | None:
    try:
        text = file.read_text().strip()
    except OSError:
        return None
    return int(text) if text.isdecimal() else None


@functools.cache
def _glibc() -> ctypes.CDLL:
    library = ctypes.CDLL("libc.so.6")
    library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    library.malloc_trim.argtypes = [ctypes.c_size_t]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library
