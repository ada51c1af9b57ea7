"""Unreadable files: reported all at once, read in their encoding, excluded by name, or skipped and listed."""

import errno
import json

import pytest
from small_corpus import changed, content

from bertjax.storage import lines
from bertjax.storage.utf8 import likely_encoding
from bertjax.text import readable
from bertjax.text.corpus import Corpus
from bertjax.text.extended_vocabulary import extend_vocabulary
from bertjax.text.prepare import prepare, prepare_share, reading_notes
from bertjax.text.sources.registry import parse_source, read_documents, source_files
from bertjax.text.store.format import TokenStore
from bertjax.text.store.manifest import SPLITS, read_manifest
from bertjax.text.trained_vocabulary import prepare_vocabulary

GERMAN = "Größe über Länge. Der Käse ist schön.\n\n"
JAPANESE = "これは日本語の文章です。東京は大きな町です。\n\n"
THUMBNAILS = b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1" + bytes(24) + bytes(range(256)) * 30


@pytest.fixture
def mixed(data, tmp_path):
    """The small corpus as `text:FOLDER/*`, with three more files that cannot be read."""
    folder = tmp_path / "text"
    (folder / "Thumbs.db").write_bytes(THUMBNAILS)
    (folder / "western.dat").write_bytes((GERMAN * 20).encode("cp1252"))
    (folder / "japan.dat").write_bytes((JAPANESE * 20).encode("shift_jis"))
    return changed(data, sources=(f"text:{folder}/*",))


@pytest.mark.parametrize(
    ("text", "encoding", "likely"),
    [
        (GERMAN, "latin-1", "cp1252"),
        (GERMAN, "cp1252", "cp1252"),
        (JAPANESE, "shift_jis", "cp932"),
        (JAPANESE, "utf-16", "utf-16"),
        ("Это русский текст. Москва большой город.\n", "cp1251", "cp1251"),
        ("这是一个中文文件。北京是首都。\n", "gbk", "gb18030"),
    ],
)
def test_likely_encoding_of_text(text, encoding, likely):
    sample = (text * 10).encode(encoding)
    assert likely_encoding(sample) == likely
    assert sample.decode(likely) == text * 10


def test_likely_encoding_of_binary_data_is_empty():
    assert likely_encoding(THUMBNAILS) == ""


@pytest.mark.parametrize("make", [prepare, prepare_vocabulary, lambda data: prepare_share(data, 0, 1)])
def test_unreadable_files_are_all_reported_at_once(mixed, tmp_path, make):
    data = changed(mixed, vocab="" if make is prepare_vocabulary else mixed.vocab)
    with pytest.raises(ValueError) as error:
        make(data)
    first, *lines = str(error.value).splitlines()
    assert first == "3 of 43 files cannot be read:"
    assert [line.strip().partition(": not ")[0] for line in lines[:3]] == [
        f"{tmp_path}/text/{name}" for name in ("Thumbs.db", "japan.dat", "western.dat")
    ]
    assert "likely" not in lines[0]
    assert lines[1].endswith("; likely cp932") and lines[2].endswith("; likely cp1252")
    assert lines[3] == (
        "to leave them out: --data.on-error skip, or --data.exclude 'Thumbs.db' and so on; "
        "to convert a file: iconv -f cp1252 -t utf-8"
    )
    assert not (tmp_path / "data" / "unreadable.json").exists()


def test_unreadable_files_of_other_kinds_are_reported(data, tmp_path):
    for number in range(4):
        (tmp_path / f"{number}.jsonl").write_text('{"text": "the river."}\n' + "{" * (number % 2))
    with pytest.raises(
        ValueError, match=r"^2 of 4 files cannot be read:\n  .*/1.jsonl, line 2: bad JSON .*\n  .*/3.jso"
    ):
        prepare(changed(data, sources=(f"jsonl:{tmp_path}/*.jsonl",)))


def test_one_unreadable_file_is_reported_with_advice(data, tmp_path):
    (tmp_path / "text" / "a.txt").write_bytes((GERMAN * 20).encode("cp1252"))
    with pytest.raises(
        ValueError, match=r"convert the file \(iconv -f cp1252 .*--data\.encoding cp1252; .*--data\.exclude"
    ):
        prepare(data)


def test_skipped_files_are_listed_and_not_in_the_store(mixed, data, tmp_path, monkeypatch):
    store = TokenStore.open(prepare(changed(mixed, on_error="skip")))
    assert [path for path, _ in store.manifest["provenance"]["skipped"]] == [
        f"{tmp_path}/text/{name}" for name in ("Thumbs.db", "japan.dat", "western.dat")
    ]
    notes = reading_notes(store.manifest)
    (table,) = [note for note in notes if note.startswith("files that were left out: 3\n")]
    assert "\n  western.dat  not UTF-8, byte 0xf6 at offset 2 is" in table
    # The store equals that of the other files.
    assert prepare(data) == store.path
    (tmp_path / "data" / "unreadable.json").unlink()
    assert prepare(changed(mixed, on_error="skip")) == store.path
    monkeypatch.setattr(readable, "read_documents", None)  # cached verdicts are not computed again
    assert prepare(changed(mixed, on_error="skip")) == store.path


def test_skip_refuses_a_source_without_a_readable_file(data, tmp_path):
    (tmp_path / "a.txt").write_bytes((GERMAN * 20).encode("cp1252"))
    with pytest.raises(ValueError, match=r"source lines:.*a\.txt: none of its files can be read: .*not UTF-8"):
        prepare(changed(data, sources=(*data.sources, f"lines:{tmp_path}/a.txt"), on_error="skip"))


