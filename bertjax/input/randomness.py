"""Stateless random numbers for the input: each draw is a hash of a key and a counter.

The key is derived from (seed, epoch, purpose), the counter is the number of a sentence, a token, ... So any row of any
epoch can be made independently, in any order, by any number of threads and hosts.
"""

from __future__ import annotations

import hashlib
from functools import lru_cache
from math import isqrt

import numpy as np

_GAMMA = 0x9E3779B97F4A7C15  # SplitMix64 (Steele, Lea, Flood 2014): the increment and the finaliser's multipliers
_MIX_1 = 0xBF58476D1CE4E5B9
_MIX_2 = 0x94D049BB133111EB
_HALF_ROUNDS = 8
_LOW_HALF = 2**32 - 1


@lru_cache(maxsize=4096)
def derive_key(*labels: int | str) -> int:
    """Derive the 64-bit key of a purpose, such as `derive_key(seed, "coin", epoch)`."""
    text = "/".join(map(str, labels))
    return int.from_bytes(hashlib.blake2b(text.encode(), digest_size=8).digest(), "little")


def hash64(keys: int | np.ndarray, counters: np.ndarray | np.integer) -> np.ndarray:
    """64 random bits for each counter under its key.

    `keys` is one key or uint64[...], `counters` are integers [...]; the result is uint64 of their broadcast shape.
    """
    x = np.asarray(counters).astype(np.uint64) * _GAMMA + keys
    shifted = x >> 30
    x ^= shifted
    x *= _MIX_1
    x ^= np.right_shift(x, 27, out=shifted)
    x *= _MIX_2
    x ^= np.right_shift(x, 31, out=shifted)
    return x


def fold_in(keys: np.ndarray, purpose: str) -> np.ndarray:
    """Derive new keys, uint64 like `keys`, for a purpose."""
    return hash64(keys, np.uint64(derive_key(purpose)))


def uniform(bits: np.ndarray) -> np.ndarray:
    """float64 in [0, 1) from uint64 hashes of the same shape."""
    return (bits >> 11) * 2.0**-53


def low_uniform(bits: np.ndarray) -> np.ndarray:
    """float64 in [0, 1) from the low half of uint64 hashes; `uniform` and `below` depend mostly on the high half."""
    return (bits & _LOW_HALF) * 2.0**-32


def below(bits: np.ndarray, bound: int | np.ndarray) -> np.ndarray:
    """int64 in [0, bound) from uint64 hashes; a value's probability is off by less than 2**-53."""
    return (uniform(bits) * bound).astype(np.int64)


def permute(values: np.ndarray, size: int, key: int) -> np.ndarray:
    """Map values by a keyed permutation of [0, size), without building the permutation.

    A Feistel network over a grid of about sqrt(size) x sqrt(size) cells. At most sqrt(size) of the cells are outside of
    [0, size); a value that lands on one of them is mapped again until it is inside (Black and Rogaway 2002). `values`
    and the result are int64[n] in [0, size).
    """
    columns = isqrt(size - 1) + 1 if size else 1
    rows = -(-size // columns)
    image = np.array(values, np.int64)
    outside = np.arange(len(image))
    while len(outside):
        image[outside] = walked = _permute_grid(image[outside], rows, columns, key)
        outside = outside[walked >= size]
    return image


def _permute_grid(cells: np.ndarray, rows: int, columns: int, key: int) -> np.ndarray:
    """Alternately shift each column by a hash of the column, and each row by a hash of the row."""
    row, column = np.divmod(cells.astype(np.uint64), columns)
    for number in range(0, _HALF_ROUNDS, 2):
        row += _shift(column, derive_key(key, number), rows)
        row %= rows
        column += _shift(row, derive_key(key, number + 1), columns)
        column %= columns
    return (row * columns + column).astype(np.int64)


def _shift(lines: np.ndarray, key: int, size: int) -> np.ndarray:
    """Hash lines to uint64 in [0, size); a weaker hash than `hash64` suffices over several rounds."""
    x = (lines + key) * _MIX_1
    x ^= x >> 32
    x *= _MIX_2
    x >>= 32
    x *= size
    x >>= 32
    return x
