"""ONNX as a format."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from bertjax.convert.compare import Difference
from bertjax.convert.compare_vectors import LIMITS, compare_with_onnxruntime
from bertjax.convert.folder import Prove
from bertjax.convert.format import Format, Vectors
from bertjax.convert.graph.export import gives
from bertjax.convert.onnx.exporter import Precision, export_onnx
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.remote import AnyPath


def _format(precision: Precision = "float32") -> Format:
    """The format with weights of this precision."""

    def compare(model: TrainedModel, folder: Path, vectors: Vectors, drawn: Collection[str] = ()) -> Difference | None:
        return compare_with_onnxruntime(model, folder, vectors.pooling, vectors.normalize, limit=LIMITS[precision])

    def export(model: TrainedModel, directory: str | AnyPath, vectors: Vectors, prove: Prove | None = None) -> AnyPath:
        return export_onnx(model, directory, vectors.pooling, vectors.normalize, precision, prove)

    return Format(
        reference="onnxruntime",
        compare=compare,
        export=export,
        pooling="none",
        gives=gives,
        precisions={name: lambda name=name: _format(name) for name in ("float32", "float16", "int8")},
    )


FORMAT = _format()
