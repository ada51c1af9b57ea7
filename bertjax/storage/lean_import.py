"""Importing a library without its heavy optional dependencies."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from types import ModuleType

_ONE_AT_A_TIME = threading.Lock()  # `without` changes what all threads see


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """Make imports of these modules fail inside, as if they were not installed, unless they are imported already.

    For libraries that try `import torch` and work without it: that saves seconds of start-up.
    """
    hidden = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # None: Python then raises ModuleNotFoundError
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


@contextmanager
def tensorflow_ahead() -> Iterator[None]:
    """While inside, TensorFlow is imported by a thread, which takes seconds in which this one may have a compiler work.

    What goes wrong with it is for the import that needs it to say.
    """

    def run() -> None:
        with suppress(Exception):
            import_tensorflow()

    thread = threading.Thread(target=run, name="import-tensorflow")
    thread.start()
    try:
        yield
    finally:
        thread.join()


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
