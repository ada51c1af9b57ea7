"""The `folder` source: every file in a folder, each read as the kind that its name suggests.

`bertjax/text/sources/registry.py` chooses the kinds; empty files and files of an unknown kind are listed as skipped.
"""

from __future__ import annotations

from bertjax.text.sources.source import SourceKind

KIND = SourceKind(
    "folder",
    read=None,  # its files are of other kinds
    example="papers/",
    has_fields=True,
    takes_encoding=True,
)
