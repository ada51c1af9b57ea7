"""The weights of a folder: shards with an index, prefixes of wrappers, Git LFS pointers."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from exported_models import assert_same, trained_model

from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.importer import read_huggingface
from bertjax.convert.huggingface.weights_files import read_weights
from bertjax.run.run_directory import TrainedModel

POINTER = "version https://git-lfs.github.com/spec/v1\noid sha256:" + "0" * 64 + "\nsize 440473133\n"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return trained_model(tmp_path_factory.mktemp("run"))


@pytest.fixture(scope="module")
def exported(model: TrainedModel, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return export_huggingface(model, tmp_path_factory.mktemp("out") / "huggingface")


@pytest.fixture
def folder(exported: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(exported, tmp_path / "folder"))


def save_safetensors(tensors: dict[str, np.ndarray], path: Path) -> None:
    safetensors.numpy.save_file(tensors, path, metadata={"format": "pt"})


def save_torch(tensors: dict[str, np.ndarray], path: Path) -> None:
    torch = pytest.importorskip("torch")
    torch.save({name: torch.from_numpy(array) for name, array in tensors.items()}, path)


SAVED = {"model.safetensors": save_safetensors, "pytorch_model.bin": save_torch}


def split(folder: Path, file: str = "model.safetensors", change: Callable[[dict], None] = lambda index: None) -> None:
    """Replace the weights of a folder by three shards and their index, as save_pretrained(max_shard_size=) does."""
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    stem, _, suffix = file.rpartition(".")
    weight_map = {}
    for number in range(3):
        part = {name: array for position, (name, array) in enumerate(sorted(tensors.items())) if position % 3 == number}
        shard = f"{stem}-{number + 1:05}-of-00003.{suffix}"
        SAVED[file](part, folder / shard)
        weight_map |= dict.fromkeys(part, shard)
    index = {"metadata": {"total_size": 1}, "weight_map": weight_map}
    change(index)
    (folder / f"{file}.index.json").write_text(json.dumps(index))


@pytest.mark.parametrize("file", SAVED)
def test_read_weights_joins_shards(model: TrainedModel, folder: Path, file: str) -> None:
    split(folder, file)
    assert_same(read_huggingface(folder).params, model.params)


def test_read_weights_joins_shards_of_transformers(model: TrainedModel, folder: Path) -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    theirs = transformers.BertForPreTraining.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    theirs.save_pretrained(folder, max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    assert_same(read_huggingface(folder).params, model.params)


def test_read_weights_names_a_missing_shard(folder: Path) -> None:
    split(folder)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(ValueError, match=r"model-00002-of-00003\.safetensors: this shard is missing"):
        read_weights(folder)


def test_read_weights_names_a_missing_index(folder: Path) -> None:
    split(folder)
    (folder / "model.safetensors.index.json").unlink()
    with pytest.raises(ValueError, match=r"model\.safetensors\.index\.json is missing"):
        read_weights(folder)


@pytest.mark.parametrize("shard", ["../model.safetensors", "/etc/passwd", "a/../../b", "..\\b", "c:b", ""])
def test_read_weights_refuses_shards_outside_the_folder(folder: Path, shard: str) -> None:
    split(folder, change=lambda index: index["weight_map"].update({"bert.pooler.dense.bias": shard}))
    with pytest.raises(ValueError, match=r"weight_map names .*, which is not a file within the folder"):
        read_weights(folder)


@pytest.mark.parametrize("weight_map", [None, [], {}, {"a": 1}])
def test_read_weights_refuses_an_index_without_files(folder: Path, weight_map: object) -> None:
    split(folder, change=lambda index: index.update(weight_map=weight_map))
    with pytest.raises(ValueError, match=r"index\.json: its weight_map does not give each tensor a file"):
        read_weights(folder)


def test_read_weights_refuses_an_index_of_other_shards(folder: Path) -> None:
    moved = {"bert.embeddings.LayerNorm.bias": "model-00003-of-00003.safetensors"}
    split(folder, change=lambda index: index["weight_map"].update(moved))
    with pytest.raises(ValueError, match=r"00003\.safetensors: it lacks the tensor bert\.embeddings\.LayerNorm\.bias"):
        read_weights(folder)


def test_read_weights_refuses_a_tensor_in_two_shards(folder: Path) -> None:
    split(folder)
    first, second = (folder / f"model-0000{number}-of-00003.safetensors" for number in (1, 2))
    tensors = safetensors.numpy.load_file(second)
    tensors |= dict(list(safetensors.numpy.load_file(first).items())[:1])
    save_safetensors(tensors, second)
    with pytest.raises(ValueError, match=r"00002-of-00003\.safetensors: it has the tensor .* which another shard has"):
        read_weights(folder)


@pytest.mark.parametrize("file", ["model.safetensors", "config.json", "vocab.txt", "tokenizer.json"])
def test_read_huggingface_names_git_lfs_pointers(folder: Path, file: str) -> None:
    (folder / file).write_text(POINTER)
    with pytest.raises(ValueError, match=rf"{file} is a Git LFS pointer, not the file itself; run `git lfs pull`"):
        read_huggingface(folder)


def test_read_huggingface_names_git_lfs_pointers_of_shards(folder: Path) -> None:
    split(folder)
    (folder / "model-00001-of-00003.safetensors").write_text(POINTER)
    with pytest.raises(ValueError, match=r"model-00001-of-00003\.safetensors is a Git LFS pointer"):
        read_huggingface(folder)


@pytest.mark.parametrize("wrapper", ["module.", "model.", "module.model.", "_orig_mod."])
def test_read_huggingface_strips_prefixes_of_wrappers(model: TrainedModel, folder: Path, wrapper: str) -> None:
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    save_safetensors({wrapper + name: array for name, array in tensors.items()}, folder / "model.safetensors")
    assert_same(read_huggingface(folder).params, model.params)


def test_read_huggingface_strips_prefixes_of_bare_encoders(model: TrainedModel, folder: Path) -> None:
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    names = {name: name.replace("bert.", "module.", 1) for name in tensors if name.startswith("bert.")}
    save_safetensors({new: tensors[name] for name, new in names.items()}, folder / "model.safetensors")
    assert_same(read_huggingface(folder).params["encoder"], model.params["encoder"])


def test_read_huggingface_names_an_unknown_prefix(folder: Path) -> None:
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    save_safetensors({f"query_encoder.{name}": array for name, array in tensors.items()}, folder / "model.safetensors")
    with pytest.raises(ValueError, match=r"the encoder's tensors begin with 'query_encoder\.', .* remove it"):
        read_huggingface(folder)
