"""Importing a library without the heavy ones that it looks for and does not need here."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType


@contextmanager
def without(*modules: str) -> Iterator[None]:
    """While entered, these modules cannot be imported, unless they are already; as if they were not installed.

    For libraries that try `import torch` and go on where it fails: seconds of start-up that nothing here needs.
    """
    hidden = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # None: Python then raises ModuleNotFoundError
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]


def import_tensorflow(required: bool = False) -> ModuleType | None:
    """TensorFlow, kept quiet and away from accelerators; None where it is not installed and not required."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    os.environ.setdefault("TF_ENABLE_ONEDNN_OPTS", "0")  # no TensorFlow arithmetic is done, and it announces itself
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
