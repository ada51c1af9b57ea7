"""Optional heavy libraries are not loaded by libraries that try to import them."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path

import pytest

from bertjax.storage.lean_import import without

pytestmark = pytest.mark.run


def test_module_is_hidden_only_inside() -> None:
    sys.modules.pop("this", None)
    with without("this"), pytest.raises(ModuleNotFoundError):
        importlib.import_module("this")
    before = importlib.import_module("bisect")
    with without("bisect"):
        assert importlib.import_module("bisect") is before
    assert "this" not in sys.modules


@pytest.mark.long  # imports TensorFlow once more
def test_import_by_a_thread_is_lean_and_silent(tmp_path: Path) -> None:
    """No torch, no keras, and no warning that a library hides."""
    program = """
import sys, threading, time, warnings
from pathlib import Path
from bertjax.storage.lean_import import import_tensorflow, tensorflow_ahead
with tensorflow_ahead():
    while "import-tensorflow" in [thread.name for thread in threading.enumerate()]:
        with warnings.catch_warnings():
            time.sleep(0.005)
print("requests" in sys.modules)
from bertjax.run.telemetry import TensorBoardWriter
writer = TensorBoardWriter(Path(sys.argv[1]), 0)
writer.write(1, {"a/b": 1.0})
writer.close()
import_tensorflow()
print([name for name in ("torch", "keras") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=True)
    assert (done.stdout.splitlines(), done.stderr) == (["True", "[]"], "")
