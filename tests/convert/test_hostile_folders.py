"""Folders of other systems with wrong values in their JSON are read, or refused in one ValueError."""

from __future__ import annotations

import copy
import json
import shutil
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from exported_models import trained_model
from their_families import SPECIAL, members, small

from bertjax.convert.huggingface.config import from_config_json, read_pad_id, to_config_json
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.importer import read_huggingface
from bertjax.convert.huggingface.tokenizer_files import read_tokenizer
from bertjax.convert.huggingface.torch_reader import read_torch_tensors

WRONG = [None, True, -1, 0, 3, 0.5, 1e30, "x", [], [[1]], ["a"], {}, {"a": 1}, {"0": "a"}, "\ud800", 10**40]


def places(tree: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of all values in a document, the root first."""
    yield at
    if isinstance(tree, dict | list):
        for key, part in tree.items() if isinstance(tree, dict) else enumerate(tree):
            yield from places(part, (*at, key))


def changed(tree: Any, at: tuple[Any, ...], value: Any) -> Any:
    """Copy a document with another value at a path."""
    if not at:
        return value
    tree = copy.deepcopy(tree)
    inner = tree
    for key in at[:-1]:
        inner = inner[key]
    inner[at[-1]] = value
    return tree


@pytest.mark.parametrize("family", members())
def test_any_value_in_config_json_is_read_or_refused(family: str) -> None:
    values = to_config_json(small(family), SPECIAL) | {"architectures": ["BertForMaskedLM"], "is_decoder": False}
    refused = 0
    for at in list(places(values))[1:]:
        for value in WRONG:
            try:
                wrong = changed(values, at, value)
                from_config_json(wrong, "folder/config.json")
                read_pad_id(wrong, "folder/config.json")
            except ValueError as error:
                refused += 1
                assert str(error).startswith("folder/config.json: "), error
    assert refused > 50


def test_modernbert_errors_name_the_key() -> None:
    values = to_config_json(small("modernbert"), SPECIAL)
    for at, value, message in (
        (("rope_parameters",), 3, "rope_parameters is 3, not a mapping or null"),
        (("rope_parameters", "full_attention"), "x", "rope_parameters is a mapping of 2, not a mapping or null"),
        (("num_hidden_layers",), "22", "num_hidden_layers is '22', which is not a sensible number"),
        (("global_attn_every_n_layers",), "3", 'global_attn_every_n_layers is "3", not a whole number'),
        (("local_attention",), [128], "local_attention is a list of 1, not a whole number"),
        (("num_hidden_layers",), 1 << 20, "num_hidden_layers is 1,048,576; at most 1,024 are read"),
    ):
        with pytest.raises(ValueError) as caught:
            from_config_json(changed(values, at, value), "config.json")
        assert message in str(caught.value)


def test_mpnet_requires_transformers_padding_id() -> None:
    values = to_config_json(small("mpnet"), SPECIAL)
    with pytest.raises(ValueError, match=r"config\.json: pad_token_id is 0; transformers' MPNet always pads with 1"):
        from_config_json(values | {"pad_token_id": 0}, "config.json")
    with pytest.raises(ValueError, match=r"pad_token_id is 15; .* use a vocabulary whose padding token has that id"):
        to_config_json(small("mpnet"), SPECIAL | {"pad": 15})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("hostile")
    export_huggingface(trained_model(directory / "run"), directory / "exported")
    return directory / "exported"


@pytest.mark.parametrize("name", ["tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize(
    "alone", [True, pytest.param(False, marks=pytest.mark.long)], ids=["without vocab.txt", "with vocab.txt"]
)
def test_any_value_in_tokenizer_files_is_read_or_refused(folder: Path, tmp_path: Path, name: str, alone: bool) -> None:
    for file in ("tokenizer.json", "tokenizer_config.json", *([] if alone else ["vocab.txt"])):
        shutil.copy(folder / file, tmp_path)
    values = json.loads((folder / name).read_bytes())
    few = [at for at in places(values) if len(at) < 3]  # not each token of the vocabulary
    for at in few + [("model", "vocab", "the")] * (name == "tokenizer.json"):
        for value in WRONG:
            (tmp_path / name).write_text(json.dumps(changed(values, at, value)))
            try:
                read_tokenizer(tmp_path, "bert")
            except ValueError as error:
                assert str(tmp_path) in str(error), error


@pytest.mark.parametrize("name", ["config.json", "tokenizer.json", "tokenizer_config.json"])
@pytest.mark.parametrize("content", ["[" * 100_000, '{"a":' * 100_000, "[]", "9" * 5000, "\xff"])
def test_malformed_json_is_refused_by_file_name(folder: Path, tmp_path: Path, name: str, content: str) -> None:
    shutil.copytree(folder, tmp_path / "folder")
    (tmp_path / "folder" / name).write_text(content, encoding="latin-1")
    with pytest.raises(ValueError, match=rf"{name}: "):
        read_huggingface(tmp_path / "folder")


@pytest.mark.parametrize("count", [0, 1, 3])
def test_zip_with_malformed_pickle_is_refused(tmp_path: Path, count: int) -> None:
    """Instructions that pop missing or wrong values from the stack are refused."""
    path = tmp_path / "pytorch_model.bin"
    for instructions in (b"\x80\x02t.", b"\x80\x02u.", b"\x80\x02e.", b"\x80\x02(0t.", b"\x80\x02}q\x00u.", b"."):
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("archive/data.pkl", instructions[:2] + b"}" * count + instructions[2:])
        with pytest.raises(ValueError, match=r"weights .*pytorch_model\.bin: not a readable file of torch\.save"):
            read_torch_tensors(path)
