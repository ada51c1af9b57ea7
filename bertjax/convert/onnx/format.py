"""ONNX as a format."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from bertjax.convert.compare import Difference
from bertjax.convert.compare_vectors import compare_with_onnxruntime
from bertjax.convert.format import Format, Vectors
from bertjax.convert.onnx.exporter import export_onnx, gives_logits
from bertjax.training.run_directory import TrainedModel


def _compare(model: TrainedModel, folder: Path, vectors: Vectors, drawn: Collection[str] = ()) -> Difference | None:
    return compare_with_onnxruntime(model, folder, vectors.pooling, vectors.normalize)


def _gives(model: TrainedModel, vectors: Vectors) -> str:
    return "logits" if gives_logits(model, vectors.pooling) else f"pooling {vectors.pooling}"


FORMAT = Format(
    reference="onnxruntime",
    compare=_compare,
    export=lambda model, directory, vectors: export_onnx(model, directory, vectors.pooling, vectors.normalize),
    pooling="none",
    gives=_gives,
)
