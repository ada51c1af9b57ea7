"""Raise this process's limit on open files."""

from __future__ import annotations

import contextlib

MOST_OPEN = 1 << 20  # some containers allow a billion, which slows programs that close every possible descriptor


def raise_open_file_limit() -> None:
    """Raise the soft limit on open files to the hard limit, up to `MOST_OPEN`; child processes inherit it.

    A run needs many: process 0, for example, has a connection to each of the others.
    """
    try:
        import resource
    except ModuleNotFoundError:  # Windows
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    target = MOST_OPEN if hard == resource.RLIM_INFINITY else min(hard, MOST_OPEN)
    if soft != resource.RLIM_INFINITY and soft < target:
        with contextlib.suppress(OSError, ValueError):  # macOS allows less than its hard limit
            resource.setrlimit(resource.RLIMIT_NOFILE, (target, hard))
