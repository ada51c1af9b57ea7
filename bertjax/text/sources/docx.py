"""The `docx` source: the paragraphs and tables of Word documents in order, read with python-docx."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

from bertjax.storage.lines import whole_content
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.documents import split_paragraphs
from bertjax.text.sources.source import Paragraphs, SourceFile, SourceKind

if TYPE_CHECKING:
    from docx.table import Table


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read the file as one document; a row of a table is a paragraph. Headers, footers and comments are left out.

    Raises ValueError naming the file if it is damaged, encrypted, or not in this format.
    """
    import docx
    from docx.table import Table

    content = whole_content(file.path)
    try:
        blocks: list[str] = []
        for block in docx.Document(io.BytesIO(content)).iter_inner_content():
            blocks += _rows(block) if isinstance(block, Table) else [block.text]
    except Exception as error:  # damaged files raise errors of many types
        what = str(error).strip().partition("\n")[0] or type(error).__name__
        raise ValueError(
            f"{file.path}: cannot be read as .docx ({what}); save it again as .docx without a password, or leave it "
            "out of the source"
        ) from None
    yield from split_paragraphs("\n".join(blocks))


def _rows(table: Table) -> list[str]:
    """The rows of a table; a cell that spans several columns or rows of one row counts once."""
    rows = []
    for row in table.rows:
        cells = dict.fromkeys((cell._tc, cell.text.strip()) for cell in row.cells)
        rows.append(" ".join(" ".join(text.split()) for _, text in cells if text))
    return rows


KIND = SourceKind(
    "docx",
    read,
    example="reports/**/*.docx",
    file_is_document=True,
    needs=("docx", "'bertjax[docx]'"),
    folder_names=("*.docx",),
)
