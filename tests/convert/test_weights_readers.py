"""Weights files are read as torch and safetensors read them; hostile files are refused without running code."""

from __future__ import annotations

import collections
import io
import json
import os
import pickle
import random
import tracemalloc
import zipfile
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
import safetensors.numpy

from bertjax.convert.huggingface.safetensors_reader import read_safetensors
from bertjax.convert.huggingface.torch_reader import read_torch_tensors


@pytest.fixture(scope="module")
def torch():
    return pytest.importorskip("torch")


def tensors(torch) -> dict:
    big = torch.arange(24, dtype=torch.float32).reshape(2, 3, 4)
    return {
        "plain": big,
        "transposed": big[1].T,
        "part": big[:, 1:, ::2],
        "scalar": torch.tensor(3.5),
        "empty": torch.zeros(0, 4),
        "half": torch.tensor([1.5, -2.0], dtype=torch.float16),
        "bfloat16": torch.tensor([1.5, -2.0, 3.0], dtype=torch.bfloat16),
        "ids": torch.arange(5),
        "parameter": torch.nn.Parameter(torch.ones(2, 2)),
    }


@pytest.mark.parametrize("zipped", [True, False])
@pytest.mark.parametrize("wrapped", [True, False])
def test_read_torch_tensors_reads_saved_files(torch, tmp_path: Path, zipped: bool, wrapped: bool) -> None:
    saved = collections.OrderedDict(tensors(torch))
    path = tmp_path / "pytorch_model.bin"
    torch.save({"state_dict": saved} if wrapped else saved, path, _use_new_zipfile_serialization=zipped)
    arrays = read_torch_tensors(path)
    assert arrays.keys() == saved.keys()
    for name, tensor in saved.items():
        tensor = tensor.detach()
        assert arrays[name].shape == tuple(tensor.shape)
        expected = tensor.to(torch.float32).numpy() if tensor.dtype.is_floating_point else tensor.numpy()
        np.testing.assert_array_equal(arrays[name].astype(expected.dtype), expected)
    assert arrays["bfloat16"].dtype == ml_dtypes.bfloat16


def test_read_torch_tensors_reads_a_published_file(torch, real_data: Path) -> None:
    path = real_data / "checkpoints" / "rxnmapper_albert" / "pytorch_model.bin"
    theirs = torch.load(path, weights_only=True, map_location="cpu")
    arrays = read_torch_tensors(path)
    assert arrays.keys() == theirs.keys()
    for name, tensor in theirs.items():
        np.testing.assert_array_equal(arrays[name], tensor.numpy())


class Attack:
    """A pickle that makes a file when it is loaded."""

    def __init__(self, target: Path) -> None:
        self.target = target

    def __reduce__(self) -> tuple:
        return os.mkdir, (str(self.target),)


def two_sizes_of_a_storage() -> bytes:
    """The old format with two tensors that claim 40 and 4 numbers of a storage of 4: a read beyond the storage."""

    def text(value: str) -> bytes:
        return b"X" + len(value).to_bytes(4, "little") + value.encode()

    def tensor(size: int) -> bytes:
        storage = b"(" + text("storage") + b"ctorch\nFloatStorage\n" + text("0") + text("cpu") + b"K" + bytes([size])
        shape = b"K" + bytes([size]) + b"\x85K\x01\x85"
        return b"ctorch._utils\n_rebuild_tensor_v2\n(" + storage + b"NtQK\x00" + shape + b"tR"

    magic = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2) + pickle.dumps(1001, protocol=2)
    machine = pickle.dumps({"little_endian": True}, protocol=2)
    state = b"\x80\x02}(" + text("a") + tensor(40) + text("b") + tensor(4) + b"u."
    return magic + machine + state + pickle.dumps(["0"], protocol=2) + (4).to_bytes(8, "little") + b"\0" * 16


def calling(arguments: bytes, memo: bytes = b"", more_calls: bytes = b"") -> bytes:
    """A pickle that calls OrderedDict with arguments; only a call without arguments is allowed."""
    return b"\x80\x02ccollections\nOrderedDict\n" + memo + arguments + b"R" + more_calls + b"."


