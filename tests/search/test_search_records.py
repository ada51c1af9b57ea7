"""Documents, queries and judgements are read in every layout; errors name file and line."""

from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from bertjax.search.records import (
    Record,
    StoredDocuments,
    count_records,
    own_documents,
    read_judgements,
    read_records,
    store_documents,
)
from bertjax.storage.utf8 import ReadCounts


def records(*paths: Path, field: str | None = None) -> list[Record]:
    return list(read_records([str(path) for path in paths], field, ReadCounts()))


def test_read_records_reads_beir(tmp_path):
    rows = [
        {"_id": "d1", "title": "A title", "text": "a text", "metadata": {}},
        {"_id": "d2", "title": "", "text": "no title"},
        {"id": 7, "title": None, "text": "a number for an id\ud800"},
    ]
    path = tmp_path / "corpus.jsonl.gz"
    path.write_bytes(gzip.compress("\n".join(json.dumps(row) for row in rows).encode()))
    documents = records(path)
    assert [record.id for record in documents] == ["d1", "d2", "7"]
    assert [record.whole for record in documents] == ["A title a text", "no title", "a number for an id\ufffd"]
    (tmp_path / "named.jsonl").write_text('{"_id": "d1", "title": "A title", "body": "a text"}')
    for field, whole in (("title", "A title"), ("body", "A title a text")):
        assert [record.whole for record in records(tmp_path / "named.jsonl", field=field)] == [whole]


def test_records_without_id_are_numbered(tmp_path):
    (tmp_path / "a.txt").write_text("one\n\nthree\n")
    (tmp_path / "b.jsonl").write_text('{"text": "four"}\n{"_id": "five", "text": ""}\n')
    documents = records(tmp_path / "a.txt", tmp_path / "b.jsonl")
    assert documents == [Record(*row) for row in (("1", "one"), ("2", ""), ("3", "three"), ("4", "four"), ("five", ""))]
    assert count_records([str(tmp_path / "a.txt"), str(tmp_path / "b.jsonl")], None) == 5


def test_read_records_reads_parquet(tmp_path):
    pa = pytest.importorskip("pyarrow")
    pytest.importorskip("pyarrow.parquet")
    pa.parquet.write_table(pa.table({"abstract": ["one", "two"]}), tmp_path / "a.parquet")
    assert records(tmp_path / "a.parquet", field="abstract") == [Record("1", "one"), Record("2", "two")]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.jsonl", '{"_id": "x", "text": "a"}\n{"_id": "y"}\n', "a.jsonl, line 2: no field `text`; it has _id"),
        ("a.jsonl", '{"_id": ["x"], "text": "a"}\n', "a.jsonl, line 1: `_id` is list; an id is a string or a number"),
        ("a.jsonl", '{"_id": "x", "text": "a", "title": 3}\n', "line 1: field `title` is int, not a string"),
        ("a.jsonl", "[1]\n", "a.jsonl, line 1: a JSON list, not an object"),
        (
            "a.jsonl",
            '{"_id": "x", "text": "a"}\n\n{"_id": "z", "text": "a"}\n{"_id": "x", "text": "b"}\n',
            "a.jsonl, line 4: id 'x' is already used at .*a.jsonl, line 1; ids must be unique",
        ),
        ("a.jsonl", "", "a.jsonl: no documents"),
        ("a.txt", "", "a.txt: no documents"),
    ],
)
def test_count_records_rejects_bad_documents(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(ValueError, match=message):
        count_records([str(tmp_path / name)], None)


def test_count_records_requires_files():
    with pytest.raises(ValueError, match="-: documents are read twice"):
        count_records(["-"], None)
    with pytest.raises(ValueError, match=r"nowhere.txt: no such file; a query must come before --documents"):
        count_records(["nowhere.txt"], None)


@pytest.mark.parametrize(
    "content",
    [
        "query-id\tcorpus-id\tscore\nq1\ta b\t2\nq1\tc\t0\nq2\td\t-1\n",
        "q1\ta b\t2\r\nq1\tc\t0\r\nq2\td\t-1\r\nq2\td\t-1",
        "q1\t0\ta b\t2\nq1\t0\tc\t0\n\nq2\t0\td\t-1\n",
    ],
)
def test_read_judgements_of_beir_and_trec(tmp_path, content):
    (tmp_path / "qrels").write_text(content)
    assert read_judgements(str(tmp_path / "qrels")) == {"q1": {"a b": 2, "c": 0}, "q2": {"d": -1}}


def test_read_judgements_with_spaces(tmp_path):
    (tmp_path / "qrels").write_text("1 0 184 2\n1 0  29 2\n")
    assert read_judgements(str(tmp_path / "qrels")) == {"1": {"184": 2, "29": 2}}


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ("q1\ta\t1\nq1\tb\n", "qrels, line 2: 'q1.tb' is not a judgement; write query, document and grade"),
        ("q1\ta\tgood\n", "qrels, line 1: .* is not a judgement"),
        ("q1\ta\t1\nquery-id\tcorpus-id\tscore\n", "qrels, line 2"),
        ("q1\ta\t1\nq1\ta\t2\n", "qrels, line 2: document 'a' has another grade for query 'q1' in an earlier line"),
        ("query-id\tcorpus-id\tscore\n", "qrels: no judgements"),
    ],
)
def test_read_judgements_rejects_bad_lines(tmp_path, content, message):
    (tmp_path / "qrels").write_text(content)
    with pytest.raises(ValueError, match=message):
        read_judgements(str(tmp_path / "qrels"))


def test_own_documents_have_same_id_and_text(tmp_path):
    with store_documents(tmp_path) as add:
        for document in (Record("pro-a", "It is  so.\n", "nature"), Record("pro-b", "It is not."), Record("1", "one")):
            add(document)
    expected = {
        Record("pro-a", "It is so."): 0,
        Record("pro-a", "nature It is so. "): 0,
        Record("pro-a", "It is so.", "nature"): 0,
        Record("pro-b", "It is not."): 1,
        Record("1", "another one"): -1,  # by chance
        Record("pro-c", "It is so."): -1,  # a copy
        Record("pro-a", "It is So."): -1,
    }
    own = own_documents(list(expected), StoredDocuments(tmp_path))
    assert own.tolist() == list(expected.values())
