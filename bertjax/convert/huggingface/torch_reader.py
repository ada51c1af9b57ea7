"""Tensors out of a file that torch.save wrote, without torch and without unpickling.

A `.bin` or `.pt` file is a pickle of a dict of tensors, with the tensors' bytes next to it. A pickle is a program that
can name any function and call it. Here its instructions are read one by one, and the few that a dict of tensors is made
of are carried out on plain values; any other, and any name but those of tensors, is refused. Nothing is ever called.
"""

from __future__ import annotations

import io
import math
import pickletools
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

_LARGEST_PICKLE = 16 << 20  # bytes; BERT-Large's is 60 kB
_MOST_INSTRUCTIONS = 100_000
_MOST_DIMS = 16
_SHARED = 4  # tensors may share storages, as tied weights do, up to this many times the file
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
_DICT = ("collections", "OrderedDict")
_TENSOR, _PARAMETER = ("torch._utils", "_rebuild_tensor_v2"), ("torch._utils", "_rebuild_parameter")
_NAMES = {_DICT, _TENSOR, _PARAMETER} | {(module, name) for module in ("torch", "torch.storage") for name in _DTYPES}
_MARK = object()


class _Global(NamedTuple):
    """A name that the pickle mentions; one of `_NAMES`."""

    module: str
    name: str


class _Storage(NamedTuple):
    """A flat run of elements that tensors are views of."""

    kind: str
    key: str
    size: int

    @property
    def dtype(self) -> np.dtype:
        """Of its elements."""
        return _DTYPES[self.kind]

    @property
    def nbytes(self) -> int:
        """How many bytes it says it has."""
        return self.size * self.dtype.itemsize


class _View(NamedTuple):
    """A tensor as the pickle describes it."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def read_torch_tensors(path: str | Path) -> dict[str, np.ndarray]:
    """Name -> array of a state dict saved by torch, in its present zip format or the one before version 1.6.

    Raises ValueError, naming the file, if it is neither, holds anything but named tensors, contains anything that could
    run code, or is inconsistent.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            views, read = (_read_zip if zipfile.is_zipfile(file) else _read_legacy)(file)
            return _arrays(views, read, path.stat().st_size)
    except (
        EOFError,
        IndexError,
        KeyError,
        MemoryError,
        NotImplementedError,
        OSError,
        OverflowError,
        RuntimeError,
        TypeError,
        ValueError,
        struct.error,
        zipfile.BadZipFile,
    ) as error:
        raise ValueError(f"weights {path}: not a file of torch.save that can be read: {error}") from None


def _arrays(views: dict[str, _View], read: Callable[[_Storage], bytes], file_size: int) -> dict[str, np.ndarray]:
    """The tensors, each a read-only view of its storage's bytes, which are read once."""
    if sum(math.prod(view.shape) * view.storage.dtype.itemsize for view in views.values()) > _SHARED * file_size:
        raise ValueError("its tensors have many times the bytes of the file")
    storages: dict[_Storage, np.ndarray] = {}
    arrays = {}
    for name, view in views.items():
        if view.storage not in storages:
            storages[view.storage] = np.frombuffer(read(view.storage), view.storage.dtype)
        arrays[name] = _array(name, view, storages[view.storage])
    return arrays


def _array(name: str, view: _View, flat: np.ndarray) -> np.ndarray:
    """The elements that a tensor shows of its storage, after checking that they lie in what was really read."""
    last = view.offset + sum((size - 1) * stride for size, stride in zip(view.shape, view.strides, strict=True))
    elements = math.prod(view.shape)
    if flat.size != view.storage.size or elements > flat.size or (elements and last >= flat.size):
        raise ValueError(f"tensor {name[:80]!r} reaches beyond its storage of {flat.size:,} numbers")
    if not elements:
        return np.zeros(view.shape, flat.dtype)
    strides = [stride * flat.itemsize for stride in view.strides]
    return np.lib.stride_tricks.as_strided(flat[view.offset :], view.shape, strides, writeable=False)


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
    views = _state_dict(_values(io.BytesIO(archive.read(name)), {}))

    def read(storage: _Storage) -> bytes:
        info = archive.getinfo(f"{folder}data/{storage.key}")
        if info.file_size != storage.nbytes:
            raise ValueError(f"storage {storage.key[:80]} has {info.file_size:,} bytes, its tensors say otherwise")
        return archive.read(info)  # checks the CRC

    return views, read


