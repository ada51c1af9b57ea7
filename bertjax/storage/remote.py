"""Files in object storage: `gs://`, `s3://` and every other URL that fsspec opens.

Objects appear atomically, and cannot be renamed, locked or memory-mapped. fsspec is used because Orbax and TensorFlow
Datasets depend on it, and because it reports when an object changed, which their `etils.epath` does not.

`RemotePath` replaces universal_pathlib for these reasons: listings are never cached, since other machines write too;
`exists` and `is_file` raise on a failed request instead of returning False; errors name the URL, the command that lists
it and the missing extra; and many small objects are uploaded and downloaded together.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

from bertjax.config.credentials import refuse_credentials

_READ_AT_ONCE = 8 << 20  # bytes; a request takes as long as some megabytes
# Scheme -> the module that opens its URLs, and the extra that installs it.
EXTRAS = {
    **dict.fromkeys(("gs", "gcs"), ("gcsfs", "gcs")),
    **dict.fromkeys(("s3", "s3a"), ("s3fs", "s3")),
    "hf": ("huggingface_hub", "hf"),
}
_LISTING = {"gs": "gcloud storage ls", "s3": "aws s3 ls"}
# A data set on the Hugging Face Hub: its name, revision and path.
_DATA_SET = re.compile(r"hf://datasets/(?P<name>[^/]+/[^/@]+)(?:@(?P<revision>[^/]+))?/?(?P<path>.*)")
_PINNED = re.compile(r"hf://datasets/(?P<data_set>[^/]+/[^/]+@[0-9a-f]{40})/(?P<path>.+)")  # a URL at a fixed commit
_SPARE = 4 << 30  # bytes to leave free on a disk
_NO_NETWORK = ("ConnectionError", "NetworkError", "TimeoutException")  # of Python and httpx
_CHECKSUMS = ("ETag", "etag", "md5Hash", "generation")  # keys with which storages distinguish versions of an object


class RemoteError(OSError):
    """An operation on object storage failed. Earlier writes are intact, and the command can be run again."""


@dataclass(frozen=True, order=True)
class RemotePath:
    """A URL in object storage, with the methods of pathlib.Path that bertjax uses."""

    url: str

    def __str__(self) -> str:
        return self.url

    def __truediv__(self, name: str) -> RemotePath:
        return RemotePath(f"{self.url.rstrip('/')}/{name}")

    @property
    def name(self) -> str:
        """The part after the last slash."""
        return self.url.rstrip("/").rpartition("/")[2]

    @property
    def suffix(self) -> str:
        """The suffix of the name, such as `.json`."""
        return Path(self.name).suffix

    @property
    def parent(self) -> RemotePath:
        """The URL without its last part."""
        return RemotePath(self.url.rstrip("/").rpartition("/")[0])

    def with_name(self, name: str) -> RemotePath:
        """The URL with its last part replaced."""
        return self.parent / name

    def mkdir(self, parents: bool = False, exist_ok: bool = False) -> None:
        """Do nothing: object storage has no directories, only prefixes of names."""

    def exists(self) -> bool:
        """Whether there is an object with this name or prefix."""
        return self._kind() is not None

    def is_file(self) -> bool:
        """Whether there is an object with this name."""
        return self._kind() == "file"

    def is_dir(self) -> bool:
        """Whether there is an object with this prefix."""
        return self._kind() == "directory"

    def _kind(self) -> str | None:
        # fsspec's own `exists` and `isfile` return False on any error.
        with _explaining_errors(self.url, "looked up"):
            storage, path = _storage(self.url)
            try:
                return storage.info(path)["type"]
            except FileNotFoundError:
                return None

    def iterdir(self) -> Iterator[RemotePath]:
        """Yield the entries of this prefix, sorted."""
        with _explaining_errors(self.url, "listed"):
            storage, path = _storage(self.url)
            try:
                listing = storage.ls(path, detail=False)
            except FileNotFoundError:
                listing = []
        names = {name.rstrip("/").rpartition("/")[2] for name in listing if name.rstrip("/") != path.rstrip("/")}
        yield from (self / name for name in sorted(names))

    def read_bytes(self) -> bytes:
        """Read the whole object. Raises FileNotFoundError if there is none."""
        with _explaining_errors(self.url, "read"):
            storage, path = _storage(self.url)
            return storage.cat_file(path)

    def read_text(self, encoding: str = "utf-8", errors: str = "strict") -> str:
        """Read the whole object as text. Raises FileNotFoundError if there is none."""
        return self.read_bytes().decode(encoding, errors)

    def write_bytes(self, content: bytes) -> None:
        """Write the object, replacing an existing one."""
        with _explaining_errors(self.url, "written", missing=RemoteError):
            storage, path = _storage(self.url)
            storage.pipe_file(path, content)

    def upload(self, file: Path) -> None:
        """Upload a local file."""
        with _explaining_errors(self.url, "written", missing=RemoteError):
            storage, path = _storage(self.url)
            storage.put_file(str(file), path)

    def upload_all(self, folder: Path, names: Iterable[str]) -> None:
        """Upload files of a local directory under the same names, several at a time."""
        names = list(names)
        with _explaining_errors(self.url, "written", missing=RemoteError):
            storage, path = _storage(self.url)
            if names:
                storage.put([str(folder / name) for name in names], [f"{path}/{name}" for name in names])

    def download_all(self, folder: Path, names: Iterable[str]) -> None:
        """Download objects into a local directory under the same names, several at a time."""
        names = list(names)
        with _explaining_errors(self.url, "read"):
            storage, path = _storage(self.url)
            if names:
                storage.get([f"{path}/{name}" for name in names], [str(folder / name) for name in names])

    def sizes(self) -> dict[str, int]:
        """Map the name of every object under this prefix, relative to it, to its size in bytes."""
        with _explaining_errors(self.url, "listed"):
            storage, path = _storage(self.url)
            objects = storage.find(path, detail=True)
            return {name.removeprefix(path).lstrip("/"): info["size"] for name, info in objects.items()}

    def copy_to(self, target: RemotePath) -> None:
        """Copy every object under this prefix to `target` in the same storage, several at a time."""
        with _explaining_errors(self.url, "copied"):
            storage, path = _storage(self.url)
            _, target_path = _storage(target.url)
            if names := storage.find(path):
                storage.copy(names, [target_path + name.removeprefix(path) for name in names])

    def unlink(self, missing_ok: bool = False) -> None:
        """Remove the object. Some storages do not raise for a missing one, even if `missing_ok` is false."""
        if missing_ok and not self.is_file():
            return
        with _explaining_errors(self.url, "removed"):
            storage, path = _storage(self.url)
            storage.rm_file(path)

    def glob(self, pattern: str) -> list[RemotePath]:
        """The URLs under this prefix that match a pattern, sorted."""
        return [RemotePath(url) for url in sorted(_matches(f"{self.url.rstrip('/')}/{pattern}"))]

    def rmtree(self) -> None:
        """Remove every object under this prefix."""
        if not self.exists():
            return
        with _explaining_errors(self.url, "removed"):
            storage, path = _storage(self.url)
            storage.rm(path, recursive=True)


AnyPath = Path | RemotePath


def is_remote(path: str | AnyPath) -> bool:
    """Whether a path is a URL."""
    return "://" in str(path)


def to_path(path: str) -> AnyPath:
    """Convert a path or URL to its path object."""
    return RemotePath(path) if is_remote(path) else Path(path)


def open_bytes(path: str, buffer: int = -1) -> BinaryIO:
    """Open a local or remote file for sequential reading; a remote one is fetched in ranges of some megabytes."""
    if not is_remote(path):
        return open(path, "rb", buffer)
    return io.BufferedReader(_RemoteFile(path), _READ_AT_ONCE)


def open_ranges(url: str) -> io.RawIOBase:
    """Open a remote file for random access: each read is one request for exactly these bytes."""
    return _RemoteFile(url)


def read_range(path: AnyPath, start: int, stop: int) -> bytes:
    """Read the bytes [start, stop) of a local or remote file, in one request."""
    if isinstance(path, Path):
        with path.open("rb") as file:
            file.seek(start)
            return file.read(stop - start)
    with _explaining_errors(path.url, "read"):
        storage, inner = _storage(path.url)
        return storage.cat_file(inner, start=start, end=stop)


def file_size(path: str) -> int:
    """The size of a local or remote file in bytes."""
    if not is_remote(path):
        return os.path.getsize(path)
    with _explaining_errors(path, "looked up"):
        storage, inner = _storage(path)
        return storage.size(inner)


def object_state(url: str) -> tuple[int, int]:
    """The size of an object in bytes, and a number that changes with its content."""
    with _explaining_errors(url, "looked up"):
        storage, path = _storage(url)
        info = storage.info(path)  # includes the object's ETag, generation or modification time
        return info["size"], int(hashlib.sha256(str(info).encode()).hexdigest()[:15], 16)


def content_tag(url: str) -> str:
    """SHA-256 (hex) of the tag with which the storage identifies an object's version; does not read the object."""
    with _explaining_errors(url, "looked up"):
        storage, path = _storage(url)
        info = storage.info(path)
        tag = next((f"{key}={info[key]}" for key in _CHECKSUMS if info.get(key)), str(info))
        return hashlib.sha256(f"{info['size']} {tag}".encode()).hexdigest()


