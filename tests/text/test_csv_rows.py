"""The `csv` source: one document per row, separators from the header, and malformed tables."""

import gzip
import json
from dataclasses import replace

import pytest

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.sources.registry import parse_source, read_documents, source_files
from bertjax.text.spans import get_spans


def documents(path, content, source="", counts=None):
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    (file,) = source_files(parse_source(source or f"csv:{path}"))
    return list(read_documents(file, counts))


def texts(path, content, source=""):
    return [document.text for document in documents(path, content, source)]


@pytest.mark.parametrize("separator", [",", ";", "\t", "|"])
def test_csv_takes_the_separator_of_the_header(tmp_path, separator):
    rows = [
        ["Stars", "text"],
        ["5", '"One, two; ""three""\tfour | five."'],
        ["1", '"A line.\n\nAnother."'],
        [],
        ["2", ""],
    ]
    content = "\r\n".join(separator.join(row) for row in rows)
    counts = ReadCounts()
    parsed = documents(tmp_path / "a.csv", content, counts=counts)
    assert [document.text for document in parsed] == ['One, two; "three"\tfour | five.', "A line.\nAnother."]
    assert counts.empty_documents == 1


def test_csv_column_is_named_text_or_only(tmp_path):
    content = "Review;Stars\nGood.;5\n"
    assert texts(tmp_path / "a.csv", content, f"csv:{tmp_path}/*.csv:Review") == ["Good."]
    assert texts(tmp_path / "a.csv", "review text\nGood, yes\n".replace(",", "")) == ["Good yes"]
    with pytest.raises(
        ValueError, match=r"a\.csv: no column 'text'; it has Review, Stars; name one of them: csv:GLOB:C"
    ):
        texts(tmp_path / "a.csv", content)
    with pytest.raises(ValueError, match=r"a\.csv: 2 columns 'text'; rename all but one"):
        texts(tmp_path / "a.csv", "text,text\na,b\n")


def test_csv_reads_tsv_without_quoting(tmp_path):
    assert texts(tmp_path / "a.tsv", 'id\ttext\n1\t"Quoted" and, so on.\n') == ['"Quoted" and, so on.']
    assert texts(tmp_path / "a.tsv.gz", gzip.compress(b'id\ttext\n1\t"Open.\n')) == ['"Open.']


def test_csv_reads_marked_spans(tmp_path):
    spans = json.dumps([[0, 3]]).replace('"', '""')
    (document,) = documents(tmp_path / "a.csv", f'text,marks\nBig apple.,"{spans}"\n')
    assert get_spans(document.text) == ()
    (file,) = source_files(parse_source(f"csv:{tmp_path}/a.csv"))
    (document,) = read_documents(type(file)(**{**vars(file), "spans": "marks"}))
    assert [(span.start, span.end) for span in get_spans(document.text)] == [(0, 3)]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("a,text\n1,b\n1,b,c\n", ", line 3: 3 fields, but the header has 2 .a, text.; correct the row"),
        ('a,text\n1,"b\n', r":2: bad CSV \(unexpected end of data\) in the row of line 2"),
        ('a,text\n1,"b"c\n', r":2: bad CSV \(',' expected after '\"'\)"),
    ],
)
def test_csv_refuses_malformed_rows(tmp_path, content, message):
    with pytest.raises(ValueError, match=rf"a\.csv{message}"):
        texts(tmp_path / "a.csv", content)


@pytest.mark.parametrize(
    ("content", "bad"),
    [
        ('text\n"b\n' + "row\n" * 9, 10),
        ('text\n"b\nrow\nthe "river" is\n' + "row\n" * 9, 3),
        ('text\n"b\nrow\nthe river",is\n' + "row\n" * 9, 3),
    ],
    ids=["open to the end", "ends inside a field", "ends at a separator"],
)
def test_each_line_of_a_bad_row_counts_as_a_bad_record(tmp_path, content, bad):
    (tmp_path / "a.csv").write_text(content)
    (file,) = source_files(parse_source(f"csv:{tmp_path}/a.csv"))
    counts = ReadCounts()
    documents = list(read_documents(replace(file, leaves_out=True), counts))
    assert (counts.bad_records, len(documents)) == (bad, content.count("\n") - 1 - bad)
