"""Importing a library without the heavy ones that it looks for and does not need here."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager


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
