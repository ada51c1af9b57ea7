"""The `novels` source: eight public-domain novels in the package, the same in every installation.

Each file is a compressed novel: a paragraph per line, and a blank line between chapters, which are the documents.
README.md beside them lists titles and origins.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from bertjax.config.suggestions import suggestion
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.lines import read as read_blocks
from bertjax.text.sources.source import Paragraphs, Source, SourceFile, SourceKind

_FOLDER, _SUFFIX = Path(__file__).parent, ".txt.xz"


def find(source: Source) -> list[SourceFile]:
    """Find the novels named in the pattern, or all if it is empty. Raises ValueError for an unknown name."""
    novels = {path.name.removesuffix(_SUFFIX): str(path) for path in sorted(_FOLDER.glob(f"*{_SUFFIX}"))}
    names = [name.strip() for name in source.pattern.split(",") if name.strip()] or list(novels)
    for name in names:
        if name not in novels:
            raise ValueError(f"source {source}: no novel {name!r} in the package; {suggestion(name, novels)}")
    return [SourceFile(source.kind, name, (novels[name],)) for name in sorted(set(names))]


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read the chapters of a novel."""
    return read_blocks(replace(file, path=file.members[0]), counts)


KIND = SourceKind("novels", read, example="alice,hound", default_pattern="", find=find, is_english=True)
