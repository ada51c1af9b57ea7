"""Claim units, so that any number of processes and machines divide them among themselves.

A process locks bytes of one file on a shared disk: byte n for unit n, from the beginning of its work to its result. The
system releases the locks of a process that ends, however it ends. In object storage, and on a disk without locks, a
unit may be done twice, with the same result; processes that begin at different units rarely collide there.
"""

from __future__ import annotations

import fcntl
import warnings
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import IO

from bertjax.storage.atomic_directories import NO_LOCKS
from bertjax.storage.remote import AnyPath
from bertjax.text.corpus import Unit


class Claims:
    """Claims of one process, as locks in the file `path`; leaving the context releases them."""

    def __init__(self, path: AnyPath) -> None:
        self._path = path
        self._file: IO[str] | None = None

    def __enter__(self) -> Claims:
        if isinstance(self._path, Path):
            self._file = open(self._path, "a")
        return self

    def __exit__(self, *error: object) -> None:
        if self._file is not None:
            self._file.close()

    def claim(self, number: int) -> bool:
        """Claim a unit, unless another process has claimed it; returns whether that succeeded."""
        if self._file is None:
            return True
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, number)
        except OSError as error:
            if error.errno not in NO_LOCKS:
                return False
            warnings.warn(
                f"{self._path}: this filesystem has no locks ({error.strerror}); machines that work at the same time "
                "may do some units twice",
                stacklevel=2,
            )
        return True

    def release(self, number: int) -> None:
        """Release the claim on a unit."""
        if self._file is not None:
            fcntl.lockf(self._file, fcntl.LOCK_UN, 1, number)

    def claim_each(self, units: Iterable[Unit], is_finished: Callable[[Unit], bool]) -> Iterator[Unit]:
        """Yield the units that no other process has claimed or finished, each claimed just before."""
        for unit in units:
            if self.claim(unit.number):
                if is_finished(unit):  # by a process that released it meanwhile
                    self.release(unit.number)
                else:
                    yield unit
