"""Caches of facts about text files, such as digests, in `data.root`, for all machines that share it."""

from __future__ import annotations

import json
import os
import random
import socket
import time
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from bertjax.storage.files import replace_text
from bertjax.storage.json_documents import read_json
from bertjax.storage.remote import AnyPath, is_remote
from bertjax.text.sources.registry import digest
from bertjax.text.sources.source import SourceFile

THREADS = 4
_MOST_BYTES = 1 << 30  # of a cache; 200 bytes a file
_SETTLED_SECONDS = 2.0
_BATCH_BYTES = 4 << 30  # of files; after each batch, write its digests and look up those of other machines


def file_digests(files: Sequence[SourceFile], stamps: Sequence[tuple[int, ...]], folder: AnyPath) -> list[str]:
    """The SHA-256 of each file; digests of plain files are cached in `folder` by path and stamp.

    They name the store, and so are computed before the text is prepared, which costs 0.2 of the 27 processor seconds
    for 200 MB of plain text. Machines that share the folder hash files in different orders and look up each other's
    digests after every few gigabytes, so that together they read the text about once.
    """
    keys = [_key(file, stamp) for file, stamp in zip(files, stamps, strict=True)]
    own = folder / f"{socket.gethostname()}.json"
    digests, missing = [""] * len(files), list(range(len(files)))
    random.Random(f"{own} {os.getpid()}").shuffle(missing)
    with ThreadPoolExecutor(THREADS) as threads:
        while missing:
            cache: dict[str, str] = {}
            for path in sorted(folder.glob("*.json")):
                cache |= read_cache(path)
            for number in missing:
                digests[number] = cache.get(keys[number], "")
            missing = [number for number in missing if not digests[number]]
            size, batch = 0, []
            while missing and (size < _BATCH_BYTES or len(batch) < THREADS):
                batch.append(missing.pop())
                size += files[batch[-1]].size
            for number, sha256 in zip(batch, threads.map(digest, [files[number] for number in batch]), strict=True):
                digests[number] = sha256
            extend_cache(own, read_cache(own), {keys[number]: digests[number] for number in batch if keys[number]})
    return digests


def _key(file: SourceFile, stamp: tuple[int, ...]) -> str:
    """The key of a file's digest in the cache; "" for a file that is not cached.

    A file that was just written is not: it can change again within the resolution of its timestamp.
    """
    if file.members or not (is_remote(file.path) or time.time() - max(stamp[1:]) / 1e9 > _SETTLED_SECONDS):
        return ""
    path = file.path if is_remote(file.path) else os.path.abspath(file.path)
    return " ".join(map(str, (path, *stamp)))


def read_cache(path: AnyPath) -> dict[str, str]:
    """Read a cache that `extend_cache` wrote; empty if it is missing or damaged."""
    try:
        return read_json(path, dict[str, str], most_bytes=_MOST_BYTES)
    except (FileNotFoundError, ValueError):
        return {}


def extend_cache(path: AnyPath, cache: Mapping[str, str], fresh: Mapping[str, str]) -> None:
    """Add the entries of `fresh` to a file whose content is `cache`, unless it has them.

    Several processes may write it at once: the last one wins, and every version is correct.
    """
    if not fresh.items() <= cache.items():
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_text(path, json.dumps({**cache, **fresh}, indent=1))