def attacks(target: Path) -> dict[str, bytes]:
    evil = pickle.dumps({"weight": Attack(target)}, protocol=2)
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("model/data.pkl", evil)
        file.writestr("model/version", "3\n")
    compressed = io.BytesIO()
    with zipfile.ZipFile(compressed, "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("model/data.pkl", pickle.dumps({}))
    magic = pickle.dumps(0x1950A86A20F9469CFC6C, protocol=2) + pickle.dumps(1001, protocol=2)
    return {
        "a pickle": evil,
        "in a zip": archive.getvalue(),
        "in the old format": magic + pickle.dumps({"little_endian": True}, protocol=2) + evil,
        "compressed": compressed.getvalue(),
        "getattr": b"\x80\x02cbuiltins\ngetattr\n.",
        "numpy": b"\x80\x02cnumpy.core.multiarray\n_reconstruct\n.",
        "torch function": b"\x80\x02ctorch.hub\nload\n.",
        "not a pickle": b"hello",
        "nothing": b"",
        "memo bomb": b"\x80\x02]r\xff\xff\xff\xff.",
        "tuple bomb": b"\x80\x02)" + b"q\x00h\x00\x86" * 200 + b"Q.",
        "key bomb": b"\x80\x02})" + b"q\x00h\x00\x86" * 200 + b"K\x01s.",
        "call bomb": calling(b"K\x01\x85" + b"q\x00h\x00\x86" * 200 + b"K\x01\x86\x85\x85"),
        "deep call": calling(b"K\x01" + b"\x85" * 900_000 + b"K\x01\x86\x85\x85"),
        "wide calls": calling(b"(" + b"N" * 500_000 + b"tq\x01h\x01", b"q\x00", b"h\x00h\x01R" * 90_000),
        "wide references": b"\x80\x02(" + b"N" * 500_000 + b"tq\x01" + b"h\x01Q" * 90_000 + b".",
        "string bomb": b"\x80\x02X\xff\xff\xff\x7fabc.",
        "state of a storage": b"\x80\x02ctorch\nFloatStorage\n}b.",
        "two sizes of a storage": two_sizes_of_a_storage(),
        "deep": b"\x80\x02" + b"]" * 200_000 + b"a" * 199_999 + b".",
    }


@pytest.mark.parametrize("name", list(attacks(Path())))
def test_hostile_files_are_refused_and_run_nothing(tmp_path: Path, name: str) -> None:
    path = tmp_path / "pytorch_model.bin"
    path.write_bytes(attacks(tmp_path / "pwned")[name])
    with pytest.raises(ValueError, match=r"weights .*pytorch_model\.bin"):
        read_torch_tensors(path)
    assert [entry.name for entry in tmp_path.iterdir()] == ["pytorch_model.bin"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (b"K\nK\n\x86", b"K\x0bK\n\x86"),  # the shape (10, 10), two one-byte integers: (11, 10)
        (b"K\x00K\nK\n\x86", b"K\x01K\nK\n\x86"),  # the offset before it becomes 1: the view ends beyond the storage
    ],
)
def test_view_outside_its_storage_is_refused(torch, tmp_path: Path, old: bytes, new: bytes) -> None:
    path = tmp_path / "pytorch_model.bin"
    torch.save({"weight": torch.arange(100.0).as_strided((10, 10), (10, 1))}, path)
    content = path.read_bytes()
    assert read_torch_tensors(path)["weight"].shape == (10, 10)
    assert content.count(old) == 1
    archive = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(content)) as before, zipfile.ZipFile(archive, "w") as after:
        for info in before.infolist():
            after.writestr(info.filename, before.read(info).replace(old, new))
    path.write_bytes(archive.getvalue())
    with pytest.raises(ValueError, match="reaches beyond its storage"):
        read_torch_tensors(path)


def test_damaged_files_are_refused(torch, tmp_path: Path) -> None:
    rng = random.Random(0)
    for zipped in (True, False):
        path = tmp_path / f"{zipped}.bin"
        torch.save({"weight": torch.arange(1000.0), "bias": torch.ones(8)}, path, _use_new_zipfile_serialization=zipped)
        whole = path.read_bytes()
        expected = read_torch_tensors(path)
        for _ in range(60):
            cut = rng.randrange(len(whole))
            path.write_bytes(whole[:cut])
            with pytest.raises(ValueError, match="weights"):
                read_torch_tensors(path)
        for _ in range(200):
            index = rng.randrange(len(whole))
            path.write_bytes(whole[:index] + bytes([whole[index] ^ (1 << rng.randrange(8))]) + whole[index + 1 :])
            try:
                arrays = read_torch_tensors(path)
            except ValueError:
                continue
            # The old format has no checksum, so flipped numbers go unnoticed; any other damage is refused.
            if zipped:
                for name in arrays:
                    np.testing.assert_array_equal(arrays[name], expected[name])


