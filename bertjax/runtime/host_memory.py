"""The memory of this machine, and pages that a step on a CPU reuses from one step to the next."""

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
_HEAP = 64 << 20  # bytes; glibc's largest of a thread
_EXTRA = 96  # bytes beyond the size of a buffer: XLA's alignment, and glibc's smallest block
_SMALL = 32 << 20  # bytes; several sets of smaller temporaries do not matter
_SHIFT = 1 << 20  # bytes by which a block may move and still reuse its pages
_MADV_HUGEPAGE = 14  # <sys/mman.h> of Linux
# Of cgroups, version 2 and 1; "max" or a huge number where there is no limit.
_CONTAINER_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))


def keep_freed_memory() -> bool:
    """Let this process reuse the pages of freed buffers; returns whether that is possible (it needs glibc).

    On a CPU, XLA allocates the buffers of a step in every step. glibc maps blocks of such sizes and unmaps them when
    they are freed, and the kernel clears every page: a seventh of a BERT-Base step on two cores. Only the main thread's
    heap can grow to any size without being mapped, so programs run in the thread that calls them, not in one of XLA's.
    That costs nothing, since a run waits for each step on a CPU. XLA's own threads allocate a thousand blocks in a
    step, each thread from its own heap: when all shared the main thread's heap, they waited for one another for a sixth
    of a small model's step. Call it before JAX's first computation.
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
    """Keeps one set of pages, those of the last step's temporaries, for the next step.

    The bytes after a freed block may be allocated before the next step requests the same size. Then the block is too
    small, and glibc takes another one. Without this class the pages of the first block stay mapped too: five sets after
    a hundred steps of a small model.
    """

    def __init__(self) -> None:
        # Programs for several devices run in XLA's threads.
        self._enabled = jax.default_backend() == "cpu" and jax.local_device_count() == 1 and keep_freed_memory()
        self._sizes: dict[int, int] = {}  # bytes of the temporaries of each live program
        self._bytes = 0
        self._address = 0

    def reuse(self) -> None:
        """Call it before a step. Releases free pages if the step would not reuse those of the last."""
        if not self._enabled or not self._has_large_program() or abs(self._next_address() - self._address) < _SHIFT:
            return
        _glibc().malloc_trim(0)
        self._address = self._next_address()
        # Advise the kernel to map the heap in pages of 2 MiB: a moved block then takes a 500th of the page faults.
        # This follows the trim, since released pages lose the advice.
        for line in Path("/proc/self/maps").read_text().splitlines():
            if line.endswith("[heap]"):  # several lines, if a part of the heap has the advice already
                start, end = (int(address, 16) for address in line.split()[0].split("-"))
                _glibc().madvise(start, end - start, _MADV_HUGEPAGE)  # a kernel without them refuses, which is harmless

    def _next_address(self) -> int:
        """The address that a block of that size would get now; the block is freed at once, and no page is touched."""
        block = _glibc().malloc(self._bytes + _EXTRA)
        _glibc().free(block)
        return block

    def _has_large_program(self) -> bool:
        """Whether a program with large temporaries is compiled; the largest one is assumed to be the step."""
        programs = jax.local_devices()[0].client.live_executables()
        if len(programs) != len(self._sizes):
            # The query takes half a millisecond for a large program, so each is queried once; weak references are not
            # possible.
            before = self._sizes
            self._sizes = {
                id(x): before[id(x)] if id(x) in before else x.get_compiled_memory_stats().temp_size_in_bytes
                for x in programs
            }
            self._bytes = max(self._sizes.values(), default=0)
        return self._bytes > _SMALL


def machine_memory() -> int:
    """Bytes of memory of this machine, or the limit of its container."""
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([physical, *filter(None, map(_container_limit, _CONTAINER_LIMITS))])


def device_memory(device: Device) -> float | None:
    """Bytes that programs may use on a device of this process, as it reports them; of a CPU its share of the machine.

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
