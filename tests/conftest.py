"""Pytest options, tiers and shared fixtures; must be imported before jax, because tests have eight fake CPU devices."""

import gc
import itertools
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import object_storage
import pytest
from hypothesis import HealthCheck, settings

# Test helpers of each folder can be imported by tests of the others.
sys.path += sorted(str(room) for room in Path(__file__).parent.iterdir() if room.is_dir())

from fake_devices import on_devices, xla_flags

# Compiled programs are cached for the session, for all workers and the processes they start; workers start processes
# by forking a shared one.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _CACHE = tempfile.TemporaryDirectory(prefix="bertjax-tests-", ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{_CACHE.name}/programs"
    os.environ["BERTJAX_TESTS_ZYGOTE"] = f"{_CACHE.name}/zygote"
os.environ["XLA_FLAGS"] = xla_flags(devices=8)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["HF_HUB_OFFLINE"] = "1"  # names that are not folders are not looked up on the network

# Other programs may load the machine, so the time of an example says nothing about it.
settings.register_profile("any machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")

_BUCKETS = itertools.count()
REPOSITORY = Path(__file__).resolve().parent.parent
REAL_DATA = Path(os.environ.get("BERTJAX_TEST_DATA", REPOSITORY.parent / "shared" / "data"))

# Rooms whose tests train models or start processes; elsewhere such a test is marked `run`.
RUN_ROOMS = {"chaos", "finetune", "launch", "pipeline", "plan", "run", "runtime"}
SLOWEST_ROOMS = ("run", "training", "finetune", "chaos", "tests")


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the options that choose tiers."""
    parser.addoption("--unit", action="store_true", help="leave out the tests marked `run`")
    parser.addoption("--long", action="store_true", help="also run the tests marked `long`")


def pytest_configure(config: pytest.Config) -> None:
    """Declare the tiers: unit (no marker), run and long."""
    config.addinivalue_line("markers", "run: trains a tiny model, starts a process or runs exports in other libraries")
    config.addinivalue_line("markers", "long: takes too long for the suite; runs with --long only")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark the rooms of the run tier, deselect the tiers that are not requested, and put slow files first.

    Workers that share the files then end together.
    """
    for item in items:
        if item.path.parent.name in RUN_ROOMS:
            item.add_marker("run")
    tiers = [] if config.getoption("--long") else ["long"]
    if config.getoption("--unit"):
        tiers.append("run")
    deselected = [item for item in items if any(map(item.get_closest_marker, tiers))]
    config.hook.pytest_deselected(items=deselected)
    items[:] = [item for item in items if not any(map(item.get_closest_marker, tiers))]
    items.sort(key=lambda item: item.path.parent.name not in SLOWEST_ROOMS)


def pytest_collection_finish() -> None:
    """Exclude imported modules from garbage collection, which otherwise takes a tenth of the tests' time."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.fixture(scope="session", autouse=True)
def fast_speed_measurement() -> None:
    """Use a small matrix product to measure the device's speed for MFU, because tests start hundreds of runs."""
    if "jax" in sys.modules:  # tests that do not import jax start without it
        from zygote import measure_speed_in_a_moment

        measure_speed_in_a_moment()


@pytest.fixture(scope="module", autouse=True)
def clear_programs() -> Iterator[None]:
    """Free compiled programs after each test file; otherwise they use gigabytes in each worker."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture(scope="module")
def one_device() -> Iterator[None]:
    """A machine with one device, for runs whose mesh does not matter, because eight devices take twice the time."""
    with on_devices(1):
        yield


@pytest.fixture(scope="session")
def real_data() -> Path:
    """The folder of real corpora and vocabularies, for tests that need it."""
    if not REAL_DATA.is_dir():
        pytest.skip(f"needs the real data, not found at {REAL_DATA}; set BERTJAX_TEST_DATA")
    return REAL_DATA


@pytest.fixture
def in_memory(tmp_path: Path) -> Iterator[Path]:
    """An empty folder in memory, where syncing files is cheap, or on disk if there is none."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object_storage.Server]:
    """An S3 server; the environment directs all clients to it."""
    if object_storage.MISSING:
        pytest.skip(f"needs {', '.join(object_storage.MISSING)}: pip install s3fs 'moto[server]'")
    server = object_storage.Server(tmp_path_factory.mktemp("server") / "log")
    with pytest.MonkeyPatch.context() as environment:
        for name, value in server.environment().items():
            environment.setenv(name, value)
        yield server
    server.stop()


@pytest.fixture(params=["memory", "s3"])
def bucket(request: pytest.FixtureRequest) -> str:
    """The URL of an empty bucket, in fsspec's memory file system or on the S3 server."""
    return request.getfixturevalue("server").bucket() if request.param == "s3" else f"memory://bucket-{next(_BUCKETS)}"


@pytest.fixture
def s3(server: object_storage.Server) -> str:
    """The URL of an empty bucket on the S3 server."""
    return server.bucket()
