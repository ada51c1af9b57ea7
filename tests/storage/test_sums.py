"""`SHA256SUMS` in a folder: every difference is named."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from bertjax.storage.sums import SUMS_FILE, check_sums, read_sums, write_sums


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "inner").mkdir()
    (tmp_path / "a.txt").write_text("a")
    (tmp_path / "inner" / "b.txt").write_text("b")
    write_sums(tmp_path)
    return tmp_path


def test_unchanged_folder_has_no_finding(folder: Path) -> None:
    assert list(check_sums(folder)) == []
    assert {*read_sums(folder)} == {"a.txt", "inner/b.txt"}


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda folder: (folder / "a.txt").write_text("b"), "a.txt: its SHA-256 differs"),
        (lambda folder: (folder / "a.txt").unlink(), "a.txt: missing"),
        (lambda folder: (folder / "c.txt").touch(), "c.txt: not in SHA256SUMS"),
        (lambda folder: (folder / SUMS_FILE).unlink(), "SHA256SUMS: missing"),
    ],
)
def test_every_difference_is_named(folder: Path, change: Callable[[Path], object], message: str) -> None:
    change(folder)
    (finding,) = check_sums(folder)
    assert message in finding


def test_truncated_or_grown_list_is_refused(folder: Path) -> None:
    head, first, second = (folder / SUMS_FILE).read_text().splitlines(keepends=True)
    for lines in ((head, first), (head, first, second, second.replace("b.txt", "c.txt")), (head, first, second[:-1])):
        (folder / SUMS_FILE).write_text("".join(lines))
        with pytest.raises(ValueError, match=r"SHA256SUMS"):
            read_sums(folder)
