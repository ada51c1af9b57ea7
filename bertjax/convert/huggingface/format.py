"""Hugging Face's layout as a format."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from bertjax.convert.compare import Difference, compare_with_transformers
from bertjax.convert.format import Format, Vectors
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.hub import fetch
from bertjax.convert.huggingface.importer import read_huggingface
from bertjax.convert.huggingface.names import architecture
from bertjax.convert.model_card import left_out_lines
from bertjax.storage.remote import Place, is_remote
from bertjax.training.run_directory import TrainedModel


def _compare(model: TrainedModel, folder: Path, vectors: Vectors, drawn: Collection[str] = ()) -> Difference | None:
    return compare_with_transformers(model, folder, drawn=drawn)


def _describe(model: TrainedModel, place: Place) -> list[str]:
    where = f"a copy of {place}" if is_remote(place) else str(place)
    loader = architecture(model.config.model) if model.kind else "AutoModelForMaskedLM"
    return [*left_out_lines(model.config.model), f"next: transformers.{loader}.from_pretrained({where!r})"]


FORMAT = Format(
    reference="transformers",
    compare=_compare,
    export=lambda model, directory, vectors: export_huggingface(model, directory),
    read=read_huggingface,
    fetch=fetch,
    describe=_describe,
)
