"""Hugging Face's layout as a format."""

from __future__ import annotations

from collections.abc import Collection
from pathlib import Path

from bertjax.convert.compare import Difference, compare_with_transformers
from bertjax.convert.foreign import module_label
from bertjax.convert.format import Format, Vectors
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.hub import fetch
from bertjax.convert.huggingface.importer import read_huggingface
from bertjax.convert.huggingface.names import class_with, modules_without
from bertjax.convert.model_card import left_out_lines
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.remote import AnyPath, is_remote


def _format(head: str = "") -> Format:
    """The format for a model with one head of pretraining, or with all that it has."""

    def compare(model: TrainedModel, folder: Path, vectors: Vectors, drawn: Collection[str] = ()) -> Difference | None:
        config = model.config.model
        absent = map(module_label, modules_without(config, class_with(config, head)))
        return compare_with_transformers(model, folder, drawn={*drawn, *absent})

    def describe(model: TrainedModel, target: AnyPath) -> list[str]:
        where = f"a copy of {target}" if is_remote(target) else str(target)
        loader = class_with(model.config.model, head).name
        generator = [f"next: bertjax export {model.directory} --generator"] if model.generator else []
        return [
            *left_out_lines(model.config.model),
            *generator,
            f"next: transformers.{loader}.from_pretrained({where!r})",
        ]

    return Format(
        reference="transformers",
        compare=compare,
        export=lambda model, directory, vectors, prove=None: export_huggingface(model, directory, head, prove),
        read=read_huggingface,
        fetch=fetch,
        vocabulary=lambda source, folder: {"vocab": source},
        describe=describe,
        with_head=_format,
    )


FORMAT = _format()
