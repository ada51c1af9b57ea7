"""Files that must survive a power loss are synced before they are renamed."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from bertjax.convert.folder import written_whole
from bertjax.run.telemetry import JsonlWriter
from bertjax.storage.files import naming, replace_bytes, sync, write_durably


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, str]]:
    """Record (call, current name of the file) of every sync, rename and replacement, in order."""
    recorded: list[tuple[str, str]] = []
    fsync = os.fsync

    def flush(handle: int) -> None:
        fsync(handle)
        recorded.append(("fsync", Path(os.readlink(f"/proc/self/fd/{handle}")).name))

    def recording(function: Callable) -> Callable:
        def call(source: str | Path, target: str | Path) -> object:
            recorded.append(("rename", Path(source).name))
            return function(source, target)

        return call

    monkeypatch.setattr(os, "fsync", flush)
    for name in ("rename", "replace"):
        monkeypatch.setattr(os, name, recording(getattr(os, name)))
        monkeypatch.setattr(Path, name, recording(getattr(Path, name)))
    return recorded


@pytest.mark.parametrize("write", [replace_bytes, write_durably])
def test_file_is_synced_before_its_rename(write: Callable, tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    write(tmp_path / "a", b"content")
    (flushed, temporary), (renamed, again) = calls[:2]
    assert (flushed, renamed) == ("fsync", "rename") and temporary == again
    assert (tmp_path / "a").read_bytes() == b"content"


def test_export_folder_is_synced_before_its_rename(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    with written_whole(tmp_path / "export", last="config.json") as partial:
        (partial / "weights").write_bytes(b"1")
        (partial / "config.json").write_text("{}")
    renamed = calls.index(("rename", ".export.partial"))
    assert {("fsync", "weights"), ("fsync", "config.json")} <= {*calls[:renamed]}
    assert ("fsync", tmp_path.name) in calls[renamed:]


def test_flush_failure_is_raised(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    (tmp_path / "a").touch()
    sync(tmp_path / "a")
    assert calls == [("fsync", "a")]


def test_metrics_are_on_disk_before_a_checkpoint_is_written(tmp_path: Path, calls: list[tuple[str, str]]) -> None:
    writer = JsonlWriter(tmp_path / "metrics.jsonl", 0)
    writer.write(1, {"train/loss": 1.0})
    writer.flush()
    assert ("fsync", "metrics.jsonl") in calls
    writer.close()


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a device that is always full")
def test_write_error_names_the_file(tmp_path: Path) -> None:
    with pytest.raises(OSError) as full, naming(tmp_path / "a"), open("/dev/full", "wb", buffering=0) as file:
        file.write(b"a")
    assert full.value.errno == errno.ENOSPC and full.value.filename == str(tmp_path / "a")
    with pytest.raises(FileNotFoundError) as absent, naming(tmp_path / "a"), open(tmp_path / "b"):
        pass
    assert str(absent.value.filename) == str(tmp_path / "b")
    with pytest.raises(ConnectionResetError) as network, naming(tmp_path / "a"):
        raise ConnectionResetError(errno.ECONNRESET, "reset")
    assert network.value.filename is None
