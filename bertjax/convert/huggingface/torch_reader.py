"""Read tensors from a file that torch.save wrote, without torch and without running code from the file.

A `.bin` or `.pt` file is a pickle of a dict of tensors, with the tensors' bytes beside it. A pickle can name any
function and call it, so `_Unpickler` accepts only the instructions and names that a dict of tensors needs.
"""

from __future__ import annotations

import io
import math
import pickle  # noqa: TID251  (with an allow-list)
import pickletools
import struct
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import ml_dtypes
import numpy as np

_LARGEST_PICKLE = 1 << 20  # bytes; BERT-Large's is 60 kB
_MOST_DIMS = 16
_MOST_ARGUMENTS = 8  # of a call or a storage reference; torch.save writes at most 7
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
_INSTRUCTIONS = (
    *("PROTO", "FRAME", "STOP", "MARK", "NONE", "NEWTRUE", "NEWFALSE"),
    *("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "BINFLOAT"),
    *("UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINSTRING", "SHORT_BINSTRING"),
    *("EMPTY_DICT", "EMPTY_LIST", "EMPTY_TUPLE", "TUPLE", "TUPLE1", "TUPLE2", "TUPLE3", "APPEND", "APPENDS"),
    *("PUT", "BINPUT", "LONG_BINPUT", "MEMOIZE", "GET", "BINGET", "LONG_BINGET"),
    *("GLOBAL", "STACK_GLOBAL", "BINPERSID"),
)
_CODES = {opcode.name: ord(opcode.code) for opcode in pickletools.opcodes}


class _Storage(NamedTuple):
    """A flat array that tensors are views of."""

    dtype: np.dtype
    key: str
    size: int


class _View(NamedTuple):
    """A tensor as the pickle describes it."""

    storage: _Storage
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


class _Dispatch(dict[int, Callable[[Any], None]]):
    def __missing__(self, code: int) -> None:
        raise ValueError(f"its pickle has the instruction {chr(code)!r}, which a dict of tensors does not need")


class _Unpickler(pickle._Unpickler):
    """Unpickles a dict of `_View`s. Raises ValueError for any instruction or name that such a dict does not need.

    The base is the implementation in Python: the one in C allocates what a memo index claims, and its instructions
    cannot be replaced.
    """

    stack: list[Any]  # of the base, whose stub lacks these
    append: Callable[[Any], None]
    pop_mark: Callable[[], list[Any]]

    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, encoding="latin-1")
        self.storages: dict[str, _Storage] = {}

    def find_class(self, module: str, name: str) -> Any:
        if module in ("torch", "torch.storage") and name in _DTYPES:
            return name
        if (module, name) not in _FUNCTIONS:
            raise ValueError(
                f"its pickle names {module[:80]}.{name[:80]}, which a dict of tensors does not need; it could run code"
            )
        return _FUNCTIONS[module, name]

    def persistent_load(self, pid: Any) -> _Storage:
        """A storage from ("storage", type, key, device, size), after which the old format has None."""
        if len(_expect(pid, tuple)) > _MOST_ARGUMENTS:
            raise ValueError("its pickle refers to something outside itself that is not a storage")
        kind, dtype, key, _, size, *view = pid
        if _expect(kind, str) != "storage" or _expect(dtype, str) not in _DTYPES:
            raise ValueError("its pickle refers to something outside itself that is not a storage")
        if any(part is not None for part in view):
            raise ValueError("it has storages that are views of others; save it with a newer torch")
        storage = _Storage(_DTYPES[dtype], _expect(key, str), _sizes((size,))[0])
        if self.storages.setdefault(storage.key, storage) != storage:
            raise ValueError(f"storage {storage.key[:80]} has two sizes or types")
        return storage

    def _set_items(self) -> None:
        """Set items of a dict. Keys must be strings: the hash of nested tuples can take forever."""
        values = self.pop_mark()
        target = _expect(self.stack[-1], dict)
        for key, value in zip(values[::2], values[1::2], strict=True):
            target[_expect(key, str)] = value

    def _set_item(self) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        _expect(self.stack[-1], dict)[_expect(key, str)] = value

    def _call(self) -> None:
        """Call one of `_FUNCTIONS`, with few arguments: copying many of them again and again can take forever."""
        arguments, function = _expect(self.stack.pop(), tuple), self.stack.pop()
        if function not in _FUNCTIONS.values() or len(arguments) > _MOST_ARGUMENTS:
            raise ValueError("its pickle makes a call that a dict of tensors does not need")
        self.append(function(*arguments))

    def _ignore_state(self) -> None:
        """Drop the attributes of a state dict, which do not describe its tensors."""
        self.stack.pop()
        _expect(self.stack[-1], dict)

    dispatch = _Dispatch(
        {_CODES[name]: pickle._Unpickler.dispatch[_CODES[name]] for name in _INSTRUCTIONS}
        | {
            _CODES["SETITEM"]: _set_item,
            _CODES["SETITEMS"]: _set_items,
            _CODES["BUILD"]: _ignore_state,
            _CODES["REDUCE"]: _call,
        }
    )


def _view(storage: Any, offset: Any, shape: Any, strides: Any, *_: Any) -> _View:
    view = _View(_expect(storage, _Storage), _sizes((offset,))[0], _sizes(shape), _sizes(strides))
    if len(view.shape) != len(view.strides):
        raise ValueError("a tensor has different numbers of strides and dims")
    return view


