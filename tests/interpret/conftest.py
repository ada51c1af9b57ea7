"""Fixtures for these tests."""

from __future__ import annotations

import pytest
from small_models import small_model

from bertjax.run.run_directory import TrainedModel


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    """A random model; modules may define another one."""
    return small_model(tmp_path_factory.mktemp("run"))
