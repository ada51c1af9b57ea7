"""The `text` source: files of running text, one document each."""

from __future__ import annotations

from functools import partial

from bertjax.storage.lines import LINE_END
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.documents import DOCUMENT_CAP
from bertjax.text.sources.line_spans import LARGEST_WORK, split_lines
from bertjax.text.sources.source import Paragraphs, SourceFile, SourceKind, source_lines

WRAP_LIMIT = 200  # characters; lines of wrapped text are shorter


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read the file as one document; blank lines end paragraphs.

    The lines between blank lines are one wrapped paragraph, unless one of them is longer than `WRAP_LIMIT`; then every
    line is a paragraph.
    """
    block: list[str] = []
    size = 0
    for line in source_lines(file, counts, LINE_END):
        line = line.strip()
        if line and size < DOCUMENT_CAP:
            block.append(line)
            size += len(line) + 1
            continue
        yield from _unwrap(block)
        block, size = ([line], len(line)) if line else ([], 0)
    yield from _unwrap(block)
    yield None


def _unwrap(block: list[str]) -> list[str]:
    if not block or any(len(line) > WRAP_LIMIT for line in block):
        return block
    return [" ".join(block)]


KIND = SourceKind(
    "text",
    read,
    split=partial(split_lines, least=LARGEST_WORK),
    file_is_document=True,
    folder_names=("*.txt", "*.text", "*.md", "*.markdown", "*.rst"),
    takes_encoding=True,
)
