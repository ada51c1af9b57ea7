"""Tensors out of a file that torch.save wrote, without torch, and without the power of its pickle to run code.

A `.bin` or `.pt` file is a pickle of a dict of tensors, with the tensors' bytes beside it. A pickle can name any
function of any module and call it. Here it can name nothing but an ordered dict, the classes of storages, and the two
functions that put a tensor together, and gets our own stand-ins for these.
"""

from __future__ import annotations

import io
import math
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import ml_dtypes
import numpy as np

_LARGEST_PICKLE = 64 << 20  # bytes; BERT-Large's is 60 kB
_LEGACY_MAGIC, _LEGACY_PROTOCOL = 0x1950A86A20F9469CFC6C, 1001
_DTYPES = {
    "FloatStorage": np.dtype(np.float32),
    "DoubleStorage": np.dtype(np.float64),
    "HalfStorage": np.dtype(np.float16),
    "BFloat16Storage": np.dtype(ml_dtypes.bfloat16),
    "LongStorage": np.dtype(np.int64),
    "IntStorage": np.dtype(np.int32),
    "ShortStorage": np.dtype(np.int16),
    "CharStorage": np.dtype(np.int8),
    "ByteStorage": np.dtype(np.uint8),
    "BoolStorage": np.dtype(np.bool_),
}


@dataclass(frozen=True, slots=True)
class _Storage:
    """A flat run of elements that tensors are views of. Of the legacy format, `key` names it until its bytes come."""

    dtype: np.dtype
    key: str
    size: int


@dataclass(frozen=True, slots=True)
class _View:
    """A tensor as the pickle tells it."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch_tensors(path: str | Path) -> dict[str, np.ndarray]:
    """Name -> array of a state dict saved by torch, in its present zip format or the one before version 1.6.

    Raises ValueError, naming the file, if it is neither, holds anything but named tensors, asks for anything that could
    run code, or is inconsistent. Nothing in the file is executed.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            views, storages = (_read_zip if zipfile.is_zipfile(file) else _read_legacy)(file)
            return {name: _array(name, view, storages) for name, view in views.items()}
    except ValueError as error:
        raise ValueError(f"weights {path}: {error}") from None
    except (
        AttributeError,
        EOFError,
        ImportError,
        IndexError,
        KeyError,
        MemoryError,
        OSError,
        OverflowError,
        pickle.UnpicklingError,
        RecursionError,
        TypeError,
        UnicodeError,
        zipfile.BadZipFile,
    ) as error:
        raise ValueError(f"weights {path}: not a file of torch.save, or damaged ({error})") from None


class _Unpickler(pickle.Unpickler):
    """Builds dicts of tensors and refuses everything else."""

    def find_class(self, module: str, name: str) -> Any:
        if (module, name) == ("collections", "OrderedDict"):
            return OrderedDict
        if (module, name) == ("torch._utils", "_rebuild_tensor_v2"):
            return _rebuild_tensor
        if (module, name) == ("torch._utils", "_rebuild_parameter"):
            return _rebuild_parameter
        if module in ("torch", "torch.storage") and name in _DTYPES:
            return _DTYPES[name]
        raise ValueError(
            f"its pickle names {module}.{name}, which no file of weights needs; it could run code and was not opened"
        )

    def persistent_load(self, pid: Any) -> _Storage:
        kind, dtype, key, _, size, *view = pid
        if kind != "storage" or not isinstance(dtype, np.dtype) or any(view):
            raise ValueError(f"its pickle refers to {str(pid)[:80]!r}, which is not a storage")
        return _Storage(dtype, str(key), int(size))


def _rebuild_tensor(storage: _Storage, offset: int, shape: tuple, strides: tuple, *_: Any) -> _View:
    if not isinstance(storage, _Storage):
        raise ValueError("a tensor of it has no storage")
    return _View(storage, int(offset), tuple(map(int, shape)), tuple(map(int, strides)))


def _rebuild_parameter(data: _View, *_: Any) -> _View:
    return data


