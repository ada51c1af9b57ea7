"""Eight fake CPU devices for every test, so that each mesh is a real one. Must run before jax is imported."""

import os
from pathlib import Path

import pytest

os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8 " + os.environ.get("XLA_FLAGS", "")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")

REPOSITORY = Path(__file__).resolve().parent.parent
REAL_DATA = Path(os.environ.get("BERTJAX_TEST_DATA", REPOSITORY.parent / "shared" / "data"))


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real corpora and vocabularies, for tests that need it."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"needs the real data, not found at {REAL_DATA}; set BERTJAX_TEST_DATA")
    return REAL_DATA
