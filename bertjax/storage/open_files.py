"""The limit of open files of this process."""

from __future__ import annotations

import contextlib

MOST_OPEN = 1 << 20  # programs that close every possible descriptor are slow with the billion of some containers


def raise_open_file_limit() -> None:
    """Raise the soft limit of open files to the hard limit, at most to `MOST_OPEN`; processes started later inherit it.

    A token store keeps its files open, and process 0 of a run has a connection to each of the others.
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