def _empty_dict(*arguments: Any) -> dict:
    """An OrderedDict, which `torch.save` makes empty; arguments could be nested tuples that take forever to hash."""
    if arguments:
        raise ValueError("its pickle makes a dict of arguments, which a dict of tensors does not need")
    return {}


# Function that the pickle names -> function called in its place.
_FUNCTIONS: dict[tuple[str, str], Callable[..., Any]] = {
    ("collections", "OrderedDict"): _empty_dict,
    ("torch._utils", "_rebuild_tensor_v2"): _view,
    ("torch._utils", "_rebuild_parameter"): lambda view, *_: _expect(view, _View),
}


def _expect(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise ValueError(f"its pickle has a {type(value).__name__} in place of a {kind.__name__}")
    return value


def _sizes(values: Any) -> tuple[int, ...]:
    if len(_expect(values, tuple)) > _MOST_DIMS or any(type(n) is not int or not 0 <= n < 2**48 for n in values):
        raise ValueError("a tensor has a size that is out of range")
    return values


def read_torch_tensors(path: str | Path) -> dict[str, np.ndarray]:
    """Name -> array of a state dict saved by torch, in its present zip format or the one before version 1.6.

    Arrays are read-only views of their storage, which is read once. Raises ValueError, naming the file, if it is
    neither, holds anything but named tensors, contains anything that could run code, or is inconsistent.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            views, read = (_read_zip if zipfile.is_zipfile(file) else _read_legacy)(file)
            size = sum(math.prod(view.shape) * view.storage.dtype.itemsize for view in views.values())
            if size > _SHARED * path.stat().st_size:
                raise ValueError("its tensors have many times the bytes of the file")
            storages = {view.storage for view in views.values()}
            arrays = {storage: np.frombuffer(read(storage), storage.dtype) for storage in storages}
            return {name: _array(name, view, arrays[view.storage]) for name, view in views.items()}
    except (
        *(ArithmeticError, AttributeError, EOFError, LookupError, MemoryError, OSError, RuntimeError, TypeError),
        *(ValueError, pickle.UnpicklingError, struct.error, zipfile.BadZipFile),
    ) as error:
        raise ValueError(f"weights {path}: not a readable file of torch.save: {error}") from None


def _array(name: str, view: _View, flat: np.ndarray) -> np.ndarray:
    """The elements of a tensor, after checking that they lie within the bytes read."""
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
        raise ValueError("a zip archive that torch.save did not write: it has no data.pkl")
    (name,) = pickles
    if archive.getinfo(name).file_size > _LARGEST_PICKLE:
        raise ValueError(f"its data.pkl has {archive.getinfo(name).file_size:,} bytes; a BERT's is far smaller")
    folder = name.removesuffix("data.pkl")
    order = folder + "byteorder"
    if order in archive.namelist() and archive.read(order) != b"little":
        raise ValueError("its numbers are big-endian; save it again on another machine")

    def read(storage: _Storage) -> bytes:
        info = archive.getinfo(f"{folder}data/{storage.key}")
        if info.file_size != storage.size * storage.dtype.itemsize:
            raise ValueError(
                f"storage {storage.key[:80]} has {info.file_size:,} bytes, which does not match its tensors"
            )
        return archive.read(info)  # checks the CRC

    return _state_dict(_Unpickler(io.BytesIO(archive.read(name))).load()), read


def _read_legacy(file: BinaryIO) -> tuple[dict[str, _View], Callable[[_Storage], bytes]]:
    """The format before 1.6: five pickles one after the other, then each storage as its length and its bytes."""
    file.seek(0)
    head = io.BytesIO(file.read(_LARGEST_PICKLE))
    if head.getvalue()[:1] != b"\x80":
        raise ValueError("neither the zip format nor the one before it")
    magic, protocol, machine = (_Unpickler(head).load() for _ in range(3))
    if type(magic) is not int or type(protocol) is not int or (magic, protocol) != (_LEGACY_MAGIC, _LEGACY_PROTOCOL):
        raise ValueError("neither the zip format nor the one before it")
    if _expect(machine, dict).get("little_endian") is not True:
        raise ValueError("its numbers are big-endian; save it again on another machine")
    unpickler = _Unpickler(head)
    views = _state_dict(unpickler.load())
    keys = _expect(_Unpickler(head).load(), list)
    file.seek(head.tell())
    contents: dict[str, bytes] = {}
    for key in keys:
        storage = unpickler.storages[_expect(key, str)]
        if int.from_bytes(file.read(8), "little") != storage.size:
            raise ValueError("its storages do not match its tensors")
        contents[key] = file.read(storage.size * storage.dtype.itemsize)
    return views, lambda storage: contents[storage.key]


def _state_dict(loaded: Any) -> dict[str, _View]:
    """The tensors by name; trainers often keep them one level down."""
    if type(loaded) is dict and type(loaded.get("state_dict")) is dict:
        loaded = loaded["state_dict"]
    if not _expect(loaded, dict):
        raise ValueError("it holds no tensors")
    for name, value in loaded.items():
        if type(value) is not _View:
            raise ValueError(f"its entry {name[:80]!r} is not a tensor; save the model's state_dict() alone")
    return loaded
