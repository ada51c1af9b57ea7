"""Read tensors from a safetensors file after checking its header."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

_LARGEST_HEADER = 16 << 20  # bytes; BERT-Large's is 40 kB
_MOST_DIMS = 16
_DTYPES = {
    "F64": np.dtype(np.float64),
    "F32": np.dtype(np.float32),
    "F16": np.dtype(np.float16),
    "BF16": np.dtype(ml_dtypes.bfloat16),
    "I64": np.dtype(np.int64),
    "I32": np.dtype(np.int32),
    "I16": np.dtype(np.int16),
    "I8": np.dtype(np.int8),
    "U8": np.dtype(np.uint8),
    "BOOL": np.dtype(np.bool_),
}


def read_safetensors(path: str | Path) -> dict[str, np.ndarray]:
    """Name -> array, mapped from the file.

    The library is not used: it keeps the last of two entries with one name and has no bfloat16 in NumPy. Raises
    ValueError, naming the file, for a header that is too large, is not JSON or names a tensor twice, and for tensors
    that overlap, leave the file, or have other sizes than their shapes.
    """
    path = Path(path)
    size = path.stat().st_size
    try:
        with path.open("rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            if size < 8 or header_size > min(size - 8, _LARGEST_HEADER):
                raise ValueError(f"its header claims {header_size:,} bytes in a file of {size:,}")
            header = json.loads(file.read(header_size).decode(), object_pairs_hook=_unique)
        if not isinstance(header, dict):
            raise ValueError("its header is not a JSON object")
        header.pop("__metadata__", None)
        start = 8 + header_size
        layout = {name: _entry_layout(name, entry) for name, entry in header.items()}
        _check_layout(layout, size - start)
        data = np.memmap(path, np.uint8, mode="r", offset=start) if size > start else np.zeros(0, np.uint8)
        return {
            name: data[first:last].view(dtype).reshape(shape) for name, (dtype, shape, first, last) in layout.items()
        }
    except (ValueError, RecursionError) as error:
        raise ValueError(f"weights {path}: not a sound safetensors file: {error}") from None


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries: dict[str, Any] = {}
    for key, value in pairs:
        if key in entries:
            raise ValueError(f"it names {key[:80]!r} twice")
        entries[key] = value
    return entries


def _entry_layout(name: str, entry: Any) -> tuple[np.dtype, tuple[int, ...], int, int]:
    """(dtype, shape, first byte, byte after the last) of an entry of the header."""
    try:
        dtype, shape, (first, last) = _DTYPES[entry["dtype"]], tuple(entry["shape"]), entry["data_offsets"]
    except (KeyError, TypeError, ValueError):
        raise ValueError(f"its entry {name[:80]!r} is not a tensor of a known type") from None
    numbers = (*shape, first, last)
    if len(shape) > _MOST_DIMS or not all(type(number) is int and 0 <= number < 2**48 for number in numbers):
        raise ValueError(f"its entry {name[:80]!r} has a size that is out of range")
    if math.prod(shape) * dtype.itemsize != last - first:
        raise ValueError(f"tensor {name[:80]!r} of shape {shape} does not have {last - first:,} bytes")
    return dtype, shape, first, last


def _check_layout(layout: dict[str, tuple[np.dtype, tuple[int, ...], int, int]], size: int) -> None:
    """Check that the tensors are contiguous and fill the file, without holes or overlaps."""
    end = 0
    for name, (_, _, first, last) in sorted(layout.items(), key=lambda item: item[1][2:]):
        if first != end:
            raise ValueError(f"tensor {name[:80]!r} begins at byte {first:,} of the data, not at {end:,}")
        end = last
    if end != size:
        raise ValueError(f"its tensors have {end:,} bytes, the file has {size:,} for them")
