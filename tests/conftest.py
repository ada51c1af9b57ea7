"""Eight fake CPU devices for every test, so that each mesh is a real one. Must run before jax is imported."""

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

# What a room has to try the package with, the others use as well.
sys.path += sorted(str(room) for room in Path(__file__).parent.iterdir() if room.is_dir())

from fake_devices import on_devices, xla_flags

# What one test has compiled the next one, another worker, or a process that it starts, takes from a cache that lasts
# for the session; and workers start processes by forking one that they share.
if "PYTEST_XDIST_WORKER" not in os.environ:
    _CACHE = tempfile.TemporaryDirectory(prefix="bertjax-tests-", ignore_cleanup_errors=True)
    os.environ["JAX_COMPILATION_CACHE_DIR"] = f"{_CACHE.name}/programs"
    os.environ["BERTJAX_TESTS_ZYGOTE"] = f"{_CACHE.name}/zygote"
os.environ["XLA_FLAGS"] = xla_flags(devices=8)
os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
os.environ["HF_HUB_OFFLINE"] = "1"  # a name that is no folder is not looked for on the network

# How long an example takes is no property of it on a machine that others load too.
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
    """Keep what tests import out of the garbage collector, which took a tenth of their time to look through it."""
    gc.freeze()
    gc.set_threshold(20_000, 10, 10)


@pytest.fixture(scope="session", autouse=True)
def speed_is_measured_in_a_moment() -> None:
    """The product by which a run knows its MFU is a small one: tests start hundreds of runs."""
    if "jax" in sys.modules:  # what has been collected without it starts without it
        from zygote import measure_speed_in_a_moment

        measure_speed_in_a_moment()


@pytest.fixture(scope="module", autouse=True)
def programs_end_with_their_file() -> Iterator[None]:
    """What a file of tests has compiled is of no use to the next one: kept, it takes gigabytes of each worker."""
    yield
    if "jax" in sys.modules:
        sys.modules["jax"].clear_caches()


@pytest.fixture(scope="module")
def one_device() -> Iterator[None]:
    """As on a machine with one device, for runs whose mesh does not matter: those on eight take twice the time."""
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
    """An empty folder where writing and syncing files costs next to nothing, if this machine has one."""
    memory = Path("/dev/shm")
    if not memory.is_dir():
        yield tmp_path
        return
    with tempfile.TemporaryDirectory(dir=memory, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[object_storage.Server]:
    """A server that speaks S3, which every client finds by the environment."""
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
    """The URL of an empty bucket, in fsspec's storage in memory and on the server."""
    return request.getfixturevalue("server").bucket() if request.param == "s3" else f"memory://bucket-{next(_BUCKETS)}"


@pytest.fixture
def s3(server: object_storage.Server) -> str:
    """The URL of an empty bucket on the server."""
    return server.bucket()
