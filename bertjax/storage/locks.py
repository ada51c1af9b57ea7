"""File locks that end with the process, however it ends. A filesystem without locks gives a warning and no lock."""

from __future__ import annotations

import errno
import fcntl
import warnings
from typing import IO

# Errors of a mount without locks: Lustre without `flock`, NFS without a lock server, some of FUSE.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


def acquire(file: IO[str], shared: bool = False) -> None:
    """Lock an open file, waiting for it: exclusively, or `shared` with other processes that ask for the same."""
    _flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def try_acquire(file: IO[str]) -> bool:
    """Lock an open file exclusively unless another process has it locked; returns whether that succeeded."""
    try:
        _flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _flock(file: IO[str], how: int) -> None:
    try:
        fcntl.flock(file, how)
    except OSError as error:
        if error.errno not in _NO_LOCKS:
            raise
        warnings.warn(
            f"{file.name}: this filesystem has no locks ({error.strerror}); let only one process write there",
            stacklevel=3,
        )
