"""The weights of a folder in Hugging Face's layout: one file, or shards with an index, of safetensors or torch.save."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path, PurePosixPath

import numpy as np

from bertjax.convert.folder import read_object, require_content
from bertjax.convert.huggingface.safetensors_reader import read_safetensors
from bertjax.convert.huggingface.torch_reader import read_torch_tensors

_INDEX = ".index.json"
_READERS: dict[str, Callable[[Path], dict[str, np.ndarray]]] = {
    "model.safetensors": read_safetensors,
    "pytorch_model.bin": read_torch_tensors,
}
# The first that a folder has is read, as in transformers.
WEIGHTS_FILES = tuple(name for file in _READERS for name in (file, file + _INDEX))


def read_weights(folder: Path) -> dict[str, np.ndarray]:
    """Name -> array of every tensor of a folder.

    Raises ValueError naming the file that is missing, is damaged, or does not match the index.
    """
    for name, read in _READERS.items():
        if (folder / name).is_file():
            return _read_file(folder / name, read)
        if (folder / (name + _INDEX)).is_file():
            return _read_shards(folder / (name + _INDEX), read)
    shards = sorted(path.name for name in _READERS for path in folder.glob(name.replace(".", "-*-of-*.")))
    if shards:
        index = f"{shards[0].partition('-')[0]}{PurePosixPath(shards[0]).suffix}{_INDEX}"
        raise ValueError(f"hf:{folder}: {shards[0]} is one of several weight files, and {index} is missing; get it too")
    raise ValueError(f"hf:{folder}: no {' and no '.join(_READERS)} there")


def is_index(file: str) -> bool:
    """Whether a file of `WEIGHTS_FILES` is an index of shards."""
    return file.endswith(_INDEX)


def shard_files(index: Path) -> list[str]:
    """List the files that an index of weights names, relative to its folder.

    Raises ValueError for an index without a weight_map of names, and for a file outside the folder.
    """
    return sorted(set(_weight_map(index).values()))


def _weight_map(index: Path) -> dict[str, str]:
    """Name of a tensor -> the file that holds it."""
    shards = read_object(index).get("weight_map")
    if not isinstance(shards, dict) or not shards or not all(isinstance(file, str) for file in shards.values()):
        raise ValueError(f"{index}: its weight_map does not give each tensor a file")
    for file in shards.values():
        parts = PurePosixPath(file).parts
        if not parts or parts[0] == "/" or ".." in parts or "\\" in file or ":" in file or "\0" in file:
            raise ValueError(f"{index}: weight_map names {file[:80]!r}, which is not a file within the folder")
    return shards


def _read_shards(index: Path, read: Callable[[Path], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    shards = _weight_map(index)
    tensors: dict[str, np.ndarray] = {}
    for file in sorted(set(shards.values())):
        path = index.parent / file
        if not path.is_file():
            raise ValueError(f"weights {path}: this shard is missing, and {index.name} names it; get it too")
        content = _read_file(path, read)
        if missing := [name for name, shard in shards.items() if shard == file and name not in content]:
            raise ValueError(f"weights {path}: it lacks the tensor {min(missing)[:80]}, which {index.name} lists there")
        if duplicates := content.keys() & tensors.keys():
            raise ValueError(f"weights {path}: it has the tensor {min(duplicates)[:80]}, which another shard has too")
        tensors |= content
    return tensors


def _read_file(path: Path, read: Callable[[Path], dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    require_content(path)
    return read(path)
