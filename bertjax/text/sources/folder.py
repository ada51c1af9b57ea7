"""The `folder` source: every file in a folder, each read as the kind that its name is usual for.

`bertjax/text/sources/registry.py` chooses the kinds; files of no kind and empty files are listed as skipped.
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
