"""Open a token store, through a local copy if it is remote or on a slow shared disk."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bertjax.config import DataConfig
from bertjax.storage.atomic_directories import exclusive_lock
from bertjax.storage.files import naming, sync, write_durably
from bertjax.storage.progress import Progress, no_progress
from bertjax.storage.remote import DEFAULT_CACHE, AnyPath, RemotePath, is_remote, open_bytes, path_of, remote_files
from bertjax.text.prepare import prepare
from bertjax.text.store.format import TokenStore
from bertjax.text.store.manifest import FileRecord, file_records, read_manifest

_CHUNK = 8 << 20


def open_store(data: DataConfig, progress: Progress = no_progress) -> TokenStore:
    """Open the store of the sources, prepared if needed; copied to `data.cache_dir` if that is set or it is remote.

    Raises like `prepare`, `local_copy` and `TokenStore.open`.
    """
    return open_near(prepare(data, progress), data.cache_dir, progress)


def reopen_store(data: DataConfig, fingerprint: str, progress: Progress = no_progress) -> TokenStore | None:
    """Open the store with this fingerprint, whatever the sources hold now. Returns None if there is none.

    Raises like `local_copy` and `TokenStore.open`; damaged other stores are ignored.
    """
    cache = Path(data.cache_dir or DEFAULT_CACHE)
    for folder in (cache, path_of(data.root)):
        for manifest in sorted(folder.glob("store-*/manifest.json")):
            with contextlib.suppress(ValueError):
                if read_manifest(manifest.parent)["fingerprint"] != fingerprint:
                    continue
                return open_near(manifest.parent, "" if folder is cache else data.cache_dir, progress)
    return None


def open_near(store: AnyPath, cache_dir: str = "", progress: Progress = no_progress) -> TokenStore:
    """Open an existing store, through a local copy if it is remote or a cache directory is given."""
    if isinstance(store, Path) and not cache_dir:
        return TokenStore.open(store)
    return TokenStore.open(local_copy(store, cache_dir or DEFAULT_CACHE, progress))


def local_copy(store: AnyPath, cache_dir: str, progress: Progress = no_progress) -> Path:
    """Copy a store to `<cache_dir>/<store's name>-<fingerprint>` if needed, and return that folder.

    The folder appears atomically; an interrupted copy continues with the missing files. Raises ValueError naming a file
    whose SHA-256 is not the manifest's, OSError if the disk has too little room.
    """
    if is_remote(cache_dir):
        raise ValueError(f"data.cache_dir={cache_dir} is not on this machine; name a folder of a local disk")
    manifest = read_manifest(store)
    target = Path(cache_dir) / f"{store.name}-{manifest['fingerprint'][:12]}"
    with exclusive_lock(Path(cache_dir)):
        if not target.exists():
            _copy(store, manifest, target, progress)
    return target


def _copy(store: AnyPath, manifest: Mapping[str, Any], target: Path, progress: Progress) -> None:
    folder = target.with_name(f"{target.name}.partial")
    folder.mkdir(exist_ok=True)
    files = file_records(manifest)
    total = sum(file["bytes"] for file in files)
    what = f"copying the token store to {target}, bytes"
    done = sum(file["bytes"] for file in files if _is_there(folder, file))
    needed, free = total - done, shutil.disk_usage(folder).free
    if needed > free:
        raise OSError(
            f"data.cache_dir={folder.parent}: {needed / 1e6:,.1f} MB of {store} are to be copied there and "
            f"{free / 1e6:,.1f} MB are free; make room, or set data.cache_dir to a larger disk"
        )
    progress(what, done, total)
    for file in files:
        if not _is_there(folder, file):
            _copy_file(store / file["name"], folder / file["name"], file)
            done += file["bytes"]
            progress(what, done, total)
    # The other files are small: the vocabulary, which has a fingerprint of its own, and last the manifest.
    if isinstance(store, RemotePath):
        names = {url.rpartition("/")[2] for url in remote_files(f"{store}/*")}
    else:
        names = {path.name for path in store.iterdir()}
    others = names - {file["name"] for file in files} - {"manifest.json"}
    for name in [*sorted(others), "manifest.json"]:
        write_durably(folder / name, (store / name).read_bytes())
    sync(folder)
    os.rename(folder, target)
    sync(target.parent)


def _is_there(folder: Path, file: FileRecord) -> bool:
    """Whether a file was copied: it gets its name once complete and verified."""
    return (folder / file["name"]).is_file()


def _copy_file(source: AnyPath, target: Path, file: FileRecord) -> None:
    digest = hashlib.sha256()
    partial = target.with_name(f"{target.name}.partial")
    with open_bytes(str(source)) as read, open(partial, "wb") as written:
        while chunk := read.read(_CHUNK):
            digest.update(chunk)
            with naming(partial):
                written.write(chunk)
        with naming(partial):
            written.flush()
            os.fsync(written.fileno())
    if digest.hexdigest() != file["sha256"]:
        partial.unlink()
        raise ValueError(
            f"token store file {source}: its SHA-256 is {digest.hexdigest()}, the manifest's is {file['sha256']}; it "
            "was damaged there: delete the store and prepare it again"
        )
    os.replace(partial, target)
