import bz2
import gzip
import lzma
import random
import tracemalloc
from pathlib import Path
from xml.sax.saxutils import escape

import check_wikipedia
import pytest
import zstandard

from bertjax.text import wikipedia
from bertjax.text.documents import ReadCounts
from bertjax.text.sources import SourceFile, parse_source, read_documents, require_documents, source_files
from bertjax.text.wikipedia import Dump

NAMESPACES = {-2: "Medium", 0: "", 1: "Diskussion", 6: "Datei", 10: "Vorlage", 14: "Kategorie", 828: "Modul"}


def page(title, text, ns=0, redirect=False, extra=""):
    number = f"<ns>{ns}</ns>" if ns is not None else ""
    target = '<redirect title="Ziel" />' if redirect else ""
    return (
        f"  <page>\n    <title>{escape(title)}</title>\n    {number}\n    <id>1</id>\n    {target}\n    <revision>\n"
        f"      <id>2</id>\n      <comment>no text</comment>\n      <model>wikitext</model>\n{extra}"
        f'      <text bytes="9" xml:space="preserve">{escape(text)}</text>\n    </revision>\n  </page>\n'
    )


def head(names=NAMESPACES):
    listed = "".join(
        f'      <namespace key="{key}" case="first-letter">{name}</namespace>\n' for key, name in names.items()
    )
    return (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">\n  <siteinfo>\n'
        f"    <sitename>Wikipedia</sitename>\n    <namespaces>\n{listed}    </namespaces>\n  </siteinfo>\n"
    )


def dump(*pages, names=NAMESPACES):
    return f"{head(names)}{''.join(pages)}</mediawiki>\n"


def write(path, xml):
    path.write_bytes(xml.encode() if isinstance(xml, str) else xml)
    return path


def texts(path, counts=None):
    return [document.text for document in read_documents(SourceFile("wikipedia", str(path)), counts)]


# what is read


def test_articles_come_in_order_and_nothing_else_does(tmp_path):
    pages = [
        page("B", "Text of ''B''.\n\nMore & <ref>note</ref>more."),
        page("Diskussion:B", "Talk.", ns=1),
        page("Weiter", "Hidden, whatever it says.", redirect=True),
        page("Vorlage:X", "Template.", ns=10),
        page("A: Ein Titel", "Text of A. &nbsp;&lt;"),
        page("Leer", "{{Box}}\n* item"),
        page("Kategorie:Y", "Category.", ns=14),
        page("C", "Text of C [[Datei:X|thumb|caption]][[Kategorie:Y]]."),
    ]
    counts = ReadCounts()
    found = texts(write(tmp_path / "a.xml", dump(*pages)), counts)
    assert found == ["Text of B.\nMore & more.", "Text of A. <", "Text of C."]
    assert counts == ReadCounts(documents=3, characters=sum(map(len, found)), empty_documents=1)
    seen = [(p.title, p.namespace, p.redirect, bool(p.text)) for p in Dump(str(tmp_path / "a.xml")).pages()]
    assert seen == [
        ("B", 0, False, True),
        ("Diskussion:B", 1, False, False),
        ("Weiter", 0, True, False),
        ("Vorlage:X", 10, False, False),
        ("A: Ein Titel", 0, False, True),
        ("Leer", 0, False, True),
        ("Kategorie:Y", 14, False, False),
        ("C", 0, False, True),
    ]


@pytest.mark.parametrize(
    ("redirect", "is_one"),
    [
        ("#REDIRECT [[A]]", True),
        ("\n#redirect: [[A#b|c]] {{R}}", True),
        ("#पुनर्प्रेषित [[A]]", True),
        ("#転送[[A]]", True),
        ("#đổi hướng [[A]]", True),
        ("# item [[A]]\n\nText.", False),
        ("Text #REDIRECT [[A]]", False),
    ],
)
def test_redirects_without_their_element_are_known_by_their_text(tmp_path, redirect, is_one):
    path = write(tmp_path / "a.xml", dump(page("A", redirect)))
    assert [found.redirect for found in Dump(str(path)).pages()] == [is_one]


def test_old_dumps_tell_the_namespace_by_the_title(tmp_path):
    pages = [page(title, "Text.", ns=None) for title in ("A", "diskussion:A", "Vorlage: A", "B: A", "Modul")]
    path = write(tmp_path / "a.xml", dump(*pages))
    assert [found.namespace for found in Dump(str(path)).pages()] == [0, 1, 10, 0, 0]


