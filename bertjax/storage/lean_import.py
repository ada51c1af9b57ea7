"""Importing a library without its heavy optional dependencies, and naming one that is missing before the work."""

from __future__ import annotations

import importlib.util
import os
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, overload

PCI_DEVICES = Path("/sys/bus/pci/devices")
_GOOGLE = "0x1ae0"  # as a vendor of PCI devices, of which bertjax knows TPUs only
_ONE_AT_A_TIME = threading.Lock()  # `without` changes what all threads see


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """Make imports of these modules fail inside, as if they were not installed, unless they are imported already.

    For libraries that try `import torch` and work without it: that saves seconds of start-up.
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
    """Raise ModuleNotFoundError if a module is missing, before the work begins and without importing it.

    `what` is the option or value that needs it, `install` what pip is to be given, `called` the library's name.
    """
    if module in sys.modules:
        is_there = sys.modules[module] is not None
    else:
        is_there = importlib.util.find_spec(module) is not None
    if not is_there:
        raise ModuleNotFoundError(f"{what}: {called or module} is not installed; pip install {install}")


def quiet_libtpu() -> None:
    """Keep libtpu, where it is installed and no TPU is, from printing what it did not find; before jax is imported.

    jax tries every accelerator that has a library. A TPU is on the PCI bus; where there is one nothing is hidden.
    """
    vendors = (path.read_text(errors="replace").strip() for path in PCI_DEVICES.glob("*/vendor"))
    if _GOOGLE not in vendors:
        os.environ.setdefault("TPU_MIN_LOG_LEVEL", "3")


@contextmanager
def tensorflow_ahead() -> Iterator[None]:
    """While inside, TensorFlow is imported by a thread, which takes seconds in which this one may have a compiler work.

    What goes wrong with it is for the import that needs it to say.
    """

    def run() -> None:
        with suppress(Exception):
            import_tensorflow()

    # TensorFlow imports requests, which adds this filter; if meanwhile jax leaves `catch_warnings` here, it is lost.
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
    """TensorFlow, without log messages and accelerators; None if it is neither installed nor required."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # oneDNN logs a message, and no TensorFlow arithmetic runs
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
