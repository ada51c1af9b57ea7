"""Keeping the C library from giving a step's memory back to the system after every step."""

from __future__ import annotations

import ctypes

# <malloc.h> of glibc
_M_TRIM_THRESHOLD, _M_MMAP_MAX, _M_ARENA_MAX = -1, -4, -8
_NEVER = -1


def keep_freed_memory() -> bool:
    """Let this process reuse the pages of freed buffers; whether it could be arranged (it takes glibc).

    On CPU, XLA allocates a step's buffers anew each time; glibc maps such sizes afresh and unmaps them after, and the
    kernel clears every page: a seventh of a BERT-Base step on two cores. Call it before the first use of a device:
    threads that run already keep the arenas they have.
    """
    try:
        mallopt = ctypes.CDLL("libc.so.6").mallopt
    except (OSError, AttributeError):
        return False
    settings = ((_M_ARENA_MAX, 1), (_M_MMAP_MAX, 0), (_M_TRIM_THRESHOLD, _NEVER))
    accepted = [mallopt(option, value) for option, value in settings]
    return all(accepted)