def test_only_the_newest_wikitext_of_a_page_is_read(tmp_path):
    revision = "<text>Old.</text></revision><revision>"
    slot = "<content><role>other</role><model>json</model><text>{1}</text></content>"
    pages = [page("A", "New.", extra=revision), page("B", "Main.", extra=slot)]
    pages.append(page("C", '{"no": "wikitext"}').replace("<model>wikitext", "<model>json"))
    counts = ReadCounts()
    assert texts(write(tmp_path / "a.xml", dump(*pages)), counts) == ["New.", "Main."]
    assert counts.empty_documents == 1


def test_a_dump_without_siteinfo_or_texts(tmp_path):
    xml = f"<mediawiki>{page('A', 'A [[File:B|c]].')}{page('B', '').replace('></text>', '/>')}</mediawiki>"
    assert texts(write(tmp_path / "a.xml", "\ufeff<?xml version='1.0' encoding='utf-8'?>\n" + xml)) == ["A."]


@pytest.mark.parametrize(
    ("suffix", "compress"),
    [("", bytes), (".gz", gzip.compress), (".bz2", bz2.compress), (".xz", lzma.compress), (".zst", zstandard.compress)],
)
def test_streams_and_compression_change_nothing(tmp_path, suffix, compress):
    parts = [head(), *(page(f"P{n}", f"Text é話 {n}. " * 40) for n in range(30)), "</mediawiki>\n"]
    data = b"".join(compress(part.encode()) for part in parts)  # as multistream dumps are made
    path = write(tmp_path / f"dump.xml{suffix}", data)
    (file,) = source_files(parse_source(f"wikipedia:{tmp_path}/*.xml*"))
    assert file.path == str(path)
    assert [document.text for document in read_documents(file)] == [
        f"{f'Text é話 {n}. ' * 40}".strip() for n in range(30)
    ]


# what is refused


def refusal(path):
    with pytest.raises(ValueError) as error:
        texts(path)
    assert str(path) in str(error.value)
    return str(error.value)