def _read_legacy(file: BinaryIO) -> tuple[dict[str, _View], Callable[[_Storage], bytes]]:
    """The format before 1.6: five pickles one after the other, then each storage as its length and its bytes."""
    file.seek(0)
    head = io.BytesIO(file.read(_LARGEST_PICKLE))
    storages: dict[str, _Storage] = {}
    if head.getvalue()[:1] != b"\x80" or _values(head, {}) != _LEGACY_MAGIC or _values(head, {}) != _LEGACY_PROTOCOL:
        raise ValueError("neither the zip format nor the one before it")
    machine = _values(head, {})
    if not isinstance(machine, dict) or machine.get("little_endian") is not True:
        raise ValueError("its numbers are big-endian; save it again on another machine")
    views = _state_dict(_values(head, storages))
    keys = _values(head, {})
    if not isinstance(keys, list):
        raise ValueError("it does not list its storages")
    file.seek(head.tell())
    found: dict[str, bytes] = {}
    for key in keys:
        storage = storages[key] if type(key) is str and key in storages else None
        if storage is None or int.from_bytes(file.read(8), "little") != storage.size:
            raise ValueError("its storages are not those of its tensors")
        found[key] = file.read(storage.nbytes)
        if len(found[key]) != storage.nbytes:
            raise ValueError(f"it ends within storage {key[:80]}; the file is cut off")
    return views, lambda storage: found[storage.key]


def _state_dict(loaded: Any) -> dict[str, _View]:
    """What was pickled, as names and tensors; trainers often keep it one level down."""
    if isinstance(loaded, dict) and isinstance(loaded.get("state_dict"), dict):
        loaded = loaded["state_dict"]
    if not isinstance(loaded, dict) or not loaded:
        raise ValueError("it holds no dict of tensors")
    for name, value in loaded.items():
        if not isinstance(value, _View):
            raise ValueError(f"its entry {name[:80]!r} is not a tensor; save the model's state_dict() alone")
    return loaded


def _values(file: io.BytesIO, storages: dict[str, _Storage]) -> Any:
    """Carry out the instructions of one pickle, which `file` is left behind; storages are noted by their keys.

    Raises ValueError for an instruction, a name or a value that no dict of tensors needs.
    """
    stack: list[Any] = []
    memo: dict[int, Any] = {}

    def above_mark() -> list[Any]:
        above = next((n for n, value in enumerate(reversed(stack)) if value is _MARK), None)
        if above is None:
            raise ValueError("its pickle takes from its stack what is not there")
        mark = len(stack) - 1 - above
        values = stack[mark + 1 :]
        del stack[mark:]
        return values

    for number, (instruction, argument, _) in enumerate(pickletools.genops(file)):
        name = instruction.name
        if number > _MOST_INSTRUCTIONS:
            raise ValueError("its pickle has far more instructions than a BERT's")
        if name == "STOP":
            return stack.pop()
        if name in ("PROTO", "FRAME"):
            continue
        if name in _CONSTANTS:
            stack.append(_CONSTANTS[name])
        elif name in _LITERALS:
            stack.append(argument)
        elif name in _EMPTY:
            stack.append(_EMPTY[name]())
        elif name == "GLOBAL":
            stack.append(_known(*argument.split(" ", 1)))
        elif name == "STACK_GLOBAL":
            called = stack.pop()
            stack.append(_known(stack.pop(), called))
        elif name in ("BINPUT", "LONG_BINPUT", "PUT"):
            memo[argument] = stack[-1]
        elif name == "MEMOIZE":
            memo[len(memo)] = stack[-1]
        elif name in ("BINGET", "LONG_BINGET", "GET"):
            stack.append(memo[argument])
        elif name == "MARK":
            stack.append(_MARK)
        elif name == "TUPLE":
            values = above_mark()
            stack.append(tuple(values))
        elif name in ("TUPLE1", "TUPLE2", "TUPLE3"):
            size = int(name[-1])
            values = stack[-size:]
            del stack[-size:]
            stack.append(tuple(values))
        elif name in ("APPEND", "APPENDS"):
            values = above_mark() if name == "APPENDS" else [stack.pop()]
            _expect(stack[-1], list).extend(values)
        elif name in ("SETITEM", "SETITEMS"):
            values = above_mark() if name == "SETITEMS" else [stack.pop() for _ in range(2)][::-1]
            _set_items(_expect(stack[-1], dict), values)
        elif name == "BINPERSID":
            storage = _storage(stack.pop())
            if storages.setdefault(storage.key, storage) != storage:
                raise ValueError(f"storage {storage.key[:80]} has two sizes or types")
            stack.append(storage)
        elif name == "REDUCE":
            arguments = _expect(stack.pop(), tuple)
            stack.append(_rebuild(stack.pop(), arguments))
        elif name == "BUILD":  # a state dict's _metadata, which says nothing of its tensors
            stack.pop()
            _expect(stack[-1], dict)
        else:
            raise ValueError(f"its pickle has the instruction {name}, which no dict of tensors needs")
    raise ValueError("its pickle does not end")


