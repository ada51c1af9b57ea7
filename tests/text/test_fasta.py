"""The `fasta` source: records, their names, and what reading changed."""

import gzip
from pathlib import Path

import pytest

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources import fasta
from bertjax.text.sources.registry import read_documents
from bertjax.text.sources.source import SourceFile
from bertjax.text.spans import get_record


def read(path: Path) -> tuple[list[tuple[str, list[str], bool]], ReadCounts]:
    """Read (name, sentences, is a continuation) of each part of a document, and the counts."""
    counts = ReadCounts()
    documents = read_documents(SourceFile("fasta", str(path)), counts)
    return [(get_record(one.text).name, one.sentences(), one.is_continuation) for one in documents], counts


def test_records_are_documents_of_one_sentence(tmp_path):
    path = tmp_path / "a.fasta.gz"
    text = ">sp|P1|X some protein\r\nMKTL\r\nLAG v\r\n\r\n>empty\r\n>low\nmk tx*\n> \nU-O*X\n"
    path.write_bytes(gzip.compress(text.encode()))
    documents, counts = read(path)
    assert documents == [
        ("sp|P1|X", ["MKTLLAGV"], False),
        ("low", ["MKTX"], False),
        ("", ["U-O*X"], False),
    ]
    assert (counts.documents, counts.empty_documents) == (3, 1)
    assert (counts.lower_case_letters, counts.stop_marks) == (5, 1)


@pytest.mark.parametrize("width", [fasta.PIECE * 2 + 7, 61])
def test_a_long_record_is_one_document_of_pieces(tmp_path, width):
    letters = "ACGTTGCAAC" * (fasta.PIECE * 2 // 10) + "ACGTACG"
    lines = "\n".join(letters[at : at + width] for at in range(0, len(letters), width))
    path = tmp_path / "genome.fa"
    path.write_text(f">1\n{lines}\n>2\nA\n")
    documents, counts = read(path)
    sentences = [sentence for name, group, _ in documents[:-1] for sentence in group]
    assert [len(sentence) for sentence in sentences] == [fasta.PIECE, fasta.PIECE, 7] and "".join(sentences) == letters
    assert [continues for _, _, continues in documents] == [False, True, False]
    assert (counts.documents, counts.split_documents, counts.cut_lines) == (2, 1, 0)


def test_letters_before_a_header_are_refused(tmp_path):
    path = tmp_path / "a.fa"
    path.write_text("MKTL\n>1\nMK\n")
    with pytest.raises(ValueError, match=r"a\.fa: 'MKTL' comes before the first header"):
        read(path)
