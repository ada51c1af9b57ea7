"""Importing a library without its heavy optional dependencies."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


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


def import_tensorflow(required: bool = False) -> ModuleType | None:
    """TensorFlow, without log messages and accelerators; None if it is neither installed nor required."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # oneDNN logs a message, and no TensorFlow arithmetic runs
    try:
        with without("keras"):
            import tensorflow as tf
    except ModuleNotFoundError as error:
        if required or error.name != "tensorflow":
            raise
        return None
    for kind in ("GPU", "TPU"):
        if tf.config.get_visible_devices(kind):
            tf.config.set_visible_devices([], kind)
    return tf