_CONSTANTS = {"NONE": None, "NEWTRUE": True, "NEWFALSE": False}
_EMPTY: dict[str, Callable[[], Any]] = {"EMPTY_DICT": dict, "EMPTY_LIST": list, "EMPTY_TUPLE": tuple}
_LITERALS = {
    *("BININT", "BININT1", "BININT2", "INT", "LONG", "LONG1", "LONG4", "BINFLOAT"),
    *("BINUNICODE", "SHORT_BINUNICODE", "UNICODE", "BINSTRING", "SHORT_BINSTRING"),
}


def _expect(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError("its pickle puts things together as no dict of tensors does")
    return value


def _known(module: Any, name: Any) -> _Global:
    if type(module) is not str or type(name) is not str or (module, name) not in _NAMES:
        raise ValueError(
            f"its pickle names {str(module)[:80]}.{str(name)[:80]}, which no file of weights needs; it could run code"
            if type(module) is type(name) is str
            else "its pickle names a thing by something that is no name"
        )
    return _Global(module, name)


def _set_items(into: dict, values: list[Any]) -> None:
    for key, value in zip(values[::2], values[1::2], strict=True):
        into[_expect(key, str)] = value


def _storage(pid: Any) -> _Storage:
    """A storage from ("storage", type, key, device, size), after which the old format has None."""
    kind, dtype, key, _, size, *view = _expect(pid, tuple)
    if type(kind) is not str or kind != "storage" or type(dtype) is not _Global or dtype.name not in _DTYPES:
        raise ValueError("its pickle refers to something outside itself that is not a storage")
    if any(part is not None for part in view):
        raise ValueError("it has storages that are views of others; save it with a newer torch")
    return _Storage(dtype.name, _expect(key, str), _size(size))


def _rebuild(function: Any, arguments: tuple) -> Any:
    """What calling one of the known names would make: a dict, or a tensor."""
    if type(function) is not _Global:
        raise ValueError("its pickle calls something that is no function")
    if function == _DICT and not arguments:
        return {}
    if function == _TENSOR and len(arguments) >= 4:
        storage, offset, shape, strides = arguments[:4]
        view = _View(_expect(storage, _Storage), _size(offset), _sizes(shape), _sizes(strides))
        if len(view.shape) != len(view.strides):
            raise ValueError("a tensor has another number of strides than of dims")
        return view
    if function == _PARAMETER and arguments:
        return _expect(arguments[0], _View)
    raise ValueError(f"its pickle calls {function.module}.{function.name} as no file of weights does")


def _sizes(values: Any) -> tuple[int, ...]:
    if len(_expect(values, tuple)) > _MOST_DIMS:
        raise ValueError(f"a tensor has more than {_MOST_DIMS} dims")
    return tuple(_size(value) for value in values)


def _size(value: Any) -> int:
    if type(value) is not int or not 0 <= value < 2**48:
        raise ValueError("a size in it is no size")
    return value
