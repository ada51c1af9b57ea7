"""Large files are split into spans that have every record once; units are small for any corpus."""

import heapq
import json
import random

import pytest
import zstandard
from small_corpus import changed, generated_text

from bertjax.storage.utf8 import ReadCounts
from bertjax.text import corpus
from bertjax.text.corpus import Corpus, HashedFile
from bertjax.text.prepare import prepare
from bertjax.text.sources import line_spans
from bertjax.text.sources.line_spans import frame_starts, split_lines
from bertjax.text.sources.registry import read_documents
from bertjax.text.sources.source import Source, SourceFile
from bertjax.text.store.format import TokenStore

RECORDS = {
    "jsonl": [json.dumps({"text": f"{'Long. ' * (number % 9 * 4)}Text {number}.\nAnd ü."}) for number in range(60)],
    "lines": [f"Sentence {number}.\n{'Another. ' * (number % 9)}ü\n" for number in range(60)],
}


@pytest.fixture(autouse=True)
def small_files_are_split(monkeypatch):
    monkeypatch.setattr(line_spans.split_lines, "__defaults__", (1,))


def compressed(content, path):
    """Write Zstandard frames of various sizes, some with a checksum, after a skippable frame; returns their number."""
    draw, frames = random.Random(0), [b"\x50\x2a\x4d\x18\x04\0\0\0size"]
    while content:
        size = draw.randint(1, 200)
        frames.append(zstandard.ZstdCompressor(write_checksum=bool(size % 2)).compress(content[:size]))
        content = content[size:]
    path.write_bytes(b"".join(frames))
    return len(frames) - 1


@pytest.mark.parametrize("end", ["\n", "\r\n"])
@pytest.mark.parametrize("suffix", ["", ".zst"])
@pytest.mark.parametrize("kind", RECORDS)
def test_spans_have_every_record_once(tmp_path, kind, suffix, end):
    path = tmp_path / f"a.txt{suffix}"
    content = "\n".join(RECORDS[kind]).replace("\n", end).encode()
    if suffix:
        assert compressed(content, path) == len(frame_starts(str(path)))
    else:
        path.write_bytes(content)
    file = SourceFile(kind, str(path))
    whole = [document.text for document in read_documents(file)]
    assert len(whole) == 60
    for count in (2, 3, 7, 50, 999):
        spans = split_lines(file, count)
        assert sum(part.size for part in spans) == file.size and 2 <= len(spans) <= count
        assert [document.text for part in spans for document in read_documents(part)] == whole


def test_text_is_split_at_line_ends(tmp_path):
    lines = [f"Line {number} of a text without paragraphs." for number in range(90)]
    (tmp_path / "a.txt").write_text("\n".join(lines))
    spans = split_lines(SourceFile("text", str(tmp_path / "a.txt")), 4)
    documents = [document.text for part in spans for document in read_documents(part)]
    assert len(documents) == 4 and " ".join(documents) == " ".join(lines)


def test_damaged_frames_are_not_split(tmp_path):
    path = tmp_path / "a.zst"
    frames = compressed("\n".join(RECORDS["jsonl"]).encode(), path)
    assert len(frame_starts(str(path))) == frames
    content = path.read_bytes()
    for damaged in (content[:-1], content + b"more", b"BZh9" + content):
        path.write_bytes(damaged)
        assert frame_starts(str(path)) == []
        assert split_lines(SourceFile("jsonl", str(path)), 5) == [SourceFile("jsonl", str(path))]


