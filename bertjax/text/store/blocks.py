"""Files of a token store, mapped into memory in blocks of 1 MiB that are fetched and verified when first read."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import hashlib
import mmap
import os
import threading
import weakref
from collections import deque
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from pathlib import Path

import numpy as np

from bertjax.storage.remote import AnyPath, read_range, to_path
from bertjax.text.ragged import range_indices
from bertjax.text.store.manifest import BLOCK_BYTES, DIGEST_BYTES, DigestsRecord, FileRecord, num_blocks

_RUN = 8  # most blocks per request; a request takes as long as some megabytes
_REQUESTS = 16  # at a time
_NO_OFFSET, _MAP_FAILED = ctypes.c_int64(0), ctypes.c_void_p(-1).value
_PUNCH = 3  # FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE


class Origin:
    """The store that a local copy fetches blocks from, and the most bytes that the copy may hold (0: no bound).

    `path` is the copy's file with the store's path or URL. Raises ValueError if another process reads the copy and
    either process bounds it.
    """

    def __init__(self, path: Path, most_bytes: int = 0) -> None:
        self.folder, self.most_bytes = to_path(path.read_text()), most_bytes
        self._lock_file = path.open("rb")  # open, and locked, as long as this object lives
        try:
            fcntl.flock(self._lock_file, (fcntl.LOCK_EX if most_bytes else fcntl.LOCK_SH) | fcntl.LOCK_NB)
        except BlockingIOError:
            self._lock_file.close()
            raise ValueError(
                f"{path.parent}: another process reads this copy, and data.cache_gb bounds it; give each process its "
                "own data.cache_dir"
            ) from None
        self._blocks: deque[tuple[BlockFile, int]] = deque()  # blocks in the copy, oldest first
        self._lock = threading.Lock()

    def hold(self, file: BlockFile, blocks: Sequence[int]) -> None:
        """Count blocks that were fetched, and drop the oldest ones beyond the bound."""
        if not self.most_bytes:
            return
        with self._lock:
            self._blocks.extend((file, block) for block in blocks)
            while len(self._blocks) * BLOCK_BYTES > self.most_bytes:
                oldest, block = self._blocks.popleft()
                oldest.drop(block)


class BlockFile:
    """A memory-mapped array whose blocks are compared with their SHA-256 the first time they are read.

    With an `origin`, the file is a copy with holes, created at the first read: missing blocks are fetched, several at a
    time. Without one, the file must exist. Raises ValueError if its size differs from the manifest's.
    """

    def __init__(
        self, folder: Path, record: FileRecord | DigestsRecord, dtype: str, origin: Origin | None = None
    ) -> None:
        self.path, self._record = folder / record["name"], record
        self.dtype = np.dtype(dtype)
        if origin is None:
            require_file(str(folder), record)
        self._origin = origin
        self._fetching = threading.Lock()
        self._checked = np.zeros(num_blocks(record), bool)
        self._all_checked = False  # stays False if blocks may be dropped

    @cached_property
    def _array(self) -> np.ndarray:
        """The mapped file. A plain array, because indexing an np.memmap costs more than the gather."""
        if self._origin is not None:
            if not self.path.exists() or not self.path.stat().st_size:
                with self.path.open("ab") as file:  # appending preserves what another process fetches meanwhile
                    file.truncate(self._record["bytes"])
            require_file(str(self.path.parent), self._record)
        return _map_file(self.path).view(self.dtype)

    @cached_property
    def digest_file(self) -> BlockFile | None:
        """The file with the digests of the blocks; None if the manifest has them."""
        if "digests" not in self._record:
            return None
        return BlockFile(self.path.parent, self._record["digests"], "|u1", self._origin)

    @cached_property
    def _digests(self) -> bytes:
        """The SHA-256 of all blocks, one after the other."""
        if self.digest_file is not None:
            return self.digest_file.whole().tobytes()
        assert "blocks" in self._record
        return bytes.fromhex("".join(self._record["blocks"]))

    @property
    def is_bounded(self) -> bool:
        """Whether blocks may be dropped."""
        return self._origin is not None and self._origin.most_bytes > 0

    def whole(self) -> np.ndarray:
        """The whole array, verified."""
        return self.span(0, self._record["bytes"] // self.dtype.itemsize)

    def span(self, first: int, stop: int) -> np.ndarray:
        """The elements [first, stop), verified; copied if blocks may be dropped."""
        blocks = np.zeros(0, np.int64)
        if not self._all_checked and first < stop:
            per_block = BLOCK_BYTES // self.dtype.itemsize
            blocks = np.arange(first // per_block, (stop - 1) // per_block + 1)
        while True:
            self._check(blocks)
            values = self._array[first:stop]
            if not self.is_bounded:
                return values
            values = values.copy()
            if self._checked[blocks].all():  # no block was dropped while they were copied
                return values

    def take(self, indices: np.ndarray, starts: np.ndarray, lengths: np.ndarray) -> np.ndarray:
        """The elements at `indices`, which lie in the ranges of `starts` and `lengths`."""
        if self._all_checked:
            return self._array.take(indices)
        per_block = BLOCK_BYTES // self.dtype.itemsize
        first, last = starts // per_block, np.maximum(starts + lengths - 1, starts) // per_block
        blocks = np.unique(range_indices(first, last - first + 1))
        while True:
            self._check(blocks)
            values = self._array.take(indices)
            if not self.is_bounded or self._checked[blocks].all():
                return values

    def drop(self, block: int) -> None:
        """Free the disk space of a block; the next read fetches it again."""
        self._checked[block] = False  # before freeing it, so that a reader that has just copied it reads it again
        with open(self.path, "r+b") as file:
            _punch_hole(file.fileno(), block * BLOCK_BYTES, BLOCK_BYTES, self.path)

    def drop_all(self) -> None:
        """Free the disk space of all blocks."""
        if self.path.exists():
            for block in range(len(self._checked)):
                self.drop(block)

    def _check(self, blocks: np.ndarray) -> None:
        new = blocks[~self._checked[blocks]]
        if not len(new):
            return
        if self._origin is None:
            for block in new.tolist():
                if not self._is_intact(block):
                    raise ValueError(_damage(self.path, block))
                self._checked[block] = True
        else:
            self._fetch(self._origin, new)
        self._all_checked = not self.is_bounded and bool(self._checked.all())

    def _is_intact(self, block: int) -> bool:
        start = block * BLOCK_BYTES
        content = self._array.data.cast("B")[start : start + BLOCK_BYTES]
        return hashlib.sha256(content).digest() == self._digest(block)

    def _digest(self, block: int) -> bytes:
        return self._digests[DIGEST_BYTES * block :][:DIGEST_BYTES]

    def _fetch(self, origin: Origin, blocks: np.ndarray) -> None:
        """Fetch the blocks that the copy lacks, recognised by their digest, which a hole does not have."""
        with self._fetching:
            new = blocks[~self._checked[blocks]].tolist()
            absent = np.array([block for block in new if not self._is_intact(block)], np.int64)
            runs = np.split(absent, np.flatnonzero(np.diff(absent) != 1) + 1)
            pieces = [run[at : at + _RUN] for run in runs for at in range(0, len(run), _RUN)]
            with open(self.path, "r+b") as file:
                source, descriptor = origin.folder / self.path.name, file.fileno()
                list(_fetchers().map(lambda piece: self._fetch_run(source, descriptor, piece), pieces))
            self._checked[new] = True
            origin.hold(self, new)

    def _fetch_run(self, source: AnyPath, descriptor: int, blocks: np.ndarray) -> None:
        """Fetch successive blocks, verify them, and write them into the file."""
        start = int(blocks[0]) * BLOCK_BYTES
        content = read_range(source, start, min(start + len(blocks) * BLOCK_BYTES, os.fstat(descriptor).st_size))
        for number, block in enumerate(blocks.tolist()):
            if hashlib.sha256(content[number * BLOCK_BYTES :][:BLOCK_BYTES]).digest() != self._digest(block):
                raise ValueError(_damage(source, block))
        try:
            os.pwrite(descriptor, content, start)
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            raise OSError(
                error.errno, "the disk is full; set data.cache_dir to a larger one, or a bound with data.cache_gb",
                str(self.path),
            ) from error  # fmt: skip


def require_file(folder: str, record: FileRecord | DigestsRecord) -> None:
    """Raise ValueError if a file of a store is missing or has another size. Must be fast: a store has many files."""
    path = f"{folder}/{record['name']}"
    try:
        size = os.stat(path).st_size
    except FileNotFoundError:
        size = None
    if size != record["bytes"]:
        state = "is missing" if size is None else f"has {size} bytes instead of {record['bytes']}"
        raise ValueError(f"token store file {path} {state}; delete the store and prepare it again")


def _damage(path: AnyPath, block: int) -> str:
    return (
        f"token store file {path}: the block at byte {block * BLOCK_BYTES} is damaged (its SHA-256 differs from the "
        f"manifest's); delete the store and prepare it again"
    )


def _map_file(path: Path) -> np.ndarray:
    """Map a file into memory. Unlike `mmap`, this does not keep the file open, as a large store has many files."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        address = libc.mmap(None, ctypes.c_size_t(size), mmap.PROT_READ, mmap.MAP_SHARED, file.fileno(), _NO_OFFSET)
    if address == _MAP_FAILED:
        raise OSError(number := ctypes.get_errno(), os.strerror(number), str(path))
    content = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(content, libc.munmap, ctypes.c_void_p(address), ctypes.c_size_t(size)).atexit = False
    array = np.frombuffer(memoryview(content), np.uint8)
    array.flags.writeable = False
    return array


@cache
def _fetchers() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(_REQUESTS, thread_name_prefix="fetch")


def _punch_hole(descriptor: int, start: int, size: int, path: Path) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.fallocate(descriptor, _PUNCH, ctypes.c_int64(start), ctypes.c_int64(size)):
        number = ctypes.get_errno()
        raise OSError(
            number, f"data.cache_gb: this file system cannot free a part of a file ({os.strerror(number)}); "
            "use ext4, xfs, btrfs or tmpfs for data.cache_dir, or data.cache_gb 0", str(path),
        )  # fmt: skip
