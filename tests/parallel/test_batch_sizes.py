"""Batch sizes: the default number of tokens at once, and powers of two."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

from bertjax.config import MeshConfig
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import power_of_two_below, tokens_at_once


def test_tokens_at_once_is_smaller_on_cpu() -> None:
    assert tokens_at_once(make_mesh(MeshConfig())) == 2048
    for platform in ("gpu", "tpu"):
        devices = np.array([[[SimpleNamespace(platform=platform)]]])
        assert tokens_at_once(SimpleNamespace(devices=devices)) == 8192  # type: ignore[arg-type]


@pytest.mark.parametrize(("number", "power"), [(1, 1), (2, 2), (3, 2), (31, 16), (32, 32), (33, 32)])
def test_power_of_two_below(number: int, power: int) -> None:
    assert power_of_two_below(number) == power
