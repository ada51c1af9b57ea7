"""A stand-in for `bertjax` on the PATH, for tests of launchers."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent


def executable(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return path


@pytest.fixture
def with_stand_in(tmp_path: Path) -> dict[str, str]:
    """Environment variables that make `bertjax` the stand-in, run by this Python."""
    stand_in = Path(__file__).with_name("stand_in.py")
    executable(tmp_path / "bin" / "bertjax", f'#!/bin/sh\nexec {sys.executable} {stand_in} "$@"\n')
    return os.environ | {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}", "PYTHONPATH": str(REPOSITORY)}