def remote_files(pattern: str) -> dict[str, int]:
    """Map each URL that a pattern matches to its bytes. Raises ValueError for a URL that cannot be opened."""
    return {url: info["size"] for url, info in _matches(pattern).items() if info["type"] == "file"}


def listing_command(url: str) -> str:
    """Name a command or page that lists the objects at a URL."""
    if data_set := _DATA_SET.fullmatch(url):
        return f"https://huggingface.co/datasets/{data_set['name']}/tree/{data_set['revision'] or 'main'}"
    scheme = url.partition("://")[0]
    folder = url.partition("*")[0].rpartition("/")[0]
    return f"`{_LISTING.get(scheme, 'fsspec.open_files, or a tool for')} {folder}/`"


class _RemoteFile(io.RawIOBase):
    """An object as a seekable file without fsspec's caches and read-ahead; every read is one request."""

    def __init__(self, url: str) -> None:
        self._url, self._position = url, 0
        with _explaining_errors(url, "opened"):
            storage, path = _storage(url)
            self._size = storage.size(path)
            self._fetch = _exact_reader(storage, path)
            if pinned := _PINNED.fullmatch(url):
                self._fetch = _cache_ranges(self._fetch, pinned["data_set"], pinned["path"])

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        self._position = offset + {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}[whence]
        return self._position

    def readinto(self, buffer: Any, /) -> int:
        end = min(self._position + len(buffer), self._size)
        if end <= self._position:
            return 0
        with _explaining_errors(self._url, "read", missing=RemoteError):
            data = self._fetch(self._position, end)
        if len(data) != end - self._position:
            raise RemoteError(f"{self._url}: got {len(data)} bytes at byte {self._position} instead of {len(buffer)}")
        buffer[: len(data)] = data
        self._position = end
        return len(data)


