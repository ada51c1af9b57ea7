"""Reading JSON: each value has its declared type, or an error names its path; size and depth are bounded."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Annotated, Any, Literal, NotRequired, TypedDict

import pytest

from bertjax.storage import json_documents
from bertjax.storage.files import read_whole
from bertjax.storage.json_documents import MOST_DEPTH, Between, checked, parse_json, read_json


class File(TypedDict):
    name: str
    bytes: Annotated[int, Between(0, 100)]


class Document(TypedDict):
    version: Literal[1]
    files: list[File]
    counts: dict[str, int]
    rate: NotRequired[float | None]
    others: NotRequired[Any]


GOOD = {"version": 1, "files": [{"name": "a", "bytes": 3}], "counts": {"x": 2}, "beside": [{}]}


@pytest.mark.parametrize("more", [{}, {"rate": 1}, {"rate": 0.5}, {"rate": None}, {"others": [[{}]]}])
def test_valid_document_is_returned(more):
    assert parse_json(json.dumps(GOOD | more), "here", Document) == GOOD | more


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "here: version is 2, not 1; correct it"),
        ({"version": True}, "here: version is true, not 1; correct it"),
        ({"files": {}}, "here: files is a mapping of 0, not a list; correct it"),
        ({"files": [3]}, "here: files[0] is 3, not a mapping; correct it"),
        (
            {"files": [{"name": "a"}]},
            "here: files[0].bytes is missing and must be a whole number in 0 to 100; correct it",
        ),
        ({"files": [{"name": "a", "bytes": 101}]}, "here: files[0].bytes is 101, not a whole number in 0 to 100"),
        ({"files": [{"name": "a", "bytes": True}]}, "here: files[0].bytes is true, not a whole number"),
        ({"files": [{"name": None, "bytes": 1}]}, "here: files[0].name is null, not a string; correct it"),
        ({"counts": {"x": 1.0}}, "here: counts.x is 1.0, not a whole number; correct it"),
        ({"counts": None}, "here: counts is null, not a mapping; correct it"),
        ({"rate": "1"}, 'here: rate is "1", not a number or null; correct it'),
        ({"rate": float("nan")}, "here: rate is NaN, not a number or null; correct it"),
        ({"rate": 10**400}, "here: rate is 1000"),
    ],
)
def test_first_value_of_a_wrong_type_is_named(change, message):
    with pytest.raises(ValueError) as caught:
        parse_json(json.dumps(GOOD | change), "here", Document, remedy="correct it")
    assert str(caught.value).startswith(message)


@pytest.mark.parametrize(
    "content",
    [b"", b"{", b"\xff\xfe\x00", b"[" * 100_000, b'{"a":' * 100_000, b"9" * 5000, b"[1]", b"null", b'"text"', b"1e5"],
)
def test_invalid_document_is_refused_in_one_sentence(content):
    with pytest.raises(ValueError, match=r"^here: .*; correct it$"):
        parse_json(content, "here", remedy="correct it")


@pytest.mark.parametrize("content", ['["\\ud83d"]', b'["\\uDE00"]', b'["\xed\xa0\x80"]', '["\ud800"]'])
def test_lone_surrogate_is_refused(content):
    with pytest.raises(ValueError, match=r"^it: a string has a lone surrogate"):
        parse_json(content, "it", list[str])


def test_pair_of_surrogates_is_a_character():
    assert parse_json('["\\ud83d\\ude00"]', "it", list[str]) == ["\U0001f600"]
    assert parse_json('["\U0001f600"]'.encode(), "it", list[str]) == ["\U0001f600"]


def test_depth_limit_is_exact():
    def nested(depth: int) -> str:
        return "[" * depth + "]" * depth

    assert parse_json(nested(MOST_DEPTH), "here", list[Any])
    with pytest.raises(ValueError, match=f"nested deeper than {MOST_DEPTH}"):
        parse_json(nested(MOST_DEPTH + 1), "here", list[Any])


def test_size_is_checked_before_reading(tmp_path: Path, monkeypatch):
    path = tmp_path / "large.json"
    with path.open("wb") as file:
        file.truncate(1 << 40)  # a sparse file, larger than the disk
    monkeypatch.setattr(json_documents.json, "loads", None)
    with pytest.raises(
        ValueError, match=r"large\.json: 1,099,511,627,776 bytes, but such a file has at most 67,108,864"
    ):
        read_json(path)


def test_changed_document_is_accepted_or_refused():
    rng, base = random.Random(0), json.dumps(GOOD).encode()
    pieces = [b"{", b"}", b"[", b"]", b",", b"null", b"true", b"-1", b"1e999", b'"', b"\\ud800", b"\x00", b"\xc3"]
    refused = 0
    for _ in range(3000):
        content = bytearray(base)
        for _ in range(rng.randint(1, 4)):
            at = rng.randrange(len(content))
            content[at : at + rng.randint(0, 3)] = rng.choice(pieces)
        try:
            checked(parse_json(bytes(content), "here", Document), Document, "here")
        except ValueError as error:
            refused += 1
            assert str(error).startswith("here: ")
    assert refused > 1000


def test_endless_file_is_not_read_to_its_end():
    with pytest.raises(ValueError, match=r"/dev/zero: 1,001 bytes, but such a file has at most 1,000; is it"):
        read_whole(Path("/dev/zero"), 1000)
