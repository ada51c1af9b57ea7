"""The checkpoints of google-research/bert as a format."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from bertjax.convert.compare import Difference, compare_with_tensorflow
from bertjax.convert.format import Format, Vectors
from bertjax.convert.tf1.checkpoint import export_tensorflow, read_tensorflow, source_vocabulary
from bertjax.run.run_directory import TrainedModel


def _compare(model: TrainedModel, folder: Path, vectors: Vectors, drawn: Collection[str] = ()) -> Difference | None:
    return compare_with_tensorflow(model, folder)


FORMAT = Format(
    reference="google-research/bert",
    compare=_compare,
    export=lambda model, directory, vectors, prove=None: export_tensorflow(model, directory, prove),
    read=read_tensorflow,
    vocabulary=source_vocabulary,
    describe=lambda model, folder: ["read back: the same bits"],
)
