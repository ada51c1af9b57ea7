"""A typical folder: files of many kinds and encodings, some of them without text."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from office_files import PAGE, docx_file, pdf_file
from small_corpus import WORDS, changed, generated_text

from bertjax.storage.utf8 import detect_encoding
from bertjax.text.prepare import prepare, reading_notes
from bertjax.text.sources.pdf import paragraphs, without_headers
from bertjax.text.sources.registry import find_files, parse_source, read_documents, source_files
from bertjax.text.store.format import TokenStore

docx = pytest.importorskip("docx", reason="needs python-docx: pip install 'bertjax[docx]'")
pypdf = pytest.importorskip("pypdf", reason="needs pypdf: pip install 'bertjax[pdf]'")
pytest.importorskip("trafilatura", reason="needs trafilatura: pip install 'bertjax[html]'")


@pytest.fixture
def company(tmp_path: Path) -> Path:
    """Ten files with text, and three without."""
    accents = "The café by the river was naïve. Größe über alles. "
    pages = [
        [
            "Annual report of 2024",
            f"The {word} of the river and the bank of the",
            "river were under the bridge for ye-",
            f"ars of {word}.",
            f"Page {number}",
        ]
        for number, word in enumerate(WORDS[:4], 1)
    ]
    files = {
        "notes/utf8.txt": b"\xef\xbb\xbf" + (accents + generated_text(1)).encode(),
        "notes/wide.txt": (accents + generated_text(2)).encode("utf-16"),
        "notes/old.txt": (accents + generated_text(3)).encode("cp1252"),
        "rows.csv": b"id;text\n" + "\n".join(f"{n};{generated_text(n, 4)!r}" for n in range(9)).encode("cp1252"),
        "rows.tsv": b"id\ttext\n1\tThe stone stood.\n",
        "rows.jsonl": "\n".join(json.dumps({"text": generated_text(n)}) for n in range(20, 40)).encode(),
        "page.html": PAGE.format(charset="iso-8859-1", text=accents * 3).encode("latin-1"),
        "report.pdf": pdf_file(pages),
        "report.docx": docx_file("First paragraph.", "Second café."),
        "readme.md": b"# Title\n\nThe boat.\n",
        "Thumbs.db": bytes(range(256)),
        "empty.txt": b"",
        "~$report.docx": b"lock",
    }
    for name, content in files.items():
        path = tmp_path / "company" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    return tmp_path / "company"


def texts(path: Path) -> list[str]:
    (file,) = source_files(parse_source(f"folder:{path}"))
    return [document.text for document in read_documents(file)]


@pytest.mark.filterwarnings("ignore:.*of the tokens are .UNK.:UserWarning")
def test_folder_of_many_kinds_becomes_a_store(company, data):
    store = TokenStore.open(prepare(changed(data, sources=(str(company),), vocab="", vocab_size=80)))
    provenance = store.manifest["provenance"]
    assert (
        provenance["reading"][0]["documents"] == 3 + 9 + 1 + 20 + 4
        and provenance["reading"][0]["replaced_characters"] == 0
    )
    assert {Path(path).name: reason for path, reason in provenance["skipped"]} == {
        "Thumbs.db": "unknown suffix .db",
        "empty.txt": "empty file",
        "~$report.docx": "lock file of an open document",
    }
    notes = reading_notes(store.manifest)
    table = "files that were left out: 3\n  Thumbs.db      unknown suffix .db\n  empty.txt      empty file\n"
    assert any(note.startswith(table) for note in notes)
    assert {name: [Path(path).name for path in paths] for name, paths in provenance["encodings"].items()} == {
        "cp1252": ["old.txt", "page.html"],
        "utf-16": ["wide.txt"],
    }
    assert any(note.startswith("read as utf-16, detected from the content") and "wide.txt" in note for note in notes)


def test_folder_leaves_out_excluded_files(company):
    matches = find_files(parse_source(f"{company}/"), ("rows.*", "*.txt", "*.db"))
    assert [Path(file.path).name for file in matches.files] == ["page.html", "readme.md", "report.docx", "report.pdf"]
    assert [file.kind for file in matches.files] == ["html", "text", "docx", "pdf"]
    assert [Path(path).name for path, _ in matches.skipped] == ["~$report.docx"]
    others = find_files(parse_source(f"text:{company}")).skipped
    assert ("empty.txt", "empty file") in [(Path(path).name, reason) for path, reason in others]
    assert any("report.pdf" in path and "its name is not one of *.txt" in reason for path, reason in others)


def test_html_gives_the_main_text_in_its_encoding(company, tmp_path):
    (text,) = texts(company / "page.html")
    assert "The café by the river was naïve." in text and "The boat stood under the bridge" in text
    assert "Prices" not in text and "cookies" not in text
    (tmp_path / "no.html").write_text("words without a tag")
    with pytest.raises(ValueError, match=r"no\.html: not HTML, it has no tag"):
        texts(tmp_path / "no.html")


def test_pdf_joins_pages_and_divided_words(company, tmp_path):
    (text,) = texts(company / "report.pdf")
    sentences = [
        f"The {word} of the river and the bank of the river were under the bridge for years of {word}."
        for word in WORDS[:4]
    ]
    assert text.split("\n") == sentences
    (tmp_path / "scan.pdf").write_bytes(pdf_file([[], []]))
    with pytest.raises(ValueError, match=r"scan\.pdf: no text on its 2 pages, they may be pictures .* \(OCR\)"):
        texts(tmp_path / "scan.pdf")
    writer = pypdf.PdfWriter(clone_from=company / "report.pdf")
    writer.encrypt("secret", algorithm="RC4-128")
    writer.write(tmp_path / "locked.pdf")
    for name, content in (
        ("locked", b""),
        ("cut", (company / "report.pdf").read_bytes()[:300]),
        ("text", b"%PDF words"),
    ):
        path = tmp_path / f"{name}.pdf"
        if content:
            path.write_bytes(content)
        with pytest.raises(ValueError, match=rf"{name}\.pdf.*: cannot be read as PDF: "):
            texts(path)


def test_pdf_lines_become_paragraphs():
    lines = [
        "Contents . . . . . . . . . . 3",
        "Chapter One",
        "The well-known river is long and it is",
        "a well-",
        "known one, with co\u00ad",
        "operation of all.",
        "",
    ]
    assert list(paragraphs([*lines, "Another paragraph of the text, which is", "\u2022 an item"])) == [
        "Chapter One",
        "The well-known river is long and it is a well-known one, with cooperation of all.",
        "Another paragraph of the text, which is",
        "\u2022 an item",
    ]
    bodies = [[f"{word} flows.", "It is here.", f"{word} stays."] for word in WORDS[:3]]
    pages = [[f"{n} The Report", "", *body, f"page {n} of 9"] for n, body in enumerate(bodies, 1)]
    assert without_headers([*pages, ["iv", "Last."]]) == [line for body in bodies for line in ("", *body)] + ["Last."]


def test_docx_has_paragraphs_and_rows_in_order(company, tmp_path):
    assert texts(company / "report.docx") == ["First paragraph.\nSecond café.\na b\nc d"]
    (tmp_path / "old.docx").write_bytes(b"\xd0\xcf\x11\xe0")
    with pytest.raises(ValueError, match=r"old\.docx: cannot be read as \.docx \(File is not a zip file\); save it"):
        texts(tmp_path / "old.docx")


@pytest.mark.parametrize(
    ("name", "module"), [("page.html", "trafilatura"), ("report.pdf", "pypdf"), ("report.docx", "docx")]
)
def test_missing_library_is_named_with_its_extra(company, monkeypatch, name, module):
    monkeypatch.setitem(__import__("sys").modules, module, None)
    extra = name.partition(".")[2]
    with pytest.raises(ValueError, match=rf"{name}: reading it requires {module}; pip install 'bertjax\[{extra}\]'"):
        source_files(parse_source(str(company)))


@pytest.mark.parametrize(
    ("content", "encoding"),
    [
        ("Plain.", "utf-8"),
        ("Größe " + "plain " * 9000 + "über", "utf-8"),
        ("One word only is café. " + "plain words. " * 9000, "cp1252"),
        ("Straße und Größe über allem. " * 20, "cp1252"),
        ("Привет, это русский текст о реке. " * 20, "cp1251"),
        ("The river. ", "utf-16"),
        ("The river. ", "utf-32"),
    ],
)
def test_encoding_of_a_text_is_detected(content, encoding):
    encoded = content.encode(encoding)
    assert detect_encoding([encoded[:30_000], encoded[30_000:]]) == encoding


def test_damaged_utf8_is_not_taken_for_another_encoding():
    assert detect_encoding([b"Gr\xc3\xb6\xc3\x9fe \xc3\xbcber alles, caf\xe9. " * 3]) == "utf-8"
