"""Fine-tuning: tasks, their data and kinds, training, predictions and metrics."""

from __future__ import annotations

from bertjax.storage.callable_package import make_callable

make_callable(__name__)
