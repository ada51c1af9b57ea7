"""Export folders appear complete and verified, and one process at a time writes them."""

from __future__ import annotations

import errno
import fcntl
import os
import resource
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from exported_models import trained_model
from tiers import long_unless

from bertjax.__main__ import main
from bertjax.convert import folder
from bertjax.convert.folder import written_whole
from bertjax.convert.formats import FORMATS
from bertjax.convert.sources import write_run
from bertjax.run.run_directory import TrainedModel
from bertjax.storage.remote import RemotePath

pytestmark = pytest.mark.run

# Script of a process that is killed while it writes a folder.
WRITING = """
import fcntl, pathlib, sys, time
target = pathlib.Path(sys.argv[1])
lock = target.with_name(f".{target.name}.lock").open("w")
fcntl.flock(lock, fcntl.LOCK_EX)
partial = target.with_name(f".{target.name}.partial")
partial.mkdir()
(partial / "half").write_text("of it")
print("writing", flush=True)
time.sleep(60)
"""

# Packages that compare an export, besides those that write it.
COMPARED_BY = {"huggingface": ("torch", "transformers"), "sentence-transformers": ("torch", "transformers")}
COMPARED_BY |= {"tf1": ("tensorflow",), "onnx": ("onnxruntime",)}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A run, and a run whose outputs overflow in any system and therefore never compare as equal."""
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 24}
    good, bad = (
        trained_model(tmp_path_factory.mktemp("runs") / "run", hidden_act="gelu_tanh", **sizes) for _ in range(2)
    )
    return Path(write_run(good)), Path(write_run(_overflowing(bad)))


def _overflowing(model: TrainedModel) -> TrainedModel:
    largest = 0.9 * np.finfo(np.float32).max

    def changed(path: tuple, x: jax.Array) -> jax.Array:
        return jax.numpy.full_like(x, largest) if "mlp_norm" in str(path) and "scale" in str(path) else x

    return replace(model, params=jax.tree_util.tree_map_with_path(changed, model.params))


def write(target: Path, text: str) -> None:
    with written_whole(target, "last") as partial:
        assert not any(partial.iterdir())
        (partial / "last").write_text(text)


def files(folder: Path) -> dict[str, str]:
    """Texts of all files, including hidden ones."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


def contents(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_second_writer_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    target = tmp_path / "below" / "export"
    with written_whole(target, "last") as partial:
        (partial / "first").write_text("one")
        with pytest.raises(ValueError, match=r"below/export: another process is writing it; wait for it, or name"):
            write(target, "two")
        (partial / "last").write_text("one")
    assert files(tmp_path) == {"below/export/first": "one", "below/export/last": "one"}
    write(target, "two")
    assert files(tmp_path) == {"below/export/last": "two"}


def test_leftovers_of_a_killed_process_are_cleared(tmp_path: Path) -> None:
    target = tmp_path / "export"
    with subprocess.Popen([sys.executable, "-c", WRITING, target], stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None and other.stdout.readline() == "writing\n"
        with pytest.raises(ValueError, match="another process is writing it"):
            write(target, "ours")
        assert files(tmp_path)[".export.partial/half"] == "of it" and not target.exists()
        other.kill()
    write(target, "ours")
    assert files(tmp_path) == {"export/last": "ours"} and [path.name for path in tmp_path.iterdir()] == ["export"]


def test_written_whole_changes_nothing_after_an_error(tmp_path: Path) -> None:
    write(tmp_path / "export", "before")
    with pytest.raises(OSError, match="full"), written_whole(tmp_path / "export", "last") as partial:
        (partial / "last").write_text("after")
        raise OSError("full")
    assert files(tmp_path) == {"export/last": "before"} and [path.name for path in tmp_path.iterdir()] == ["export"]


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize(
    "name", long_unless(lambda name: name in ("huggingface", "onnx", "tf1"), ((name,) for name in FORMATS))
)
def test_export_with_different_outputs_is_not_published(
    name: str, runs: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for package in (*(package for package, _ in FORMATS[name].needs), *COMPARED_BY.get(name, ())):
        pytest.importorskip(package, reason=f"needs {package}")
    good, bad = runs
    replaces = name != "tf1"  # tf1 refuses any existing folder
    command = ["--to", name, "--output", str(tmp_path / "out"), "--overwrite"]
    if replaces:
        assert main(["export", str(good), *command]) == 0
    before = contents(tmp_path)
    assert bool(before) == replaces
    assert main(["export", str(bad), *command]) == 1
    assert contents(tmp_path) == before and len(list(tmp_path.iterdir())) == replaces
    error = capsys.readouterr().err
    assert f"bertjax export: export to {tmp_path / 'out'}: " in error
    assert " computes different outputs: " in error and "nan" in error and "; nothing there was changed" in error


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_export_with_different_outputs_is_not_uploaded(runs: tuple[Path, Path]) -> None:
    good, bad = runs
    target = RemotePath("memory://unproven/out")
    command = ["--to", "stablehlo", "--output", str(target), "--overwrite"]
    assert main(["export", str(bad), *command]) == 1 and not target.exists()
    assert main(["export", str(good), *command]) == 0
    before = {name: (target / name).read_bytes() for name in target.sizes()}
    assert main(["export", str(bad), *command]) == 1
    assert {name: (target / name).read_bytes() for name in target.sizes()} == before


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux lets two folders change places in one step")
def test_target_exists_at_every_moment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "export", "before")
    contents_seen: list[str] = []

    def rename(self: Path, to: Path) -> Path:
        os.rename(self, to)
        contents_seen.append(files(tmp_path).get("export/last", "none"))
        return to

    monkeypatch.setattr(Path, "rename", rename)
    write(tmp_path / "export", "after")
    assert "none" not in contents_seen and files(tmp_path) == {"export/last": "after"}


def test_killed_process_loses_no_export_without_swap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path / "export", "before")
    monkeypatch.setattr(folder, "exchange", lambda one, other: False)
    write(tmp_path / "export", "after")
    assert files(tmp_path) == {"export/last": "after"}
    (tmp_path / "export").rename(tmp_path / ".export.earlier")  # and then it was killed
    with pytest.raises(OSError, match="full"), written_whole(tmp_path / "export", "last"):
        raise OSError("full")
    assert files(tmp_path) == {"export/last": "after"}


def test_full_disk_is_reported(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (2000, hard))
    try:
        with pytest.raises(OSError, match=r"model\.safetensors was not written: .*File too large"):
            folder.write_tensors(tmp_path / "model.safetensors", {"weights": np.zeros(10_000, np.float32)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_filesystem_without_locks_is_supported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(code: int) -> Callable[..., None]:
        def flock(*_: object) -> None:
            raise OSError(code, os.strerror(code))

        return flock

    monkeypatch.setattr(fcntl, "flock", fails(errno.EOPNOTSUPP))
    write(tmp_path / "export", "whole")
    assert files(tmp_path) == {"export/last": "whole"}
    monkeypatch.setattr(fcntl, "flock", fails(errno.EIO))
    with pytest.raises(OSError, match="Input/output error"):
        write(tmp_path / "export", "after")
