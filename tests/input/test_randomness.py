"""Keyed hashing and the keyed permutation."""

from __future__ import annotations

from collections import Counter
from itertools import permutations

import numpy as np
import pytest
from scipy import stats

from bertjax.input.randomness import below, derive_key, fold_in, hash64, permute, uniform


def test_hash_is_splitmix64() -> None:
    """First outputs of the published implementation, seeded with 0."""
    expected = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert hash64(0, np.array([1, 2, 3])).tolist() == expected


def test_keys_never_change() -> None:
    """A changed key would change every batch of every run."""
    assert derive_key(0, "coin", 3) == 1375301720262845270
    assert derive_key(0, "coin", 3) != derive_key(0, "coin", 4) != derive_key(1, "coin", 3)


def test_hash_broadcasts_keys_over_counters() -> None:
    keys, counters = np.array([5, 2**63], np.uint64), np.array([0, 1, 2**40])
    together = hash64(keys[:, None], counters)
    assert together.dtype == np.uint64
    for row, key in zip(together, keys.tolist(), strict=True):
        assert row.tolist() == hash64(key, counters).tolist()


def test_hash_does_not_change_its_arguments() -> None:
    counters = np.arange(4, dtype=np.uint64)
    hash64(7, counters)
    assert counters.tolist() == [0, 1, 2, 3]


@pytest.mark.parametrize("bound", [2, 3, 10, 1000])
def test_below_is_uniform(bound: int) -> None:
    drawn = below(hash64(1, np.arange(200_000)), bound)
    assert drawn.min() >= 0 and drawn.max() < bound
    assert stats.chisquare(np.bincount(drawn, minlength=bound)).pvalue > 0.01


def test_uniform_stays_below_one() -> None:
    assert uniform(np.array([0, 2**64 - 1], np.uint64)).tolist() == [0.0, 1 - 2.0**-53]
    top = np.array([2**64 - 1], np.uint64)
    for bound in (1, 3, 2**31, 2**31 + 1, 10**12):
        assert below(top, bound).tolist() == [bound - 1]


def test_hashes_of_purposes_and_counters_are_independent() -> None:
    """Each bit of a hash agrees with the next counter's, and with another purpose's, in half of the cases."""
    keys = hash64(3, np.arange(100_000))
    other = fold_in(keys, "something else")
    for a, b in ((keys[1:], keys[:-1]), (keys, other)):
        agree = np.array([np.count_nonzero((a ^ b) >> bit & 1 == 0) for bit in range(64)])
        deviation = (agree - len(a) / 2) / np.sqrt(len(a) / 4)
        assert np.abs(deviation).max() < 4.5


@pytest.mark.parametrize("size", [*range(1, 40), 255, 256, 257, 999, 1000, 1023, 1024, 1025, 3571, 4999, 5000])
def test_permutation_is_bijective(size: int) -> None:
    for key in range(3):
        assert sorted(permute(np.arange(size), size, key).tolist()) == list(range(size))


def test_permutation_has_random_access() -> None:
    places = np.array([7, 0, 123_456, 9_999_999, 7])
    image = permute(places, 10_000_000, 5)
    assert [permute(places[i : i + 1], 10_000_000, 5)[0] for i in range(5)] == image.tolist()
    assert permute(np.array([], np.int64), 10, 5).tolist() == []


def test_small_permutations_are_equally_likely() -> None:
    drawn = Counter(tuple(permute(np.arange(4), 4, key).tolist()) for key in range(6000))
    assert stats.chisquare([drawn[p] for p in permutations(range(4))]).pvalue > 0.01


@pytest.mark.parametrize("size", [97, 1000])
def test_permutations_look_uniform(size: int) -> None:
    """Images, distances of neighbours, fixed points and ascents are distributed as for random permutations."""
    images = np.stack([permute(np.arange(size), size, key) for key in range(2000)])
    bins = np.arange(size) * 10 // size
    expected = np.bincount(bins) / size * len(images)
    for place in (0, 1, size // 2, size - 1):
        assert stats.chisquare(np.bincount(bins[images[:, place]]), expected).pvalue > 0.001
    step = (images[:, 1] - images[:, 0]) % size  # uniform over 1 .. size-1
    assert stats.kstest(step / size, "uniform").pvalue > 0.01
    fixed = np.count_nonzero(images == np.arange(size), axis=1)
    assert abs(fixed.mean() - 1) < 4 / np.sqrt(len(images))
    ascents = np.count_nonzero(np.diff(images, axis=1) > 0, axis=1)
    assert abs(ascents.mean() - (size - 1) / 2) < 4 * np.sqrt((size + 1) / 12 / len(images))
    assert 0.85 < ascents.var() / ((size + 1) / 12) < 1.15
