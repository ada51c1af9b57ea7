"""The folder in which a race keeps what is done: all of it is of one commit."""

from __future__ import annotations

import subprocess
from pathlib import Path

from bertjax.storage.files import replace_text


def require_same_commit(folder: Path) -> None:
    """Record the commit in a new folder. Raises SystemExit where another commit has measured in it."""
    words = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    commit, path = subprocess.run(words, capture_output=True, text=True).stdout, folder / "commit"
    if path.exists() and path.read_text() != commit:
        raise SystemExit(f"{folder} is of commit {path.read_text().strip()}; remove it or give another --folder")
    replace_text(path, commit)
