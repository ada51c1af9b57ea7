"""The `folder` source: every file in a folder, each read as the kind that its name is usual for.

`bertjax/text/sources/registry.py` chooses the kinds; files of no kind and empty files are listed as skipped.
"""

from __future__ import annotations

from bertjax.storage.remote import is_remote
from bertjax.text.sources.globs import NoFilesError, matching_files
from bertjax.text.sources.source import DEFAULT_FIELD, Source, SourceFile, SourceKind, split_field


def find(source: Source) -> list[SourceFile]:
    """Find all files in the folder, at any depth. Raises ValueError if there are none."""
    pattern, field = split_field(source.pattern)
    try:
        sizes = matching_files(pattern).sizes
    except NoFilesError as error:
        raise ValueError(f"source {source}: {error}") from None
    feature = "" if field == DEFAULT_FIELD else field
    return [
        SourceFile("", path, feature=feature, listed=size if is_remote(path) else None) for path, size in sizes.items()
    ]


KIND = SourceKind(
    "folder",
    read=None,  # its files are of other kinds
    example="papers/",
    find=find,
    has_fields=True,
    takes_encoding=True,
)
