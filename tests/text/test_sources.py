"""Sources: names and globs, the formats of text, compression, and damaged files."""

import bz2
import gzip
import hashlib
import json
import lzma
import os
import tracemalloc

import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.storage import lines as lines_module
from bertjax.storage.utf8 import ReadCounts
from bertjax.text.documents import DOCUMENT_CAP, assemble
from bertjax.text.sources.registry import (
    digest,
    parse_source,
    parse_sources,
    read_documents,
    require_documents,
    source_files,
)
from bertjax.text.sources.source import Source, SourceFile

COMPRESS = {"": bytes, ".gz": gzip.compress, ".bz2": bz2.compress, ".xz": lzma.compress, ".zst": zstandard.compress}


def read(path, kind, counts=None):
    return list(read_documents(SourceFile(kind, str(path)), counts))


def texts(path, kind, counts=None):
    return [document.text for document in read(path, kind, counts)]


def write(path, text):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    return path


# sources and their files


def test_parse_source_takes_the_kind_up_to_the_first_colon():
    assert parse_source("text:a:b/*.txt") == Source("text", "a:b/*.txt")
    assert parse_source("docs") == parse_source("docs:") == Source("docs", "")
    assert parse_source("docs:numpy,jax") == Source("docs", "numpy,jax")
    assert str(parse_source("docs")) == "docs" and str(parse_source("lines:x")) == "lines:x"


def test_globs_are_recursive_sorted_and_expand_home(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("b/2.txt", "a/deep/er/1.txt", "c.txt", "b/no.md"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, "x")
    files = source_files(parse_source("text:~/**/*.txt"))
    assert [file.path for file in files] == [f"{tmp_path}/{name}" for name in ("a/deep/er/1.txt", "b/2.txt", "c.txt")]
    assert [file.size for file in files] == [1, 1, 1] and {file.kind for file in files} == {"text"}
    write(tmp_path / "odd[1].txt", "x")
    assert len(source_files(Source("text", f"{tmp_path}/odd[1].txt"))) == 1


def test_source_without_text_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"source text:.*\*\.txt: the glob matches nothing"):
        source_files(Source("text", f"{tmp_path}/*.txt"))
    (tmp_path / "folder").mkdir()
    with pytest.raises(ValueError, match=r"only directories; add /\*"):
        source_files(Source("text", f"{tmp_path}/*"))
    write(tmp_path / "a.txt", "")
    with pytest.raises(ValueError, match=r"no text, every file is empty \(1, e.g. .*a.txt"):
        source_files(Source("text", f"{tmp_path}/*.txt"))
    counts = ReadCounts()
    assert read(write(tmp_path / "b.txt", " \n\n \n"), "text", counts) == []
    with pytest.raises(ValueError, match=r"source text:b: no text in it \(1 documents, all empty\)"):
        require_documents(Source("text", "b"), counts)
    counts.add(ReadCounts(documents=2, characters=5))
    require_documents(Source("text", "b"), counts)
    assert (counts.documents, counts.characters, counts.empty_documents) == (2, 5, 1)


@pytest.mark.parametrize(
    ("source", "advice"),
    [
        (
            "wikipedia:dumps/*.bz2",
            "nothing .working directory .*; download a dump from https://dumps.wikimedia.org/enwiki/",
        ),
        (
            "wikiextractor:wiki/*",
            "; make them from a dump with WikiExtractor, or read the dump itself as wikipedia:GLOB",
        ),
        (
            "parquet:wiki/*.parquet:text",
            r"was taken for the field .*; download Wikipedia with `hf download wikimedia",
        ),
        (
            "text:Books/*.txt",
            r"; BooksCorpus is not distributed any more; use your own books, .* or .*tfds:pg19:book_text",
        ),
        ("lines:corpus/*.txt", r"the glob matches nothing \(working directory [^;]*\)$"),
    ],
)
def test_empty_glob_reports_where_to_get_text(source, advice):
    with pytest.raises(ValueError, match=advice):
        source_files(parse_source(source))


def test_digest_is_of_the_bytes_on_disk(tmp_path):
    path = write(tmp_path / "a.gz", gzip.compress(b"x"))
    assert digest(SourceFile("text", str(path))) == hashlib.sha256(path.read_bytes()).hexdigest()
    other = write(tmp_path / "b", "y")
    both = SourceFile("docs", "name", (str(path), str(other)))
    parts = [hashlib.sha256(p.read_bytes()).digest() for p in (path, other)]
    assert digest(both) == hashlib.sha256(b"".join(parts)).hexdigest()


