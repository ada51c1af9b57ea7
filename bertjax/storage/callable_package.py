"""Packages that share their name with a function of `bertjax`, which they replace once they are imported."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any


class _CallablePackage(ModuleType):
    """A package that is callable like the function of its name in `bertjax`."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        above, _, name = self.__name__.rpartition(".")
        return getattr(importlib.import_module(above), f"_{name}")(*arguments, **options)


def make_callable(package: str) -> None:
    """Make a package that is being imported callable, like the function that it replaces."""
    sys.modules[package].__class__ = _CallablePackage
