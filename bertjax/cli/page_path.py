"""The page that a verb writes: its option, and where it goes."""

from __future__ import annotations

import argparse
from pathlib import Path


def add_page(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    """Add the option `--html`."""
    shown = "write the page to FILE (%(default)s)" if default else "also write a self-contained page with plots to FILE"
    parser.add_argument("--html", default=default, metavar="FILE", help=shown)


def page_path(name: str) -> Path:
    """The file that `--html` names, checked before the long work. Raises ValueError if it cannot be written."""
    path = Path(name)
    if path.is_dir():
        raise ValueError(f"--html {name}: it is a directory; name a file in it")
    if not path.parent.is_dir():
        raise ValueError(f"--html {name}: there is no directory {path.parent}; make it, or name another file")
    return path
