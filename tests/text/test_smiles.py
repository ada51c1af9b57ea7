"""The `smiles` source: lines with names, headers, and tables."""

import gzip

import pytest

from bertjax.text.sources.registry import parse_source, read_documents, source_files
from bertjax.text.spans import get_record


def read(source):
    (file,) = source_files(parse_source(source))
    return [(document.text, get_record(document.text).name, document.sentences()) for document in read_documents(file)]


def test_molecules_are_the_first_column(tmp_path):
    path = tmp_path / "a.smi.gz"
    path.write_bytes(gzip.compress(b"SMILES Name\r\nCC(=O)O acetic acid\r\n\r\n[Na+].[Cl-]\tsalt\r\nC#N\r\n"))
    assert read(f"smiles:{path}") == [
        ("CC(=O)O", "acetic", ["CC(=O)O"]),
        ("[Na+].[Cl-]", "salt", ["[Na+].[Cl-]"]),
        ("C#N", "", ["C#N"]),
    ]


def test_tables_have_a_column_of_molecules(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("id,SMILES,y\n1,CCO,2\n2,C/C=C/C,3\n")
    assert [text for text, _, _ in read(f"smiles:{path}:SMILES")] == ["CCO", "C/C=C/C"]
    with pytest.raises(ValueError, match=r"a\.csv: no column 'smiles'; it has id, SMILES, y"):
        read(f"smiles:{path}")