def safetensors_file(header: dict | bytes, data: bytes = b"", size: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return (len(text) if size is None else size).to_bytes(8, "little") + text + data


def test_read_safetensors_reads_saved_files(tmp_path: Path) -> None:
    saved = {
        "a": np.arange(6, dtype=np.float32).reshape(2, 3),
        "b": np.array([1, 2], np.int64),
        "c": np.array([1.5], np.float16),
        "empty": np.zeros((0, 3), np.float32),
    }
    safetensors.numpy.save_file(saved, tmp_path / "model.safetensors", metadata={"format": "pt"})
    arrays = read_safetensors(tmp_path / "model.safetensors")
    assert arrays.keys() == saved.keys()
    for name, array in saved.items():
        np.testing.assert_array_equal(arrays[name], array)
    half = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    header = {"x": {"dtype": "BF16", "shape": [2], "data_offsets": [0, 4]}}
    (tmp_path / "bf16").write_bytes(safetensors_file(header, half.tobytes()))
    np.testing.assert_array_equal(read_safetensors(tmp_path / "bf16")["x"], half)


def entry(first: int, last: int, shape: list, dtype: str = "F32") -> dict:
    return {"dtype": dtype, "shape": shape, "data_offsets": [first, last]}


HOSTILE = {
    "many dims": (safetensors_file({"w": entry(0, 4, [1] * 100_000)}, b"\0" * 4), "out of range"),
    "giant sizes": (safetensors_file({"w": entry(0, 4, [10**300] * 15)}, b"\0" * 4), "out of range"),
    "huge header": (safetensors_file(b"{}", size=2**62), "its header claims"),
    "header beyond the file": (safetensors_file(b"{}", size=1000), "its header claims"),
    "short": (b"\x01\x02", "its header claims"),
    "not JSON": (safetensors_file(b"[[[["), "Expecting value"),
    "deep JSON": (safetensors_file(b"[" * 100_000), "recursion"),
    "not an object": (safetensors_file(b"[1]"), "not a JSON object"),
    "a name twice": (
        safetensors_file(
            b'{"w":{"dtype":"F32","shape":[1],"data_offsets":[0,4]},"w":{"dtype":"F32","shape":[1],"data_offsets":[4,8]}}',
            b"\0" * 8,
        ),
        "names 'w' twice",
    ),
    "another size": (safetensors_file({"w": entry(0, 8, [3])}, b"\0" * 8), "does not have 8 bytes"),
    "overlap": (safetensors_file({"v": entry(0, 8, [2]), "w": entry(4, 12, [2])}, b"\0" * 12), "begins at byte 4"),
    "hole": (safetensors_file({"v": entry(0, 4, [1]), "w": entry(8, 12, [1])}, b"\0" * 12), "begins at byte 8"),
    "beyond": (safetensors_file({"w": entry(0, 400, [100])}, b"\0" * 8), "the file has 8"),
    "left over": (safetensors_file({"w": entry(0, 4, [1])}, b"\0" * 8), "the file has 8"),
    "negative": (safetensors_file({"w": entry(-4, 0, [1])}, b""), "out of range"),
    "unknown type": (safetensors_file({"w": entry(0, 4, [1], "F4")}, b"\0" * 4), "known type"),
    "shape of words": (safetensors_file({"w": entry(0, 4, ["1"])}, b"\0" * 4), "out of range"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_safetensors_are_refused(tmp_path: Path, name: str) -> None:
    content, message = HOSTILE[name]
    path = tmp_path / "model.safetensors"
    path.write_bytes(content)
    with pytest.raises(ValueError, match=rf"weights .*model\.safetensors: not a sound safetensors file.*{message}"):
        read_safetensors(path)


def test_huge_header_is_refused_without_reading(tmp_path: Path) -> None:
    path = tmp_path / "model.safetensors"
    with path.open("wb") as file:
        file.write((1 << 33).to_bytes(8, "little"))
        file.truncate(1 << 34)
    tracemalloc.start()
    try:
        with pytest.raises(ValueError, match="its header claims"):
            read_safetensors(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
