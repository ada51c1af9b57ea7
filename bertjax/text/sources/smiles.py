"""The `smiles` source: molecules, one on each line of a `.smi` file, or in a column of a table.

A molecule is a document of one sentence. A line has the molecule and, after white space, its name.
"""

from __future__ import annotations

from dataclasses import replace

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources import csv_rows
from bertjax.text.sources.globs import has_name
from bertjax.text.sources.source import Paragraphs, SourceFile, SourceKind, source_lines
from bertjax.text.spans import MarkedText, Record

_TABLES = ("*.csv", "*.tsv")
_COLUMN = "smiles"


def read(file: SourceFile, counts: ReadCounts) -> Paragraphs:
    """Read the molecules, from a column if the file is a table. A first line that begins with `smiles` is a header.

    Raises ValueError like the `csv` source for a table.
    """
    if has_name(file.path, _TABLES):
        yield from csv_rows.read(replace(file, feature=file.feature or _COLUMN), counts)
        return
    for number, line in enumerate(source_lines(file, counts)):
        molecule, *name = line.split(None, 1)[:2] or [""]
        if not molecule or (number == 0 and molecule.lower() == _COLUMN):
            continue
        yield MarkedText(molecule, record=Record(name[0].split()[0] if name else ""))
        yield None


KIND = SourceKind(
    "smiles",
    read,
    example="molecules/*.smi.gz",
    has_fields=True,
    folder_names=("*.smi", "*.smiles", *_TABLES),
    takes_encoding=True,
    is_sequence=True,
)