def _exact_reader(storage: Any, path: str) -> Callable[[int, int], bytes]:
    """Make a function that fetches exactly the bytes [start, end) of an object."""
    from fsspec import AbstractFileSystem

    if storage.async_impl or type(storage).cat_file is not AbstractFileSystem.cat_file:
        return lambda start, end: storage.cat_file(path, start=start, end=end)
    file = storage.open(path, "rb", cache_type="none")  # the default reads 5 MiB ahead of every range

    def fetch(start: int, end: int) -> bytes:
        file.seek(start)
        return file.read(end - start)

    return fetch


def _cache_ranges(fetch: Callable[[int, int], bytes], data_set: str, path: str) -> Callable[[int, int], bytes]:
    """Cache the ranges of a Hub file on disk: text is read for the vocabulary, and again for the store."""
    from huggingface_hub import cached_assets_path

    name = hashlib.sha256(path.encode()).hexdigest()[:16]
    folder = cached_assets_path("bertjax", namespace="ranges", subfolder=data_set) / name

    def fetch_once(start: int, end: int) -> bytes:
        cache_file = folder / f"{start}-{end}"
        if cache_file.is_file() and cache_file.stat().st_size == end - start:
            return cache_file.read_bytes()
        data = fetch(start, end)
        with suppress(OSError):  # a full or read-only disk only costs another download
            folder.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(folder).free > _SPARE:
                partial = folder / f"{start}-{end}.{os.getpid()}-{threading.get_ident()}"
                partial.write_bytes(data)
                partial.replace(cache_file)
        return data

    return fetch_once


def _matches(pattern: str) -> dict[str, dict]:
    with _explaining_errors(pattern, "listed"):
        storage, path = _storage(pattern)
        objects = storage.glob(path, detail=True)
        return {storage.unstrip_protocol(name): info for name, info in objects.items()}


def _storage(url: str) -> tuple[Any, str]:
    """Find a URL's fsspec filesystem and the path in it. Raises ValueError if the library for it is not installed."""
    import fsspec

    refuse_credentials(url)
    scheme = url.partition("://")[0]
    try:
        # No cached listings: other machines write too.
        return fsspec.core.url_to_fs(url, use_listings_cache=False)
    except ImportError as error:
        what = f"pip install 'bertjax[{EXTRAS[scheme][1]}]'" if scheme in EXTRAS else str(error)
        raise ValueError(f"{url}: the library that opens {scheme}:// is not installed; {what}") from None
    except ValueError as error:
        raise ValueError(f"{url}: {error}; use gs://, s3://, another URL that fsspec supports, or a path") from None


@contextmanager
def _explaining_errors(url: str, what: str, missing: type[OSError] = FileNotFoundError) -> Iterator[None]:
    """Convert errors of any storage library to `RemoteError`, with the command that shows the objects."""
    try:
        yield
    except (ValueError, RemoteError):
        raise
    except Exception as error:
        if advice := _download_advice(url, error):
            raise RemoteError(f"{url}: no network; {advice}") from error
        kind = missing if isinstance(error, FileNotFoundError) else RemoteError
        raise kind(
            f"{url}: cannot be {what} ({type(error).__name__}: {error}); check with {listing_command(url)} that it "
            "exists and that this machine's credentials allow it"
        ) from error


def _download_advice(url: str, error: Exception) -> str:
    """Explain how to download a Hub data set on another machine, if the error is a missing network; else ''."""
    data_set = _DATA_SET.fullmatch(url)
    if not data_set or not any(kind.__name__ in _NO_NETWORK for kind in type(error).__mro__):
        return ""
    folder = data_set["name"].rpartition("/")[2]
    revision = f" --revision {data_set['revision']}" if data_set["revision"] else ""
    path = data_set["path"].removeprefix("**/")  # the command's `*` matches any depth
    include = f" --include '{path}'" if path else ""
    return (
        f"on a machine with network, run `hf download {data_set['name']} --repo-type dataset{revision}{include} "
        f"--local-dir {folder}`, copy the folder here, and give {folder}/{data_set['path']} instead of the URL"
    )


DEFAULT_CACHE = "data/cache"  # for copies of remote stores
