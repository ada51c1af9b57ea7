"""Fixtures for these tests."""

from __future__ import annotations

import pytest
from small_tasks import small_start

from bertjax.finetune.run import Start


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Start:
    """A random network to start from; modules may define another one."""
    return small_start(tmp_path_factory.mktemp("start"))
