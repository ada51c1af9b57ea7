"""Callable packages: they stand in for the function of `bertjax` whose name they take when they are imported."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """A package that can be called like the function with its name in `bertjax`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        parent, _, name = self.__name__.rpartition(".")
        return getattr(importlib.import_module(parent), f"_{name}")(*arguments, **options)


def make_callable(package: str) -> None:
    """Make a package that is being imported callable, like the function that it replaces."""
    sys.modules[package].__class__ = _CallablePackage