def test_split_file_gives_the_tokens_of_the_whole(data, tmp_path, monkeypatch):
    texts = [generated_text(number) for number in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    data = changed(data, sources=(f"jsonl:{tmp_path}/a.jsonl",))
    stores = []
    for least in (1, 1 << 30):
        monkeypatch.setattr(line_spans.split_lines, "__defaults__", (least,))
        stores.append(TokenStore.open(prepare(data)))
    many, one = (store.manifest["splits"]["train"] for store in stores)
    assert stores[0].path != stores[1].path, "the same name for other shards"
    assert len(many["shards"]) > 4 and len(one["shards"]) == 1
    first, second = (store.split("train").sentence_offsets.tolist() for store in stores)
    assert first == second


def test_work_of_a_large_corpus_is_even(monkeypatch):
    """With sizes like DCLM's 27,838 files and a file of 50 GB, no worker of 100 has over 1.3 times the mean."""
    draw = random.Random(0)
    sizes = [round(draw.lognormvariate(18.3, 0.5)) for _ in range(27_838)]
    files = [SourceFile("jsonl", f"{number}.jsonl.zst", listed=size) for number, size in enumerate(sizes)]
    files.append(SourceFile("jsonl", "large.jsonl.zst", listed=50 * 10**9))
    monkeypatch.setattr(line_spans.split_lines, "__defaults__", (line_spans.LEAST,))
    starts = list(range(0, 50 * 10**9, 10**8))
    monkeypatch.setattr(line_spans, "frame_starts", lambda path: starts if path.startswith("large") else [0])
    units = Corpus((Source("jsonl", "*"),), (tuple(HashedFile(file, "", ()) for file in files),)).units
    weights = [4 * sum(file.size for file in unit.files) for unit in units]
    assert sum(weights) == 4 * (sum(sizes) + 50 * 10**9)
    assert max(weights) < 3 * corpus.LARGEST_UNIT
    # The first free worker claims the next unit.
    workers = [0] * 100
    for weight in weights:
        heapq.heapreplace(workers, workers[0] + weight)
    assert max(workers) <= 1.3 * sum(weights) / len(workers)


BAD_ROWS = ['{"text": ', '["x"]', '{"txt": "x"}', '{"text": null}', '{"text": "' + "x" * (3 << 20) + '"}']


def test_bad_records_are_left_out_and_counted(tmp_path, monkeypatch):
    monkeypatch.setattr("bertjax.text.sources.jsonl.RECORD_CAP", 1 << 20)
    path = tmp_path / "a.jsonl"
    good = [json.dumps({"text": f"Text {number}."}) for number in range(8)]
    path.write_text("\n".join([good[0], *BAD_ROWS, *good[1:7], BAD_ROWS[-1], good[7], BAD_ROWS[-1]]))
    counts = ReadCounts()
    file = SourceFile("jsonl", str(path), leaves_out=True)
    assert [document.text for document in read_documents(file, counts)] == [f"Text {number}." for number in range(8)]
    assert (counts.documents, counts.bad_records, counts.records) == (8, 7, 15)
    assert [f"line {number}: " in reason for number, reason in enumerate(counts.bad_examples, 2)] == [True] * 5
    with pytest.raises(ValueError, match=r"a\.jsonl, line 2: bad JSON"):
        list(read_documents(SourceFile("jsonl", str(path))))


def test_bad_rows_of_tables_are_left_out(tmp_path):
    (tmp_path / "a.csv").write_text('id,text\n1,One.\n2\n3,"Three"x\n4,Four.\n')
    counts = ReadCounts()
    file = SourceFile("csv", str(tmp_path / "a.csv"), leaves_out=True)
    assert [document.text for document in read_documents(file, counts)] == ["One.", "Four."]
    assert counts.bad_records == 2 and "line 3: 1 fields" in counts.bad_examples[0]


def test_file_of_bad_records_is_refused(tmp_path):
    (tmp_path / "a.jsonl").write_text('{"text": "x"}\n' * 500 + '{"body": "x"}\n' * 500)
    with pytest.raises(ValueError, match=r"101 of the first 601 records cannot be read.*line 501: no field `text`"):
        list(read_documents(SourceFile("jsonl", str(tmp_path / "a.jsonl"), leaves_out=True)))


def test_share_of_bad_records_is_bounded_and_listed(data, tmp_path, monkeypatch):
    monkeypatch.setattr(line_spans.split_lines, "__defaults__", (line_spans.LEAST,))
    rows = [json.dumps({"text": generated_text(number)}) for number in range(40)]
    (tmp_path / "a.jsonl").write_text("\n".join([*rows[:20], "{", *rows[20:]]))
    data = changed(data, sources=(f"jsonl:{tmp_path}/a.jsonl",))
    with pytest.raises(ValueError, match=r"a\.jsonl, line 21: bad JSON"):
        prepare(data)
    with pytest.raises(
        ValueError, match=r"(?s)data\.bad_records=0\.01: 1 of 41 records .* of 0\.024;.*\n  .*line 21: "
    ):
        prepare(changed(data, bad_records=0.01))
    assert list((tmp_path / "data").glob("store-*.partial/unit-00000.json"))
    store = prepare(changed(data, bad_records=0.03))
    (reading,) = TokenStore.open(store).manifest["provenance"]["reading"]
    assert reading["bad_records"] == 1 and reading["documents"] == 40 and "line 21" in reading["bad_examples"][0]
    with pytest.raises(ValueError, match=r"data\.bad_records=0\.02: 1 of 41"):
        prepare(changed(data, bad_records=0.02))
