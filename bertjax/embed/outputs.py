"""Files of vectors: .npy, .jsonl or .parquet, written as a stream and published atomically."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import BinaryIO

import numpy as np

from bertjax.embed.encoder import Embedding
from bertjax.storage.files import replacing
from bertjax.storage.lean_import import require_package
from bertjax.storage.remote import is_remote

OFFSETS = ".offsets.npy"  # suffix of the file with the first row of each text, for matrices in .npy

_FLOATS, _OFFSETS = "<f4", "<i8"
_ROW_GROUP_BYTES = 16 << 20

Add = Callable[[Embedding], None]


def require_output(name: str) -> Path:
    """Check the path to write vectors to. Raises ValueError or ModuleNotFoundError if it cannot be written."""
    path = output_path(name, _WRITERS, "vectors")
    if path.suffix == ".parquet":
        require_package("pyarrow", "'bertjax[parquet]'", f"--output {path}")
    return path


def output_path(name: str, suffixes: Collection[str], things: str) -> Path:
    """Check the path to write to. Raises ValueError for another suffix, a URL, or a missing folder."""
    if is_remote(name):
        raise ValueError(f"--output {name}: {things} are written to a local file; name one, and upload it afterwards")
    path = Path(name)
    if path.suffix not in suffixes:
        raise ValueError(f"--output {path}: unsupported format {path.suffix!r}; use {', '.join(suffixes)}")
    if not path.parent.is_dir():
        raise ValueError(f"--output {path}: there is no directory {path.parent}; make it, or write elsewhere")
    return path


def open_output(path: Path, width: int, matrices: bool, tokens: list[str]) -> AbstractContextManager[Add]:
    """Open a file; the context is a function that writes the next embedding. An existing file is replaced at the end.

    .npy: float32 [texts, width]; for matrices [all tokens, width] and a second file `<name>.offsets.npy`, int64
    [texts + 1]: text i has the rows from offset i up to offset i + 1. .jsonl: a line per text, `{"vector": [...]}` or
    `{"tokens": [...], "matrix": [[...], ...]}`, with enough digits for float32. .parquet: columns with the same names.
    `tokens` are the vocabulary's.
    """
    return _WRITERS[path.suffix](path, width, matrices, tokens)


@contextlib.contextmanager
def _npy(path: Path, width: int, matrices: bool, tokens: list[str]) -> Iterator[Add]:
    offsets_path = path.with_name(path.stem + OFFSETS)
    with contextlib.ExitStack() as stack:
        rows = stack.enter_context(_GrowingArray.at(path, _FLOATS, (width,)))
        if not matrices:
            yield lambda embedding: rows.append(embedding.vectors[None])
            if path.exists():  # maybe with matrices, whose offsets do not fit the new rows
                path.unlink()
                offsets_path.unlink(missing_ok=True)
            return
        # Entered last, so that it is published first and rows never exist without their offsets.
        offsets = stack.enter_context(_GrowingArray.at(offsets_path, _OFFSETS, ()))
        offsets.append(np.zeros(1, np.int64))

        def add(embedding: Embedding) -> None:
            rows.append(embedding.vectors)
            offsets.append(np.array([rows.length], np.int64))

        yield add
        path.unlink(missing_ok=True)


class _GrowingArray:
    """An .npy file that grows; its header is rewritten at the end."""

    def __init__(self, file: BinaryIO, dtype: str, inner: tuple[int, ...]) -> None:
        self._file, self._dtype, self._inner, self.length = file, dtype, inner, 0
        self._write_header()
        self._begin = file.tell()

    @classmethod
    @contextlib.contextmanager
    def at(cls, path: Path, dtype: str, inner: tuple[int, ...]) -> Iterator[_GrowingArray]:
        """Open an array; its file replaces `path` at the end."""
        with replacing(path) as file:
            array = cls(file, dtype, inner)
            yield array
            file.seek(0)
            array._write_header()
            assert file.tell() == array._begin, "NumPy pads the header so that the first dim can grow"

    def append(self, part: np.ndarray) -> None:
        """Append along the first dim."""
        self._file.write(np.ascontiguousarray(part, self._dtype).data)
        self.length += len(part)

    def _write_header(self) -> None:
        header = {"descr": self._dtype, "fortran_order": False, "shape": (self.length, *self._inner)}
        np.lib.format.write_array_header_1_0(self._file, header)


@contextlib.contextmanager
def _jsonl(path: Path, width: int, matrices: bool, tokens: list[str]) -> Iterator[Add]:
    # Nine digits are enough for every float32.
    pattern = "[" + ", ".join(["%.9g"] * width) + "]"
    with replacing(path) as file:

        def add(embedding: Embedding) -> None:
            if matrices:
                names = json.dumps([tokens[i] for i in embedding.ids], ensure_ascii=False)
                rows = ", ".join(pattern % tuple(row) for row in embedding.vectors.tolist())
                line = f'{{"tokens": {names}, "matrix": [{rows}]}}\n'
            else:
                line = f'{{"vector": {pattern % tuple(embedding.vectors.tolist())}}}\n'
            file.write(line.encode())

        yield add


@contextlib.contextmanager
def _parquet(path: Path, width: int, matrices: bool, tokens: list[str]) -> Iterator[Add]:
    import pyarrow as pa
    from pyarrow.parquet import ParquetWriter

    vector = pa.list_(pa.float32(), width)
    columns = {"tokens": pa.list_(pa.string()), "matrix": pa.list_(vector)} if matrices else {"vector": vector}
    schema = pa.schema(columns)
    buffer: list[Embedding] = []
    size = 0

    def write() -> None:
        nonlocal size
        flat = np.concatenate([embedding.vectors.ravel() for embedding in buffer])
        arrays = [pa.FixedSizeListArray.from_arrays(pa.array(flat), width)]
        if matrices:
            offsets = pa.array(np.cumsum([0, *[len(embedding.ids) for embedding in buffer]]), pa.int32())
            names = pa.array([[tokens[i] for i in embedding.ids] for embedding in buffer], columns["tokens"])
            arrays = [names, pa.ListArray.from_arrays(offsets, arrays[0])]
        writer.write_table(pa.Table.from_arrays(arrays, schema=schema))
        buffer.clear()
        size = 0

    def add(embedding: Embedding) -> None:
        nonlocal size
        buffer.append(embedding)
        size += embedding.vectors.nbytes
        if size >= _ROW_GROUP_BYTES:
            write()

    with replacing(path) as file, ParquetWriter(file, schema) as writer:
        yield add
        if buffer:
            write()


_WRITERS = {".npy": _npy, ".jsonl": _jsonl, ".parquet": _parquet}
