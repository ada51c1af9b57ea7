"""Tasks: their data, their kinds, their training, their predictions and metrics."""

from __future__ import annotations

import sys
from types import ModuleType
from typing import Any


class _Room(ModuleType):
    """The package, which replaces the function `bertjax.finetune` once it is imported, and is callable like it."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        from bertjax import _finetune

        return _finetune(*arguments, **options)


sys.modules[__name__].__class__ = _Room
