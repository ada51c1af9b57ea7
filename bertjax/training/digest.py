"""Digests of arrays that are the same on any mesh: they prove that a restored checkpoint is unchanged.

Each word of an array is mixed with its index in the whole array, and the results are summed modulo 2**32. Integer sums
do not depend on order, so every device sums its own shards and only the sums are sent. The digest detects accidents,
not forgery.
"""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

_LANES = 4
_WORDS = {1: jnp.uint8, 2: jnp.uint16, 4: jnp.uint32}  # by bytes per element


@dataclass(frozen=True)
class ArrayDigest:
    """The digest of an array: 128 bits as 32 hex digits, and the number of its NaN and infinite elements."""

    hex: str
    nonfinite: int


def digest_arrays(arrays: Mapping[str, jax.Array]) -> dict[str, ArrayDigest]:
    """Digest every array, with one jitted function and one transfer of 20 bytes per array.

    Arrays may have any shape and any sharding over the same devices; elements have 1, 2 or 4 bytes. Waits for the
    arrays, so they may be donated afterwards. A change of a single element always changes the digest; any other change
    is missed with probability 2**-128. Raises ValueError for elements of another size.
    """
    if not arrays:
        return {}
    values = list(arrays.values())
    ahead = _COMPILED.get(_compilation_key(values))
    digest = ahead.result() if ahead else _digest_on(_replicated(arrays))
    rows = np.asarray(digest(values))
    return {
        name: ArrayDigest(hex=row[:_LANES].astype(">u4").tobytes().hex(), nonfinite=int(row[_LANES]))
        for name, row in zip(arrays, rows, strict=True)
    }


def compile_ahead(arrays: Mapping[str, jax.ShapeDtypeStruct]) -> None:
    """Compile the digest of arrays like these in the background; `digest_arrays` waits for it.

    Without this, a run stopped by a signal would have to compile the digest before it saves its state.
    """
    values = list(arrays.values())
    if _compilation_key(values) not in _COMPILED:
        future: Future[Callable[[list[jax.Array]], jax.Array]] = Future()
        _COMPILED[_compilation_key(values)] = future
        jitted = _digest_on(_replicated(arrays))
        threading.Thread(target=_fill, args=(future, jitted, values), name="compile digest", daemon=True).start()


def _fill(future: Future, jitted: Any, values: list[jax.ShapeDtypeStruct]) -> None:
    try:
        future.set_result(jitted.lower(values).compile())
    except BaseException as error:  # raised in `digest_arrays`
        future.set_exception(error)


_Key = tuple[tuple[tuple[int, ...], Any, Any], ...]
_COMPILED: dict[_Key, Future] = {}


def _compilation_key(values: Sequence[Any]) -> _Key:
    """The key of a compiled digest: shapes, dtypes and shardings in order."""
    return tuple((value.shape, value.dtype, value.sharding) for value in values)


def _replicated(arrays: Mapping[str, Any]) -> NamedSharding | None:
    """The sharding of the sums: replicated over the mesh, so that every process can read them."""
    for array in arrays.values():
        if isinstance(array.sharding, NamedSharding):
            return NamedSharding(array.sharding.mesh, PartitionSpec())
    return None


@functools.cache
def _digest_on(sharding: NamedSharding | None) -> Callable[[list[jax.Array]], jax.Array]:
    return jax.jit(lambda arrays: jnp.stack([local_digest(x) for x in arrays]), out_shardings=sharding)


@jax.jit  # nested, so that arrays of one shape are traced once, which halves the time of the first digest
def local_digest(x: jax.Array) -> jax.Array:
    """uint32 [5]: four sums of the array's mixed words, and the count of its non-finite elements."""
    index = _mix(_indices(x.shape))
    # Mixing is a bijection, so different words have different values here. Without it two flipped signs could cancel,
    # since every multiplier below is odd and 2**31 times an even number is 0.
    word = _mix(_words(x) ^ index)
    finite = jnp.isfinite(x) if jnp.issubdtype(x.dtype, jnp.floating) else jnp.ones(x.shape, bool)
    lanes = [word * (_rotate(index, 8 * k) | 1) for k in range(_LANES)]
    # One reduction with five results reads the array once and keeps no copy of it; five sums were nine times slower.
    sums = jax.lax.reduce(
        (*lanes, (~finite).astype(jnp.uint32)),
        (np.uint32(0),) * (_LANES + 1),
        lambda a, b: tuple(x + y for x, y in zip(a, b, strict=True)),
        tuple(range(x.ndim)),
    )
    return jnp.stack(sums)


def _indices(shape: tuple[int, ...]) -> jax.Array:
    """Each element's row-major index in the whole array, modulo 2**32, as uint32 of this shape."""
    index, stride = jnp.zeros(shape, jnp.uint32), 1
    for dim in reversed(range(len(shape))):
        index += jax.lax.broadcasted_iota(jnp.uint32, shape, dim) * np.uint32(stride % 2**32)
        stride *= shape[dim]
    return index


def _words(x: jax.Array) -> jax.Array:
    """The bits of every element as uint32."""
    if x.dtype == bool:
        return x.astype(jnp.uint32)
    if x.dtype.itemsize not in _WORDS:
        raise ValueError(f"cannot digest an array of {x.dtype}; its elements must have 1, 2 or 4 bytes")
    return jax.lax.bitcast_convert_type(x, _WORDS[x.dtype.itemsize]).astype(jnp.uint32)


def _mix(x: jax.Array) -> jax.Array:
    """A bijection of uint32 in which every input bit moves every output bit (the finaliser of MurmurHash3)."""
    x = (x ^ (x >> 16)) * np.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * np.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def _rotate(x: jax.Array, bits: int) -> jax.Array:
    return (x << bits) | (x >> (32 - bits)) if bits else x
