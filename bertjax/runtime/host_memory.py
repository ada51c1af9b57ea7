"""A step's memory on a CPU: kept from one step to the next by the C library, and kept once."""

from __future__ import annotations

import ctypes
import functools
import time
from pathlib import Path
from typing import Any

import jax

# <malloc.h> of glibc
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_NEVER = -1
_ASKED_MORE = 96  # bytes that glibc looks for beyond those wanted: XLA's alignment, and its own smallest block
_SMALL = 32 << 20  # bytes; of less it does not matter how often it is there
_SHIFT = 1 << 20  # bytes by which a block may move and still have its pages
_MADV_HUGEPAGE = 14  # <sys/mman.h> of Linux
_PAUSES = (0.001, 0.004, 0.015)  # seconds


def keep_freed_memory() -> bool:
    """Let this process reuse the pages of freed buffers; whether it could be arranged (it takes glibc).

    On CPU, XLA allocates a step's buffers anew each time; glibc maps such sizes afresh and unmaps them after, and the
    kernel clears every page: a seventh of a BERT-Base step on two cores. Call it before the process has a second
    thread: one that is there already may have an arena of its own, which threads that come later get too, and of
    which large blocks are mapped afresh whatever is set here.
    """
    try:
        mallopt = _glibc().mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER))
    accepted = [mallopt(option, value) for option, value in settings]
    return all(accepted)


class Temporaries:
    """Keeps the pages of the last step's temporaries for the next step, and no other set of them.

    The few bytes behind a freed block may be taken by the time that the next step asks for as many: then the block is
    too small for glibc, which takes another. Without this the pages of the first stay too: five sets after a hundred
    steps of a small model.
    """

    def __init__(self) -> None:
        self._kept = jax.default_backend() == "cpu" and keep_freed_memory()
        self._sizes: dict[int, int] = {}  # temporaries of each program that lives, in bytes
        self._bytes = 0
        self._places: list[int] = []

    def reuse(self) -> None:
        """Call it before a step, when none runs. Gives free pages back if the step would not lie in those of the last.

        Waits a moment first, for a step's results are there before its temporaries are freed.
        """
        if not self._kept or not self._known():
            return
        for pause in (*_PAUSES, 0) if self._places else ():
            if _near(self._next_places(), self._places):
                return
            time.sleep(pause)
        _glibc().malloc_trim(0)
        self._places = self._next_places()
        _prefer_huge_pages()  # only now: what was given back had forgotten it

    def _next_places(self) -> list[int]:
        """Where blocks of that size would lie now. They are freed at once, and none of their pages is touched."""
        blocks = [_glibc().malloc(self._bytes + _ASKED_MORE) for _ in jax.local_devices()]
        for block in blocks:
            _glibc().free(block)
        return blocks

    def _known(self) -> bool:
        """Whether a program with temporaries of some size was compiled; the largest is taken to be the step's."""
        programs = jax.local_devices()[0].client.live_executables()
        if len(programs) != len(self._sizes):
            # Half a millisecond each for large ones, so each is asked once; they can not be referred to weakly.
            before = self._sizes
            self._sizes = {id(x): before[id(x)] if id(x) in before else _temporaries(x) for x in programs}
            self._bytes = max(self._sizes.values(), default=0)
        return self._bytes > _SMALL


def _temporaries(program: Any) -> int:
    return program.get_compiled_memory_stats().temp_size_in_bytes


def _near(places: list[int], others: list[int]) -> bool:
    """Whether blocks there have their pages in common, but for a few."""
    return all(abs(one - other) < _SHIFT for one, other in zip(places, others, strict=True))


def _prefer_huge_pages() -> None:
    """Have the kernel map the heap in pages of 2 MiB: what moves is then there again with a 500th of the faults."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        if line.endswith("[heap]"):  # several, where a part of it prefers them by now
            start, end = (int(address, 16) for address in line.split()[0].split("-"))
            _glibc().madvise(start, end - start, _MADV_HUGEPAGE)  # a kernel without them refuses: nothing is lost


@functools.cache
def _glibc() -> ctypes.CDLL:
    library = ctypes.CDLL("libc.so.6")
    library.malloc.argtypes, library.malloc.restype = [ctypes.c_size_t], ctypes.c_void_p
    library.free.argtypes = [ctypes.c_void_p]
    library.malloc_trim.argtypes = [ctypes.c_size_t]
    library.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return library