def test_parse_source_takes_a_folder_as_its_texts(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("notes/a.txt", "notes/deep/b.MD", "notes/c.txt.gz", "notes/picture.png", "notes/.hidden/d.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        write(tmp_path / name, "x")
    for written in ("notes/", "notes", "./notes", "folder:notes", "text:notes/", f"text:{tmp_path}/notes"):
        paths = [os.path.relpath(file.path) for file in source_files(parse_source(written))]
        assert paths == ["notes/a.txt", "notes/c.txt.gz", "notes/deep/b.MD"]
    message = (
        r"source lines:notes/deep: the folder has no \*.txt, .* \(it has 1 .MD\); write text:notes/deep/\*\*/\*.MD"
    )
    with pytest.raises(ValueError, match=message):
        source_files(parse_source("lines:notes/deep"))
    (tmp_path / "tables").mkdir()
    with pytest.raises(ValueError, match="source folder:tables/: the folder has no files"):
        source_files(parse_source("tables/"))
    write(tmp_path / "tables/a.jsonl", "{}")
    with pytest.raises(ValueError, match=r"\(it has 1 .jsonl\); write jsonl:tables/\*\*/\*.jsonl"):
        source_files(parse_source("text:tables/"))
    assert len(source_files(parse_source("jsonl:tables/"))) == len(source_files(parse_source("tables/"))) == 1


def test_parse_source_refuses_a_kind_that_is_also_a_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    with pytest.raises(ValueError, match=r"also a folder here; write folder:docs .* or docs: for"):
        parse_source("docs")
    assert parse_source("docs:") == Source("docs", "") and parse_source("docs/") == Source("folder", "docs/")


def test_parse_sources_recognises_a_glob_without_quotes(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs" / "old").mkdir(parents=True)
    for name in ("docs/a.txt", "docs/b.txt", "docs/c.md", "docs/old/d.txt", "x.csv", "y.csv"):
        write(tmp_path / name, "x")
    for files, pattern in (
        (("./docs/a.txt", "./docs/b.txt"), r"text:docs/\*\.txt"),
        (("docs/a.txt", "docs/c.md"), r"text:docs/\*"),
        (("docs/a.txt", "docs/old/d.txt"), r"text:docs/\*\*/\*\.txt"),
        (("x.csv", "y.csv"), r"csv:\*\.csv"),
    ):
        with pytest.raises(ValueError, match=f"2 files without a kind .* put it in quotes: '{pattern}'$"):
            parse_sources(files)
    with pytest.raises(ValueError, match=r"no kind; write kind:glob, e\.g\. csv:x\.csv"):
        parse_sources(["x.csv"])
    with pytest.raises(ValueError, match="source 'books/': there is no such folder or file"):
        parse_sources(["books/"])


def test_source_files_explains_brackets(tmp_path):
    (tmp_path / "corpus[v1]").mkdir()
    write(tmp_path / "corpus[v1]" / "a.txt", "x")
    with pytest.raises(ValueError, match=r"\[\.\.\] is a set of characters: for names with brackets write ") as error:
        source_files(Source("text", f"{tmp_path}/corpus[v1]/*.txt"))
    pattern = str(error.value).rpartition("write ")[2]
    assert len(source_files(Source("text", pattern))) == 1
    assert len(source_files(Source("text", f"{tmp_path}/corpus[v1]"))) == 1


def test_source_files_leaves_out_excluded_files(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("a.txt", "b.log", "drafts/c.txt", "drafts/old/d.txt", "deep/Thumbs.db"):
        (tmp_path / name).parent.mkdir(exist_ok=True, parents=True)
        write(tmp_path / name, "x")
    source = Source("text", f"{tmp_path}/**")
    for exclude, expected in (
        (("*.log", "Thumbs.db"), ["a.txt", "drafts/c.txt", "drafts/old/d.txt"]),
        (("drafts/*", "**/*.db"), ["a.txt", "b.log"]),
        (("./drafts/old/*", f"{tmp_path}/deep/*", "*.log"), ["a.txt", "drafts/c.txt"]),
    ):
        assert [os.path.relpath(file.path) for file in source_files(source, exclude)] == expected
    with pytest.raises(ValueError, match=r"data\.exclude=\('\*',\) leaves out all 5 files"):
        source_files(source, ("*",))


# formats


def test_text_joins_wrapped_lines_and_keeps_long_ones(tmp_path):
    long = "word " * 60 + "end."
    path = write(tmp_path / "a", f"\n\nOne\n  wrapped line.\r\n\r\nTwo.\n\n{long}\nShort.")
    assert texts(path, "text") == [f"One wrapped line.\nTwo.\n{long}\nShort."]


def test_lines_are_sentences_and_end_of_file_ends_a_document(tmp_path):
    counts = ReadCounts()
    path = write(tmp_path / "a", "\n\nMr. A. One. Two.\n B.\n\n\n \nC.")
    first, second = read(path, "lines", counts)
    assert (first.text, second.text) == ("Mr. A. One. Two.\nB.", "C.")
    assert first.sentences() == ["Mr. A. One. Two.", "B."]
    assert first.bare(first.sentences()) == [True, False]
    assert counts == ReadCounts(documents=2, characters=21)


def test_jsonl_reads_the_field_text(tmp_path):
    rows = [{"text": "A.\n\n B. "}, {"id": 1, "text": ""}, {"text": "C\ud800."}]
    path = write(tmp_path / "a", "\n".join(map(json.dumps, rows)) + "\n\n")
    counts = ReadCounts()
    assert texts(path, "jsonl", counts) == ["A.\nB.", "C\ufffd."]
    assert counts == ReadCounts(documents=2, characters=8, empty_documents=1, replaced_characters=1)


def test_jsonl_reads_a_named_field(tmp_path):
    (tmp_path / "2024:01").mkdir()
    write(tmp_path / "2024:01" / "a:b.jsonl", '{"abstract": "A.", "body of it": "B.", "text": "C.", "n": 1}\n{"n": 2}')
    folder = f"{tmp_path}/2024:01"

    def read_first(source):
        return [next(read_documents(file)).text for file in source_files(parse_source(source))]

    # A colon in a folder, before a suffix or before a wildcard does not precede a field.
    for pattern in (
        f"{folder}/*.jsonl",
        f"{folder}/a:b.jsonl",
        f"{folder}/a:*",
        f"{folder}/*:text",
        f"{tmp_path}/*:01/*",
    ):
        assert read_first(f"jsonl:{pattern}") == ["C."]
    assert read_first(f"jsonl:{folder}/a:*:abstract") == ["A."]
    assert read_first(f"jsonl:{folder}/a:b.jsonl:body of it") == ["B."]
    (file,) = source_files(parse_source(f"jsonl:{folder}/*:abstract"))
    with pytest.raises(ValueError, match=r"a:b.jsonl, line 2: no field `abstract`; it has n;"):
        list(read_documents(file))
    (file,) = source_files(parse_source(f"jsonl:{folder}/*:n"))
    with pytest.raises(ValueError, match=r"a:b.jsonl, line 1: field `n` is int, not a string"):
        list(read_documents(file))
    with pytest.raises(ValueError, match=r"the glob matches nothing.*'b' was taken for the field .*add :text"):
        source_files(parse_source(f"jsonl:{folder}/a:b"))
    (tmp_path / "a:b").write_text("One.")
    assert read_first(f"text:{tmp_path}/a:b") == ["One."]


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ('{"text": ', "a, line 2: bad JSON"),
        ("[" * 100_000, "a, line 2: bad JSON"),
        ('["x"]', "a, line 2: a JSON list, not an object"),
        ('{"text": ' + "1" * 5000 + "}", "a, line 2: bad JSON"),
        ('{"txt": "x", "id": 1}', "a, line 2: no field `text`; it has id, txt; name one of them: jsonl:GLOB:FIELD"),
        ('{"text": null}', "a, line 2: field `text` is NoneType, not a string"),
    ],
)
def test_bad_json_line_is_named(tmp_path, row, message):
    with pytest.raises(ValueError, match=message):
        texts(write(tmp_path / "a", '{"text": "x"}\n' + row), "jsonl")


def article(title, body):
    return f'<doc id="1" url="http://x?curid=1" title="{title}">\n{title}\n\n{body}\n\n</doc>\n'


def test_wikiextractor_leaves_out_titles_and_markup(tmp_path):
    body = "Rock &amp; Roll is music.<br>A <i>lot</i>. x < y > z.\nHistory.\nRock &amp; Roll"
    path = write(tmp_path / "a", article("Rock &amp; Roll", body) + article("Stub", "") + article("B", "C."))
    counts = ReadCounts()
    expected = "Rock & Roll is music. A lot. x < y > z.\nHistory.\nRock & Roll"
    assert texts(path, "wikiextractor", counts) == [expected, "C."]
    assert counts == ReadCounts(documents=2, characters=len(expected) + 2, empty_documents=1)


def test_wikiextractor_unescapes_and_drops_markup(tmp_path):
    body = (
        'R&amp;B and <a href="Soul%20music">soul music</a>: a &lt; b. &lt;ref name="x"&gt;note&lt;/ref&gt; '
        "Then 3 &gt; 2.\n"
        '&lt;a href="H2O"&gt;H&lt;sub&gt;2&lt;/sub&gt;O&lt;/a&gt;&lt;ref name="y" /&gt;, &amp;lt;br&amp;gt;&lt;br /&gt;'
        "and "
        "&lt;!-- hidden --&gt;1&nbsp;&lt;&nbsp;2 &lt;JAPONICA&gt;.\n"
        "&lt;onlyinclude&gt;&lt;/onlyinclude&gt;"
    )
    expected = (
        "R&B and soul music: a < b. Then 3 > 2.\nH2O, &lt;br&gt; and 1\xa0<\xa02 <JAPONICA>."  # unescaped once only
    )
    assert texts(write(tmp_path / "a", article("A", body)), "wikiextractor") == [expected]


def test_wikiextractor_names_jsonl_for_its_json_output(tmp_path):
    path = write(tmp_path / "wiki_00", '{"id": "1", "title": "A", "text": "One."}\n' * 3)
    with pytest.raises(ValueError, match=rf"writes them with --json; name the source jsonl:GLOB, as in jsonl:{path}"):
        texts(path, "wikiextractor")


def test_wikiextractor_keeps_a_truncated_document(tmp_path):
    whole = article("A", "One.") + article("B", "Two.").replace("</doc>", "") + "\n" + article("C", "Three. Four.")
    counts = ReadCounts()
    assert texts(write(tmp_path / "a", "stray\n" + whole[:-12]), "wikiextractor", counts) == [
        "One.",
        "Two.",
        "Three. Fo",
    ]
    assert (counts.unterminated_documents, counts.lines_outside_documents) == (2, 1)
    with pytest.raises(ValueError, match=r"b: 2 lines of text but no `<doc ...>`"):
        texts(write(tmp_path / "b", "one\n\ntwo"), "wikiextractor")


# bad files


@pytest.mark.parametrize("suffix", COMPRESS)
def test_compression_changes_nothing(tmp_path, suffix):
    text = "\n\n".join(f"Paragraph {n} " + "é話 words " * (n % 70) for n in range(6000))
    path = write(tmp_path / f"a{suffix}", COMPRESS[suffix](text.encode()))
    counts = ReadCounts()
    parts = texts(path, "text", counts)
    assert "\n".join(parts).split() == text.split()
    assert (counts.documents, counts.split_documents, len(parts)) == (1, 1, 2)
    expected = [document.text for document in assemble([*map(str.strip, text.split("\n\n")), None], ReadCounts())]
    assert parts == expected


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_compressed_file_may_have_several_members(tmp_path, suffix):
    compress = COMPRESS[suffix]
    path = write(tmp_path / f"a{suffix}", compress(b"One ") + compress(b"two."))
    assert texts(path, "text") == ["One two."]


def test_zstandard_with_a_long_window_is_read(tmp_path):
    """`zstd --long=28` and more, as in large dumps, needs a larger window."""
    parameters = zstandard.ZstdCompressionParameters(window_log=28, hash_log=6, chain_log=6)
    compress = zstandard.ZstdCompressor(compression_params=parameters).compressobj()  # of unknown size: a whole window
    data = compress.compress(b"One two.") + compress.flush()
    with pytest.raises(zstandard.ZstdError, match="too much memory"):
        zstandard.ZstdDecompressor().decompressobj().decompress(data)
    assert texts(write(tmp_path / "a.zst", data), "text") == ["One two."]


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
@pytest.mark.parametrize("damage", ["cut", "flipped", "other"])
def test_damaged_compressed_data_are_named_with_their_offset(tmp_path, suffix, damage):
    text = "".join(hashlib.sha256(bytes([n % 256, n // 256])).hexdigest() + "\n" for n in range(12_000)).encode()
    data = bytearray(COMPRESS[suffix](text))
    if damage == "cut":
        del data[len(data) * 9 // 10 :]
    elif damage == "flipped":
        data[len(data) * 9 // 10] ^= 0xFF
        if suffix == ".zst":  # frames carry no checksum unless asked
            data = bytearray(zstandard.ZstdCompressor(write_checksum=True).compress(text))
            data[-1] ^= 1
    else:
        data = bytearray(b"plain text under a wrong name")
    path = write(tmp_path / f"a{suffix}", bytes(data))
    message = r"a\.\w+: the compressed data are damaged or cut off after \d+ bytes of text \("
    if damage == "flipped":  # the output before the checksum fails may not be text
        message += r"|at offset \d+.*; the compressed data may be damaged"
    with pytest.raises(ValueError, match=message):
        texts(path, "text")


@pytest.mark.parametrize("suffix", [".gz", ".bz2", ".xz", ".zst"])
def test_member_with_a_damaged_start_is_refused(tmp_path, suffix):
    members = [bytearray(COMPRESS[suffix](f"Part {n}.\n".encode())) for n in range(3)]
    members[1][3] ^= 0xFF
    with pytest.raises(ValueError, match=r"a\.\w+: the compressed data are damaged or cut off after \d+ bytes"):
        texts(write(tmp_path / f"a{suffix}", b"".join(members)), "text")


def test_zeros_may_pad_a_file(tmp_path):
    path = write(tmp_path / "a.xz", lzma.compress(b"One ") + bytes(8) + lzma.compress(b"two.") + bytes(4096))
    assert texts(path, "text") == ["One two."]


def test_file_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ValueError, match=r"gone\.txt: cannot be read: No such file"):
        texts(tmp_path / "gone.txt", "text")


def test_byte_order_mark_is_not_text(tmp_path):
    assert texts(write(tmp_path / "a", b"\xef\xbb\xbfWord.\rMore.\r\n"), "lines") == ["Word.\nMore."]


# memory


@pytest.mark.parametrize(("kind", "piece"), [("text", "word "), ("lines", "話"), ("wikiextractor", "word ")])
def test_giant_line_is_read_in_bounded_memory(tmp_path, kind, piece):
    head = '<doc id="1" title="t">\n' if kind == "wikiextractor" else ""
    repeats = (24 << 20) // len(piece.encode())
    path = write(tmp_path / "a.gz", gzip.compress((head + piece * repeats).encode(), 1))
    counts = ReadCounts()
    tracemalloc.start()
    characters = sum(
        document.text.count(piece.strip()) for document in read_documents(SourceFile(kind, str(path)), counts)
    )
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert characters == repeats  # nothing is lost, and no character or word is cut
    assert counts.cut_lines == 1 and counts.split_documents == 1
    assert peak < 14 << 20


# properties


@settings(max_examples=60)
@given(
    st.lists(st.text(st.sampled_from("ab é話\n\r 😀"), max_size=40), max_size=12),
    st.integers(8, 40),
    st.integers(4, 30),
)
def test_lines_do_not_depend_on_chunk_size(tmp_path_factory, pieces, chunk, cap):
    text = "\n".join(pieces)
    path = tmp_path_factory.mktemp("lines") / "a"
    path.write_bytes(text.encode())
    cut = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines_module, "CHUNK", chunk)
        lines = list(lines_module.read_lines(str(path), cut.append, cap))
    assert "".join(lines) == text.replace("\r", "").replace("\n", "")
    assert all(len(line.encode()) <= chunk + cap for line in lines)
    if not cut and "\r" not in text:
        assert lines == (text.removesuffix("\n").split("\n") if text else [])


@given(st.lists(st.one_of(st.none(), st.text("ab ", min_size=1, max_size=60).filter(str.strip).map(str.strip))))
def test_assemble_keeps_all_text(paragraphs):
    counts = ReadCounts()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("bertjax.text.documents.DOCUMENT_CAP", 32)
        parts = list(assemble([*paragraphs, None], counts))
    words = "".join(document.text for document in parts).replace(" ", "").replace("\n", "")
    assert words == "".join(filter(None, paragraphs)).replace(" ", "")
    assert all(0 < len(document.text) <= 32 for document in parts)
    assert counts.characters == sum(len(document.text) for document in parts)
    assert counts.documents == sum(not document.is_continuation for document in parts)
    assert counts.documents + counts.empty_documents == paragraphs.count(None) + 1


# real data


def test_real_corpora_are_read_completely(real_data):
    def count(source):
        counts = ReadCounts()
        for file in source_files(parse_source(source)):
            for document in read_documents(file, counts):
                assert len(document.text) <= DOCUMENT_CAP and document.text.strip() == document.text
        return counts

    english = count(f"wikiextractor:{real_data}/wikipedia_en/AA_00.txt.xz")
    assert english.documents + english.empty_documents == 6599 and english.unterminated_documents == 0
    assert count(f"wikiextractor:{real_data}/wikipedia_zh/*.xz").unterminated_documents == 1
    assert count(f"lines:{real_data}/google_bert_sample_text.txt").documents == 3
    assert count(f"text:{real_data}/books_en/austen-*.xz").empty_documents == 0
    # This file has Latin-1 bytes in five places.
    assert count(f"text:{real_data}/books_en/chesterton-ball*").replaced_characters == 5