def test_a_dump_that_was_cut_off_is_refused(tmp_path):
    noise = random.Random(0)
    words = " ".join(f"{noise.random()}" for _ in range(20_000))
    xml = dump(page("Whole", "Text."), page("Half", words), page("Never", "Text."))
    message = refusal(write(tmp_path / "a.xml", xml[: len(xml) // 2]))
    assert "page 'Half': cut off here" in message and "get the file again" in message
    assert "cut off here" in refusal(write(tmp_path / "b.xml", xml.removesuffix("</mediawiki>\n")))
    data = bz2.compress(xml.encode())
    assert "damaged or cut off after" in refusal(write(tmp_path / "a.xml.bz2", data[: len(data) // 2]))
    streams = bz2.compress(head().encode()) + bz2.compress(page("A", "Text.").encode())
    assert "page 'A': cut off here" in refusal(write(tmp_path / "b.xml.bz2", streams))


@pytest.mark.parametrize(
    ("xml", "message"),
    [
        ("Just text.\n", "line 1: bad XML (syntax error); is it a MediaWiki XML dump"),
        ("\n", "bad XML (no element found); is it a MediaWiki XML dump"),
        ("<rss><page><title>A</title></page></rss>", "its first element is <rss>, not <mediawiki>"),
        ("<!DOCTYPE html>\n<html></html>", "it declares a document type"),
        (f"{dump()}<mediawiki></mediawiki>", "bad XML (junk after document element)"),
        (dump(page("A", "x")).replace("</title>", "</titel>"), "bad XML (mismatched tag)"),
        (dump(page("A", "x", ns="zero")), "page 'A': a namespace has the number 'zero'"),
        (dump(names={"x" * 99: "N"}), f"a namespace has the number '{'x' * 40}'"),
        ("<mediawiki>" + "<a>" * 40, "more than 32 elements inside one another"),
        (dump(page("A", "x")).replace("é", "e").replace("x</text>", "&nbsp;</text>"), "bad XML (undefined entity)"),
    ],
)
def test_what_is_no_dump_is_refused(tmp_path, xml, message):
    assert message in refusal(write(tmp_path / "a.xml", xml))


def test_entities_that_expand_without_bound_are_refused(tmp_path):
    levels = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 20))
    bomb = f'<?xml version="1.0"?>\n<!DOCTYPE mediawiki [<!ENTITY e0 "lol">{levels}]>\n<mediawiki>&e19;</mediawiki>'
    assert "it declares a document type" in refusal(write(tmp_path / "a.xml", bomb))


def test_a_page_too_large_to_hold_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(wikipedia, "PAGE_CAP", 1 << 20)
    text = "words of a line\n" * 70_000
    assert "page 'Big': a page of more than 1 Mi characters" in refusal(
        write(tmp_path / "a.xml", dump(page("Big", text)))
    )
    line = "words of a line " * 140_000
    assert "page 'Big', line 23: a line of more than 1 MiB" in refusal(
        write(tmp_path / "b.xml", dump(page("Big", line)))
    )


@pytest.mark.parametrize("start", ['<page a="', "<!-- ", "<?pi "])
def test_a_tag_too_large_to_hold_is_refused(tmp_path, start):
    path = write(tmp_path / "a.xml.bz2", bz2.compress((head() + start + "some words and\n" * 100_000).encode()))
    tracemalloc.start()
    assert "a tag of more than 64 KiB" in refusal(path)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 12 << 20


def test_pages_that_are_left_out_may_be_long(tmp_path):
    path = write(tmp_path / "a.xml", dump(page("Diskussion:A", "Talk.\n" * 500_000, ns=1), page("A", "Text.")))
    assert texts(path) == ["Text."]


def test_a_source_without_prose_is_refused(tmp_path):
    counts = ReadCounts()
    path = write(tmp_path / "a.xml", dump(page("A", "* only\n* lists")))
    assert texts(path, counts) == []
    with pytest.raises(ValueError, match=r"no text in it \(1 documents, all empty\); is it really of kind wikipedia"):
        require_documents(parse_source(f"wikipedia:{path}"), counts)


def test_memory_does_not_grow_with_the_dump(tmp_path):
    paragraph = "Some words of an article. " * 40
    one = page("A", f"{paragraph}\n\n" * 200)

    def peak(repeats):
        path = tmp_path / f"{repeats}.xml.bz2"
        with bz2.open(path, "wt", 1) as stream:
            stream.write(head() + one * repeats + "</mediawiki>\n")
        tracemalloc.start()
        characters = sum(len(document.text) for document in read_documents(SourceFile("wikipedia", str(path))))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert characters == repeats * (200 * len(paragraph) - 1)
        return most

    assert peak(40) < 1.2 * peak(10)


# real dumps


DUMPS = (  # name, pages, redirects, articles
    ("arwiki_minidump.xml.bz2", 3, 0, 3),
    ("dewiki_minidump.xml.bz2", 2, 0, 2),
    ("enwiki_minidump.xml.bz2", 27, 2, 24),
    ("enwiki-table-markup.xml.bz2", 5, 0, 5),
    ("frwiki_minidump.xml.bz2", 3, 0, 3),
    ("hewiki_minidump.xml.bz2", 1, 0, 1),
    ("hiwiki_minidump.xml.bz2", 1, 0, 1),
    ("jawiki_minidump.xml.bz2", 1, 0, 1),
    ("kowiki_minidump.xml.bz2", 1, 0, 1),
    ("ruwiki_minidump.xml.bz2", 1, 0, 1),
    ("thwiki_minidump.xml.bz2", 1, 0, 1),
    ("zhwiki_minidump.xml.bz2", 1, 0, 1),
)


@pytest.fixture
def dumps(real_data) -> Path:
    folder = real_data / "wikipedia_dumps"
    if not folder.is_dir():
        pytest.skip(f"needs real dumps, not found at {folder}")
    return folder


@pytest.mark.parametrize(("name", "pages", "redirects", "articles"), DUMPS, ids=[name[:6] for name, *_ in DUMPS])
def test_real_dumps_agree_with_mwparserfromhell(dumps, name, pages, redirects, articles):
    pytest.importorskip("mwparserfromhell", reason="pip install mwparserfromhell to compare with it")
    report = check_wikipedia.check(str(dumps / name), repeats=1)
    assert (report.pages, report.redirects, report.articles) == (pages, redirects, articles)
    for of in ("words", "pairs"):
        assert report.share(of, "ours") > 0.995 and report.share(of, "theirs") > 0.995
    assert report.words > 1000 and not report.leftovers


def test_a_real_dump_has_no_markup_left(dumps):
    path = next(dumps.glob("enwiki-latest*"))
    counts, words, left = ReadCounts(), 0, []
    for document in read_documents(SourceFile("wikipedia", str(path)), counts):
        words += len(check_wikipedia.words(document.text))
        left += check_wikipedia.LEFTOVERS.findall(document.text)
    assert (counts.documents, counts.empty_documents) == (105, 1) and words > 400_000  # one is a list
    assert len(left) <= 8, left  # what the authors wrote: a bar in a list of characters, spaces inside parentheses
