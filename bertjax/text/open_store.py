"""Open the token store of a run; prepares it from the sources if it does not exist."""

from __future__ import annotations

import contextlib
from pathlib import Path

from bertjax.config import DataConfig
from bertjax.storage.progress import Progress, no_progress
from bertjax.storage.remote import DEFAULT_CACHE, to_path
from bertjax.text.prepare import prepare
from bertjax.text.store.format import TokenStore
from bertjax.text.store.joined import JoinedStore
from bertjax.text.store.local_copy import divide_cache, open_copy, open_near
from bertjax.text.store.manifest import read_manifest
from bertjax.text.store_sources import require_store_sources


def open_store(data: DataConfig, progress: Progress = no_progress) -> TokenStore:
    """Open `data.store` (several as one), or prepare and open the store of the sources; copies it like `open_near`.

    Raises like `prepare`, `open_near`, `TokenStore.open`, `JoinedStore` and `require_store_sources`.
    """
    paths = [to_path(store) for store in data.store] or [prepare(data, progress)]
    bounds = [data.cache_gb] if len(paths) == 1 else divide_cache(paths, data)
    stores = [open_near(path, data.cache_dir, progress, bound) for path, bound in zip(paths, bounds, strict=True)]
    if len(stores) > 1:
        return JoinedStore(stores)
    require_store_sources(stores[0].manifest, [data])
    return stores[0]


def reopen_store(data: DataConfig, fingerprint: str, progress: Progress = no_progress) -> TokenStore | None:
    """Open the store with this fingerprint, even if the sources have changed. Returns None if there is none.

    Raises like `open_near` and `TokenStore.open`; other stores that are damaged are ignored.
    """
    if data.store:
        store = open_store(data, progress)
        return store if store.fingerprint == fingerprint else None
    cache = Path(data.cache_dir or DEFAULT_CACHE)
    for folder in (cache, to_path(data.root)):
        for manifest in sorted(folder.glob("store-*/manifest.json")):
            with contextlib.suppress(ValueError):
                content = read_manifest(manifest.parent)
                if content["fingerprint"] != fingerprint:
                    continue
                if folder is cache:
                    return open_copy(cache / manifest.parent.name, content, progress, data.cache_gb)
                return open_near(manifest.parent, data.cache_dir, progress, data.cache_gb)
    return None
