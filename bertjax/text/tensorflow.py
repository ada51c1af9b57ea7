"""TensorFlow, imported late: it schedules and reads files here, and computes nothing."""

from __future__ import annotations

import os
from types import ModuleType

from bertjax.text.lean_import import without


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
