"""The `lines` source: google-research/bert's format, a sentence per line and a blank line between documents."""

from __future__ import annotations

from bertjax.storage.lines import BLANK_LINE
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.line_spans import split_lines
from bertjax.text.sources.source import Paragraphs, SourceFile, SourceKind, source_lines


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read the sentences of the documents; the end of the file also ends a document."""
    inside = False
    for line in source_lines(file, counts, BLANK_LINE):
        line = line.strip()
        if line:
            inside = True
            yield line
        elif inside:
            inside = False
            yield None
    if inside:
        yield None


KIND = SourceKind(
    "lines",
    read,
    split=split_lines,
    sentence_per_line=True,
    folder_names=("*.txt", "*.text", "*.lines"),
    takes_encoding=True,
)
