"""sentence-transformers as a format."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from bertjax.convert.compare import Difference, compare_with_sentence_transformers
from bertjax.convert.folder import Prove
from bertjax.convert.format import Format, Vectors
from bertjax.convert.sentence_transformers.exporter import export_sentence_transformers
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.remote import AnyPath


def _export(model: TrainedModel, directory: str | AnyPath, vectors: Vectors, prove: Prove | None = None) -> AnyPath:
    return export_sentence_transformers(model, directory, vectors.pooling, vectors.normalize, prove)


def _compare(model: TrainedModel, folder: Path, vectors: Vectors, drawn: Collection[str] = ()) -> Difference | None:
    return compare_with_sentence_transformers(model, folder, vectors.pooling, vectors.normalize)


FORMAT = Format(
    reference="transformers with the pooling of the export",
    compare=_compare,
    export=_export,
    pooling="mean",
    gives=lambda model, vectors: f"pooling {vectors.pooling}",
)
