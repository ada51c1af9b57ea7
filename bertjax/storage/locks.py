"""Locks on files that end with the process, however it ends; a filesystem without any is told of, and works."""

from __future__ import annotations

import errno
import fcntl
import warnings
from typing import IO

# What a mount without them answers: Lustre without `flock`, NFS without a lock server, some of FUSE.
_NO_LOCKS = (errno.ENOSYS, errno.EOPNOTSUPP, errno.ENOLCK)


def wait_for(file: IO[str], shared: bool = False) -> None:
    """Wait until an open file is locked for this process, alone or `shared` with others that ask for a share."""
    _flock(file, fcntl.LOCK_SH if shared else fcntl.LOCK_EX)


def is_ours(file: IO[str]) -> bool:
    """Lock an open file for this process alone if nobody else has it locked, and say whether that worked."""
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
            f"{file.name}: this filesystem knows no locks ({error.strerror}); let no second process write there",
            stacklevel=3,
        )