def test_excluded_files_are_not_read(mixed, data):
    exclude = ("Thumbs.db", "western.dat", "text/japan.*")
    assert prepare(changed(mixed, exclude=exclude)) == prepare(data)


def test_vocabulary_ignores_excluded_files(mixed):
    exclude = ("Thumbs.db", "western.dat", "japan.dat")
    assert extend_vocabulary(changed(mixed, exclude=exclude), 5) == extend_vocabulary(
        changed(mixed, on_error="skip"), 5
    )


@pytest.mark.parametrize(
    ("text", "encoding"),
    [
        (GERMAN, "cp1252"),
        (JAPANESE, "shift_jis"),
        (JAPANESE, "utf-16"),
        ("\ufeff" + JAPANESE, "utf-16-le"),
        ("这是一个中文文件。\n\n", "gb18030"),
        ("Plain words.\n\n", "UTF8"),
    ],
)
def test_data_encoding_applies_to_text_files(data, tmp_path, text, encoding):
    (tmp_path / "plain").mkdir()
    (tmp_path / "other").mkdir()
    # Longer than a chunk, so that characters are cut.
    whole = text + text.removeprefix("\ufeff") * ((3 << 20) // len(text.encode(encoding)))
    (tmp_path / "plain" / "a.txt").write_text(whole)
    (tmp_path / "other" / "a.txt").write_bytes(whole.encode(encoding))
    read = [
        "\n".join(document.text for file in files for document in read_documents(file))
        for files in (
            Corpus.of(changed(data, sources=(f"text:{tmp_path}/plain/*",))).files[0],
            Corpus.of(changed(data, sources=(f"text:{tmp_path}/other/*",), encoding=encoding)).files[0],
        )
    ]
    assert read[0] == read[1] != ""


def test_encoding_is_part_of_the_fingerprint(data):
    corpora = [
        Corpus.of(changed(data, encoding=encoding)) for encoding in ("utf-8", "UTF8", "ascii", "cp1252", "latin-1")
    ]
    descriptions = [str(corpus.description()) for corpus in corpora]
    assert descriptions[0] == descriptions[1] == descriptions[2]
    assert len(set(descriptions)) == 3


def test_text_in_another_encoding_is_refused(data, tmp_path):
    path = tmp_path / "text" / "a.txt"
    path.write_text(GERMAN * 20)
    with pytest.raises(ValueError, match=r"a\.txt: UTF-8, but data\.encoding is cp1252; give files in one encoding"):
        prepare(changed(data, encoding="cp1252"))
    path.write_bytes(b"\xff\x80" * 100)
    with pytest.raises(
        ValueError, match=r"a\.txt: not shift_jis, invalid bytes after 0 characters, .* correct data\.encoding"
    ):
        prepare(changed(data, encoding="shift_jis"))
    with pytest.raises(ValueError, match=r"data\.encoding='cp1252' with data\.sources=.*: only files of text, lines"):
        Corpus.of(changed(data, sources=("generated:5",), encoding="cp1252"))


@pytest.mark.filterwarnings("ignore:.*of the tokens are .UNK.:UserWarning")
def test_parquet_of_another_schema_is_skipped(data, tmp_path):
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as parquet

    for number in range(8):
        column = "text" if number % 4 else "body"
        parquet.write_table(
            arrow.table({column: [f"the river {n}." for n in range(9)]}), tmp_path / f"{number}.parquet"
        )
    source = f"parquet:{tmp_path}/*.parquet"
    with pytest.raises(ValueError, match=r"0\.parquet: no field 'text'; .* \(and 1 more files\)"):
        source_files(parse_source(source))
    store = TokenStore.open(prepare(changed(data, sources=(source,), on_error="skip")))
    assert [path[-9:] for path, _ in store.manifest["provenance"]["skipped"]] == ["0.parquet", "4.parquet"]


@pytest.mark.filterwarnings("ignore:.*of the tokens are .UNK.:UserWarning")
def test_missing_field_skips_a_file_only_in_that_source(data, tmp_path):
    rows = [{"text": f"the river {n}."} | ({"abstract": f"a house {n}."} if n else {}) for n in range(40)]
    for number in range(2):
        (tmp_path / f"{number}.jsonl").write_text("\n".join(map(json.dumps, rows[1 - number :])))
    one = f"jsonl:{tmp_path}/*.jsonl"
    both = read_manifest(prepare(changed(data, sources=(one, f"{one}:abstract"), on_error="skip")))
    assert sum(both["splits"][split]["documents"] for split in SPLITS) == 39 + 40 + 39
    assert [path for path, _ in both["provenance"]["skipped"]] == [f"{tmp_path}/1.jsonl"]
    alone = read_manifest(prepare(changed(data, sources=(one,), on_error="skip")))
    assert sum(alone["splits"][split]["documents"] for split in SPLITS) == 39 + 40


def test_io_error_skips_a_file_once(data, tmp_path, monkeypatch):
    expected = prepare(changed(data, root=f"{data.root}2"))
    open_file, find_failures = lines._open, readable._unreadable_files

    def failing(path, span):
        if path.endswith("03.txt"):
            raise OSError(errno.EIO, "Input/output error")
        return open_file(path, span)

    def find(unit):
        with monkeypatch.context() as patch:
            patch.setattr(lines, "_open", failing)
            return find_failures(unit)

    with monkeypatch.context() as patch:
        patch.setattr(readable, "_unreadable_files", find)
        store = prepare(changed(data, on_error="skip", workers=1))
    assert [path for path, _ in read_manifest(store)["provenance"]["skipped"]] == [f"{tmp_path}/text/03.txt"]
    assert content(prepare(changed(data, on_error="skip"))) == content(expected)