def _read_zip(file: BinaryIO) -> tuple[dict[str, _View], Callable[[_Storage], bytes]]:
    """The zip format: one folder with data.pkl, and data/<key> for each storage."""
    archive = zipfile.ZipFile(file)
    if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
        raise ValueError("its parts are compressed, which torch.save never does")
    pickles = [name for name in archive.namelist() if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(pickles) != 1:
        raise ValueError("a zip archive, but not one of torch.save: it has no data.pkl")
    (name,) = pickles
    if archive.getinfo(name).file_size > _LARGEST_PICKLE:
        raise ValueError(f"its data.pkl has {archive.getinfo(name).file_size:,} bytes; a BERT's is far smaller")
    folder = name.removesuffix("data.pkl")
    order = folder + "byteorder"
    if order in archive.namelist() and archive.read(order) != b"little":
        raise ValueError("its numbers are big-endian; save it again on another machine")
    views = _state_dict(_Unpickler(io.BytesIO(archive.read(name))).load())

    def read(storage: _Storage) -> bytes:
        info = archive.getinfo(f"{folder}data/{storage.key}")
        if info.file_size != storage.size * storage.dtype.itemsize:
            raise ValueError(
                f"storage {storage.key} has {info.file_size:,} bytes, not those of {storage.size:,} numbers"
            )
        return archive.read(info)  # checks the CRC

    return views, read


def _read_legacy(file: BinaryIO) -> tuple[dict[str, _View], Callable[[_Storage], bytes]]:
    """The format before 1.6: five pickles one after the other, then each storage as its length and its bytes."""
    file.seek(0)
    if file.read(1) != b"\x80":
        raise ValueError("not a file of torch.save")
    file.seek(0)
    if _Unpickler(file).load() != _LEGACY_MAGIC or _Unpickler(file).load() != _LEGACY_PROTOCOL:
        raise ValueError("a pickle, but not one of torch.save")
    if not _Unpickler(file).load().get("little_endian", True):
        raise ValueError("its numbers are big-endian; save it again on another machine")
    views = _state_dict(_Unpickler(file).load())
    wanted = {view.storage.key: view.storage for view in views.values()}
    found: dict[str, bytes] = {}
    for key in _Unpickler(file).load():
        storage = wanted.get(str(key))
        if storage is None:
            raise ValueError(f"storage {key} belongs to no tensor")
        size = int.from_bytes(file.read(8), "little")
        if size != storage.size:
            raise ValueError(f"storage {key} has {size:,} numbers, its tensors say {storage.size:,}")
        found[storage.key] = file.read(size * storage.dtype.itemsize)
        if len(found[storage.key]) != size * storage.dtype.itemsize:
            raise ValueError(f"it ends within storage {key}; the file is cut off")
    return views, lambda storage: found[storage.key]


def _state_dict(loaded: Any) -> dict[str, _View]:
    """What was pickled, as names and tensors; trainers often keep it one level down."""
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not loaded:
        raise ValueError("it holds no dict of tensors")
    for name, value in loaded.items():
        if not isinstance(name, str) or not isinstance(value, _View):
            raise ValueError(f"its entry {str(name)[:80]!r} is not a tensor; save the model's state_dict() alone")
    return dict(loaded)


def _array(name: str, view: _View, read: Callable[[_Storage], bytes]) -> np.ndarray:
    """The elements that a tensor shows of its storage, after checking that they lie in it."""
    if len(view.shape) != len(view.strides) or min((view.offset, *view.shape, *view.strides)) < 0:
        raise ValueError(f"tensor {name[:80]!r} has shape {view.shape} and strides {view.strides}, which cannot be")
    last = view.offset + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    if math.prod(view.shape) and last >= view.storage.size:
        raise ValueError(f"tensor {name[:80]!r} reaches beyond its storage of {view.storage.size:,} numbers")
    if math.prod(view.shape) > view.storage.size:
        raise ValueError(f"tensor {name[:80]!r} has more elements than its storage")
    flat = np.frombuffer(read(view.storage), view.storage.dtype)
    strides = [stride * flat.itemsize for stride in view.strides]
    return np.lib.stride_tricks.as_strided(flat[view.offset :], view.shape, strides, writeable=False).copy()
