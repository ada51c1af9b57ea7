"""Local copies of token stores that are remote or on a slow shared disk."""

from __future__ import annotations

import math
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.config import DataConfig
from bertjax.storage.atomic_directories import exclusive_lock
from bertjax.storage.files import sync, write_durably
from bertjax.storage.progress import Progress, no_progress
from bertjax.storage.remote import DEFAULT_CACHE, AnyPath, RemotePath, is_remote
from bertjax.text.store.format import TokenStore
from bertjax.text.store.manifest import (
    BLOCK_BYTES,
    MANIFEST_FILE,
    ORIGIN_FILE,
    WINDOW_TOKENS,
    file_records,
    num_blocks,
    read_manifest,
)
from bertjax.tokenization.loading import COMPANIONS, VOCABULARY_FILES

_LEAST_WINDOWS = 3  # that a copy holds: the current one, the next, and one that threads may still read


def divide_cache(paths: Sequence[AnyPath], data: DataConfig) -> list[float]:
    """Divide `data.cache_gb` among the copies of several stores, in proportion to the least that a run holds of each.

    Raises ValueError if it is less than the sum.
    """
    most = round(data.cache_gb * 1e9)
    sizes = [
        _least_and_total_bytes(read_manifest(path), WINDOW_TOKENS)
        if data.cache_gb and (data.cache_dir or is_remote(path))
        else (0, 0)
        for path in paths
    ]
    least, total = (sum(size) for size in zip(*sizes, strict=True))
    if most >= total:
        return [0.0] * len(paths)
    _require_bound(data.cache_gb, least)
    return [max(most * store_least // least, store_least) / 1e9 for store_least, _ in sizes]


def require_cached_lanes(store: TokenStore, data: DataConfig, lanes: int, window_tokens: int) -> None:
    """Raise ValueError if a bounded copy has no room for the windows of the lanes that a host reads.

    Each batch reads a part of every lane's window, so a smaller copy would be fetched again and again.
    """
    if not store.is_bounded:
        return
    least, _ = _least_and_total_bytes(store.manifest, lanes * window_tokens)
    if round(data.cache_gb * 1e9) < least:
        raise ValueError(
            f"data.cache_gb={data.cache_gb:g} with data.lanes={data.lanes}: this host reads {lanes} lanes with "
            f"{_LEAST_WINDOWS} windows each, {math.ceil(least / 1e6) / 1e3:g} GB in all; allow at least that, set 0 "
            "for no bound, or use more hosts, so that each reads fewer lanes"
        )


def _least_and_total_bytes(manifest: Mapping[str, Any], window_tokens: int) -> tuple[int, int]:
    """The least bytes of a store's blocks that a run with windows of this size holds, and the bytes of all blocks."""
    total = sum(map(num_blocks, file_records(manifest))) * BLOCK_BYTES
    windows = _LEAST_WINDOWS * total * window_tokens // max(manifest["splits"]["train"]["tokens"], 1)
    return min(windows, total), total


def _require_bound(gigabytes: float, least: int) -> None:
    if 0 < round(gigabytes * 1e9) < least:
        raise ValueError(
            f"data.cache_gb={gigabytes:g}: a run holds {_LEAST_WINDOWS} windows of the text, or all of a smaller text, "
            f"here {math.ceil(least / 1e6) / 1e3:g} GB; allow at least that, or set 0 for no bound"
        )


def open_near(
    store: AnyPath, cache_dir: str = "", progress: Progress = no_progress, most_gigabytes: float = 0
) -> TokenStore:
    """Open an existing store; a remote one, or any if `cache_dir` is given, through a copy in that folder.

    The copy is `<cache_dir>/<store's name>-<fingerprint>`. A small store is copied at once. Blocks of a larger one are
    fetched and verified when they are first read, and reused by later processes. `most_gigabytes` bounds their size.
    Raises ValueError naming a damaged file, OSError if the disk has too little room.
    """
    if isinstance(store, Path) and not cache_dir:
        return TokenStore.open(store)
    if is_remote(cache_dir):
        raise ValueError(f"data.cache_dir={cache_dir} is not on this machine; name a folder on a local disk")
    cache = Path(cache_dir or DEFAULT_CACHE)
    manifest = read_manifest(store)
    target = cache / f"{store.name}-{manifest['fingerprint'][:12]}"
    with exclusive_lock(cache):
        if not target.exists():
            _create_copy(store, target)
    return open_copy(target, manifest, progress, most_gigabytes)


def _create_copy(store: AnyPath, target: Path) -> None:
    """Make a copy without array files. They are made when they are first read, as a large store has 100,000."""
    folder = target.with_name(f"{target.name}.partial")
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    vocabulary = [name for name in (*VOCABULARY_FILES, *COMPANIONS) if (store / name).is_file()]
    write_durably(folder / ORIGIN_FILE, str(store if isinstance(store, RemotePath) else store.absolute()).encode())
    for name in [*vocabulary, MANIFEST_FILE]:
        write_durably(folder / name, (store / name).read_bytes())
    sync(folder)
    folder.rename(target)
    sync(target.parent)


def open_copy(target: Path, manifest: dict[str, Any], progress: Progress, most_gigabytes: float) -> TokenStore:
    """Open a copy; completes it first if the store is not larger than one window.

    A process with a bound has exclusive use of the copy, as it may remove blocks that others have verified.
    """
    most = round(most_gigabytes * 1e9)
    if most:
        least, total = _least_and_total_bytes(manifest, WINDOW_TOKENS)
        _require_bound(most_gigabytes, least)
        most = most if most < total else 0
    store = TokenStore.open(target, most, manifest)
    is_large = manifest["splits"]["train"]["tokens"] > WINDOW_TOKENS
    if is_large and not most:
        return store
    files = file_records(manifest)
    present = sum(path.stat().st_blocks * 512 for file in files if (path := target / file["name"]).exists())
    if 0 < most < present:  # fetched under another bound
        for file in store.files():
            file.drop_all()
    if is_large:
        return store
    total = sum(file["bytes"] for file in files)
    needed, free = total - present, shutil.disk_usage(target).free
    if needed > free:
        raise OSError(
            f"data.cache_dir={target.parent}: {needed / 1e6:,.1f} MB of {store.location} must be copied there, but "
            f"only {free / 1e6:,.1f} MB are free; make room, or set data.cache_dir to a larger disk"
        )
    done = 0
    for file in store.files():
        progress(f"copying the token store to {target}, bytes", done, total)
        done += file.whole().nbytes
    progress(f"copying the token store to {target}, bytes", done, total)
    return store
