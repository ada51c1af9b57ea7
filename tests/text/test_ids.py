"""The `ids` source and its vocabulary: integers become ids after those of the special tokens."""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from bertjax.text.sources.registry import parse_source, read_documents, source_files
from bertjax.tokenization.training import parse_kind


def texts(source):
    return [one.text for file in source_files(parse_source(source)) for one in read_documents(file)]


def test_lists_are_documents_of_their_numbers(tmp_path):
    lists = [[3, 1, 4], [], [999, 1000]]
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"ids": one, "text": "x"}) + "\n" for one in lists))
    pq.write_table(pa.table({"codes": lists}), tmp_path / "a.parquet")
    expected = ["3 1 4", "999 1000"]
    assert texts(f"ids:{tmp_path}/a.jsonl") == texts(f"ids:{tmp_path}/a.parquet:codes") == expected
    tokenizer = parse_kind("integers:1000")[0].build("1000")
    ids, lengths = tokenizer.encode(expected)
    assert ids.tolist() == [8, 6, 9, 1004, tokenizer.unk_id] and lengths.tolist() == [3, 2]
    assert not tokenizer.is_continuation.any()


def test_other_values_are_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"ids": [1, "2"]}\n')
    with pytest.raises(ValueError, match=r"line 1: field `ids` is \[1, '2'\], not a list of integers"):
        texts(f"ids:{tmp_path}/a.jsonl")
    with pytest.raises(ValueError, match=r"write the number of ids, from 1 to 1,048,576"):
        parse_kind("integers:many")
