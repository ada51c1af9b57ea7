"""Hugging Face's layout as a format."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from bertjax.convert.compare import Difference, compare_with_transformers
from bertjax.convert.format import Format, Vectors
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.importer import read_huggingface
from bertjax.convert.huggingface.names import architecture, class_of
from bertjax.convert.model_card import left_out_lines
from bertjax.storage.remote import Place, is_remote
from bertjax.training.run_directory import TrainedModel


def _compare(model: TrainedModel, folder: Path, vectors: Vectors, drawn: Collection[str] = ()) -> Difference | None:
    return compare_with_transformers(model, folder, drawn=drawn)


def _describe(model: TrainedModel, place: Place) -> list[str]:
    where = f"a copy of {place}" if is_remote(place) else str(place)
    fills_masks = "mlm_head" in class_of(model.config.model).outputs
    loader = "AutoModelForMaskedLM" if fills_masks else architecture(model.config.model)
    generator = [f"next: bertjax export {model.directory} --generator"] if model.generator else []
    return [*left_out_lines(model.config.model), *generator, f"next: transformers.{loader}.from_pretrained({where!r})"]


FORMAT = Format(
    reference="transformers",
    compare=_compare,
    export=lambda model, directory, vectors: export_huggingface(model, directory),
    read=read_huggingface,
    describe=_describe,
)
