"""The limit on open files is raised to the hard limit, but not above `MOST_OPEN`."""

from __future__ import annotations

import resource

import pytest

from bertjax.storage import open_files


@pytest.mark.parametrize("most", [1 << 20, 600])
def test_soft_limit_is_raised(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_files, "MOST_OPEN", most)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (500, hard))
        open_files.raise_open_file_limit()
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (most if hard < 0 else min(hard, most), hard)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
