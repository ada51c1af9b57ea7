"""File digests: machines that share a folder compute each digest about once in all."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from bertjax.text import file_caches
from bertjax.text.sources.registry import digest
from bertjax.text.sources.source import SourceFile

FILES, SIZE = 40, 100


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[SourceFile]:
    """Files whose size puts four into a batch."""
    monkeypatch.setattr(file_caches, "_SETTLED_SECONDS", -1.0)
    monkeypatch.setattr(file_caches, "_BATCH_BYTES", 4 * SIZE)
    paths = [tmp_path / f"{number:02}.txt" for number in range(FILES)]
    for number, path in enumerate(paths):
        path.write_bytes(bytes([number]) * SIZE)
    return [SourceFile("text", str(path)) for path in paths]


def take(files: list[SourceFile], folder: Path) -> list[str]:
    return file_caches.file_digests(files, [(SIZE, 0, 0)] * len(files), folder)


def as_machine(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_caches.socket, "gethostname", lambda: name)


def test_machines_take_each_digest_once(
    files: list[SourceFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The second machine begins, and ends, while the first one is in its third batch."""
    hashed_paths: list[str] = []

    def counting_digest(file: SourceFile) -> str:
        hashed_paths.append(file.path)
        if len(hashed_paths) == 9:
            with pytest.MonkeyPatch.context() as other:
                as_machine("second", other)
                second.extend(take(files, tmp_path / "digests"))
        return digest(file)

    second: list[str] = []
    monkeypatch.setattr(file_caches, "digest", counting_digest)
    as_machine("first", monkeypatch)
    first = take(files, tmp_path / "digests")
    assert first == second == [hashlib.sha256(Path(file.path).read_bytes()).hexdigest() for file in files]
    assert len(hashed_paths) <= FILES + 4, "both machines take the third batch"
    assert {path.name for path in (tmp_path / "digests").iterdir()} == {"first.json", "second.json"}


def test_digests_before_an_interruption_are_reused(
    files: list[SourceFile], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hashed_paths: list[str] = []

    def interrupted(file: SourceFile) -> str:
        hashed_paths.append(file.path)
        if len(hashed_paths) == 21:
            raise KeyboardInterrupt
        return digest(file)

    monkeypatch.setattr(file_caches, "digest", interrupted)
    with pytest.raises(KeyboardInterrupt):
        take(files, tmp_path / "digests")
    again = len(hashed_paths)
    assert len(set(take(files, tmp_path / "digests"))) == FILES
    assert len(hashed_paths) - again == FILES - 20
