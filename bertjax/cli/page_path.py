"""Where a verb writes its page."""

from __future__ import annotations

from pathlib import Path


def page_path(name: str) -> Path:
    """The file that `--html` names, looked at before the long work. Raises ValueError if it cannot be one."""
    path = Path(name)
    if path.is_dir():
        raise ValueError(f"--html {name}: that is a directory; name a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"--html {name}: there is no directory {path.parent}; make it, or name another file")
    return path
