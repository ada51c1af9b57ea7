"""Models of the Hugging Face Hub: the files of a repository that the importer reads.

Pickled weights are downloaded only where there are no others.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from pathlib import Path

from bertjax.convert.huggingface.tokenizer_files import TOKENIZER_FILES
from bertjax.convert.huggingface.weights_files import WEIGHTS_FILES, is_index, shard_files
from bertjax.storage.hub import download

CONFIG_FILE = "config.json"
# How a repository of sentence-transformers makes vectors of texts.
_VECTOR_FILES = re.compile(
    r"modules\.json|config_sentence_transformers\.json|sentence_[\w-]+_config\.json|"
    r"\w+_(Pooling|Dense|Normalize)/(config\.json|model\.safetensors|pytorch_model\.bin)"
)


def fetch(name: str) -> tuple[Path, str]:
    """(the folder with the files of a repository, its name with the commit), as `download` gets them."""
    return download(name, _choose, _shards, lambda folder: any((folder / file).is_file() for file in WEIGHTS_FILES))


def _choose(present: Collection[str]) -> list[str]:
    """The files to download of those that a repository has."""
    if CONFIG_FILE not in present:
        return []
    weights = [name for name in WEIGHTS_FILES if name in present][:1]
    vectors = sorted(name for name in present if _VECTOR_FILES.fullmatch(name))
    return [CONFIG_FILE, *weights, *(name for name in TOKENIZER_FILES if name in present), *vectors]


def _shards(file: Path) -> Iterable[str]:
    return shard_files(file) if is_index(file.name) else ()
