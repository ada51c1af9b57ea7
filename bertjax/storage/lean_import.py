"""Import libraries without their heavy optional dependencies, and report missing ones before long work."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, Protocol, TypeVar, overload

from bertjax.config.suggestions import suggestion

PCI_DEVICES = Path("/sys/bus/pci/devices")
_GOOGLE = "0x1ae0"  # PCI vendor id of TPUs
WITHOUT_TPU = {  # environment variables that keep libtpu from asking Google's metadata server and from warnings
    "TPU_SKIP_MDS_QUERY": "1",
    "TPU_ACCELERATOR_TYPE": "v5litepod-1",
    "TPU_WORKER_HOSTNAMES": "localhost",
    "TPU_MIN_LOG_LEVEL": "3",
}
_ONE_AT_A_TIME = threading.Lock()  # `without` affects all threads


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """Hide modules that are not imported yet, as if they were not installed.

    For libraries that try `import torch` but work without it; hiding it saves seconds of start-up.
    """
    hidden = [name for name in modules if name not in sys.modules]
    loaded: dict[str, Any] = sys.modules
    loaded.update(dict.fromkeys(hidden))  # None: Python then raises ModuleNotFoundError
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def require_package(module: str, install: str, what: str, called: str = "") -> None:
    """Raise ModuleNotFoundError if a module is not installed, without importing it.

    `what` is the option or value that needs it, `install` the argument for pip, `called` the library's name.
    """
    if module in sys.modules:
        is_installed = sys.modules[module] is not None
    else:
        is_installed = importlib.util.find_spec(module) is not None
    if not is_installed:
        raise ModuleNotFoundError(f"{what}: {called or module} is not installed; pip install {install}")


class Member(Protocol):
    """A member of a registry that may need an optional package."""

    @property
    def name(self) -> str:
        """The name in the registry."""
        ...

    @property
    def needs(self) -> tuple[str, str] | None:
        """The optional module that the member imports, and the argument for pip; None if there is none."""
        ...


M = TypeVar("M", bound=Member)


def choose_members(members: Mapping[str, M], names: Sequence[str], key: str) -> list[M]:
    """Look up members by `names`, the value of the setting `key`, in order.

    Raises ValueError for an unknown name, with the nearest one, and for a missing package.
    """
    for name in names:
        if name not in members:
            raise ValueError(f"{key}={tuple(names)}: {name!r} is unknown; {suggestion(name, members)}")
    chosen = [members[name] for name in names]
    for one in chosen:
        if one.needs:
            try:
                require_package(*one.needs, f"{key}={one.name!r}")
            except ModuleNotFoundError as error:
                raise ValueError(str(error)) from None
    return chosen


def quiet_libtpu() -> None:
    """Silence libtpu on a machine without a TPU; call it before jax is imported.

    jax tries every accelerator whose library is installed. Does nothing if the PCI bus has a TPU, where jax also looks
    for one, or if the user has jax start a TPU that it does not see there.
    """
    vendors = (path.read_text(errors="replace").strip() for path in PCI_DEVICES.glob("*/vendor"))
    if _GOOGLE not in vendors and "JAX_FORCE_TPU_INIT" not in os.environ:
        for name, value in WITHOUT_TPU.items():
            os.environ.setdefault(name, value)


@contextmanager
def tensorflow_ahead() -> Iterator[None]:
    """Import TensorFlow, which takes seconds, in a thread while this one compiles.

    Ignores errors, because the import that needs TensorFlow raises them again.
    """

    def run() -> None:
        with suppress(Exception):
            import_tensorflow()

    # TensorFlow imports requests, which adds this filter. If jax leaves `catch_warnings` meanwhile, it would be lost.
    warnings.filterwarnings("ignore", message="SOCKS support in urllib3")
    thread = threading.Thread(target=run, name="import-tensorflow")
    thread.start()
    try:
        yield
    finally:
        thread.join()


@overload
def import_tensorflow(required: Literal[True]) -> Any: ...


@overload
def import_tensorflow(required: bool = False) -> ModuleType | None: ...


def import_tensorflow(required: bool = False) -> ModuleType | None:
    """Import TensorFlow without log messages and accelerators. Returns None if it is not installed and not required."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # oneDNN logs a message, and TensorFlow does no arithmetic here
    try:
        with _ONE_AT_A_TIME, without("keras"):
            import tensorflow as tf
    except ModuleNotFoundError as error:
        if required or error.name != "tensorflow":
            raise
        return None
    for kind in ("GPU", "TPU"):
        if tf.config.get_visible_devices(kind):
            tf.config.set_visible_devices([], kind)
    return tf
