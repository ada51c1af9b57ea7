"""Hugging Face's layout as a format, and the choice of files to download from its Hub."""

from __future__ import annotations

import re
from collections.abc import Collection
from pathlib import Path

from bertjax.convert.compare import Difference, compare_with_transformers
from bertjax.convert.foreign import module_label
from bertjax.convert.formats import Format, Vectors
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.importer import read_huggingface
from bertjax.convert.huggingface.names import class_with, modules_without
from bertjax.convert.huggingface.tokenizer_files import TOKENIZER_FILES
from bertjax.convert.huggingface.weights_files import WEIGHTS_FILES, is_index, shard_files
from bertjax.convert.model_card import left_out_lines
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.hub import download
from bertjax.storage.remote import AnyPath, is_remote

CONFIG_FILE = "config.json"
# Files that define how a sentence-transformers repository makes vectors of texts.
_VECTOR_FILES = re.compile(
    r"modules\.json|config_sentence_transformers\.json|sentence_[\w-]+_config\.json|"
    r"\w+_(Pooling|Dense|Normalize)/(config\.json|model\.safetensors|pytorch_model\.bin)"
)


def fetch(name: str) -> tuple[Path, str]:
    """Download a repository; returns (folder, name with the commit)."""
    return download(
        name,
        choose=_choose,
        follow=lambda file: shard_files(file) if is_index(file.name) else (),
        is_complete=lambda folder: any((folder / file).is_file() for file in WEIGHTS_FILES),
    )


def _choose(present: Collection[str]) -> list[str]:
    """Choose which of a repository's files to download."""
    if CONFIG_FILE not in present:
        return []
    weights = [name for name in WEIGHTS_FILES if name in present][:1]
    vectors = sorted(name for name in present if _VECTOR_FILES.fullmatch(name))
    return [CONFIG_FILE, *weights, *(name for name in TOKENIZER_FILES if name in present), *vectors]


def _format(head: str = "") -> Format:
    """The format for a model with one head of pretraining, or with all that it has."""

    def compare(
        model: TrainedModel, folder: Path, vectors: Vectors, untrained: Collection[str] = ()
    ) -> Difference | None:
        config = model.config.model
        absent = map(module_label, modules_without(config, class_with(config, head)))
        return compare_with_transformers(model, folder, untrained={*untrained, *absent})

    def describe(model: TrainedModel, target: AnyPath) -> list[str]:
        source = f"a copy of {target}" if is_remote(target) else str(target)
        loader = class_with(model.config.model, head).name
        generator = [f"next: bertjax export {model.directory} --generator"] if model.generator else []
        return [
            *left_out_lines(model.config.model),
            *generator,
            f"next: transformers.{loader}.from_pretrained({source!r})",
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
