"""The `wikipedia` source: pages of dumps, spans of multistream dumps, and refusals."""

import bz2
import gzip
import lzma
import random
import tracemalloc
from itertools import chain, pairwise
from pathlib import Path
from xml.sax.saxutils import escape

import check_wikipedia
import numpy as np
import pytest
import zstandard

from bertjax.config import DataConfig
from bertjax.storage import lines
from bertjax.storage.utf8 import ReadCounts
from bertjax.text import corpus
from bertjax.text.corpus import Corpus
from bertjax.text.prepare import prepare
from bertjax.text.sources import registry
from bertjax.text.sources.registry import parse_source, read_documents, require_documents, source_files
from bertjax.text.sources.source import SourceFile
from bertjax.text.sources.wikipedia import dump as wikipedia
from bertjax.text.sources.wikipedia import multistream
from bertjax.text.sources.wikipedia.dump import Dump
from bertjax.text.sources.wikipedia.multistream import cut_at, is_multistream
from bertjax.text.store.format import TokenStore
from bertjax.text.store.manifest import SPLITS
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS

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
    namespaces = "".join(
        f'      <namespace key="{key}" case="first-letter">{name}</namespace>\n' for key, name in names.items()
    )
    return (
        '<mediawiki xmlns="http://www.mediawiki.org/xml/export-0.11/" version="0.11" xml:lang="de">\n  <siteinfo>\n'
        f"    <sitename>Wikipedia</sitename>\n    <namespaces>\n{namespaces}    </namespaces>\n  </siteinfo>\n"
    )


def dump(*pages, names=NAMESPACES):
    return f"{head(names)}{''.join(pages)}</mediawiki>\n"


def write(path, xml):
    path.write_bytes(xml.encode() if isinstance(xml, str) else xml)
    return path


def texts(path, counts=None):
    return [document.text for document in read_documents(SourceFile("wikipedia", str(path)), counts)]


# reading


def test_only_articles_are_read_in_order(tmp_path):
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
    articles = texts(write(tmp_path / "a.xml", dump(*pages)), counts)
    assert articles == ["Text of B.\nMore & more.", "Text of A. <", "Text of C."]
    assert counts == ReadCounts(documents=3, characters=sum(map(len, articles)), empty_documents=1)
    summaries = [(p.title, p.namespace, p.redirect, bool(p.text)) for p in Dump(str(tmp_path / "a.xml")).pages()]
    assert summaries == [
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
def test_redirects_are_recognised_by_text(tmp_path, redirect, is_one):
    path = write(tmp_path / "a.xml", dump(page("A", redirect)))
    assert [parsed.redirect for parsed in Dump(str(path)).pages()] == [is_one]


def test_old_dumps_have_the_namespace_in_the_title(tmp_path):
    pages = [page(title, "Text.", ns=None) for title in ("A", "diskussion:A", "Vorlage: A", "B: A", "Modul")]
    path = write(tmp_path / "a.xml", dump(*pages))
    assert [parsed.namespace for parsed in Dump(str(path)).pages()] == [0, 1, 10, 0, 0]


def test_only_the_newest_wikitext_of_a_page_is_read(tmp_path):
    revision = "<text>Old.</text></revision><revision>"
    slot = "<content><role>other</role><model>json</model><text>{1}</text></content>"
    pages = [page("A", "New.", extra=revision), page("B", "Main.", extra=slot)]
    pages.append(page("C", '{"no": "wikitext"}').replace("<model>wikitext", "<model>json"))
    counts = ReadCounts()
    assert texts(write(tmp_path / "a.xml", dump(*pages)), counts) == ["New.", "Main."]
    assert counts.empty_documents == 1


def test_dump_without_siteinfo_or_texts_is_read(tmp_path):
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


# a multistream dump in spans of its bytes


def streams(*parts):
    return b"".join(bz2.compress(part.encode()) for part in parts)


def pages_of(count, per_stream=1, length=40):
    """Make the streams of a dump with articles of various lengths, other namespaces, redirects and empty pages."""
    kinds = [{}, {"ns": 1}, {"redirect": True}, {}, {"ns": None}]
    pages = [page(f"Seite {n}", f"Text é話 {n} [[Kategorie:X]]. " * (n % length), **kinds[n % 5]) for n in range(count)]
    return ["".join(pages[start : start + per_stream]) for start in range(0, count, per_stream)]


def in_spans(path, edges):
    counts, documents = ReadCounts(), []
    for span in pairwise(edges):
        documents += read_documents(SourceFile("wikipedia", str(path), span=span), counts)
    return [document.text for document in documents], counts


def spans(path, count):
    size = path.stat().st_size
    return [size * n // count for n in range(count + 1)]


@pytest.mark.parametrize("per_stream", [1, 7])
def test_spans_give_every_article_once_in_order(tmp_path, per_stream):
    path = write(tmp_path / "a.xml.bz2", streams(head(), *pages_of(60, per_stream), "</mediawiki>\n"))
    counts = ReadCounts()
    whole = texts(path, counts)
    assert len(whole) > 20 and is_multistream(str(path))
    for count in (1, 2, 3, 10, 97):
        assert in_spans(path, spans(path, count)) == (whole, counts)
    size = path.stat().st_size
    for middle in range(0, size, 211):
        assert in_spans(path, [0, middle, size])[0] == whole


def test_every_span_has_the_namespace_names(tmp_path):
    pages = [page(f"P{n}", f"Text {n}. [[Kategorie:Y]][[Datei:X|thumb|caption]]") for n in range(20)]
    pages += [page(f"Vorlage:V{n}", "No article.", ns=None) for n in range(20)]
    path = write(tmp_path / "a.xml.bz2", streams(head(), *pages, "</mediawiki>\n"))
    assert in_spans(path, spans(path, 9))[0] == [f"Text {n}." for n in range(20)] == texts(path)


def test_magic_bytes_inside_data_are_not_a_stream(tmp_path):
    # Bytes that look like a stream, but are not part of a dump, as compressed data may contain them by chance.
    looks = b"BZh91AY&SY"
    stored = looks + bytes(range(256)) * 40
    first, second = streams(head(), *pages_of(30)[:15]), streams(*pages_of(30)[15:], "</mediawiki>\n")
    path = write(tmp_path / "a.xml.bz2", first + stored + second + bz2.compress(looks))
    assert cut_at(str(path), len(first)) == len(first) + len(stored)
    assert cut_at(str(path), len(first) + 1) == len(first) + len(stored)
    assert cut_at(str(path), len(path.read_bytes()) - 60) == len(path.read_bytes())


def test_stream_is_found_wherever_the_windows_end(tmp_path, monkeypatch):
    path = write(tmp_path / "a.xml.bz2", streams(head(), *pages_of(6), "</mediawiki>\n"))
    expected = [cut_at(str(path), place) for place in range(0, path.stat().st_size, 7)]
    for window in (10, 11, 64, 1000):
        monkeypatch.setattr(multistream, "_WINDOW", window)
        assert [cut_at(str(path), place) for place in range(0, path.stat().st_size, 7)] == expected


def large(folder, content):
    """A corpus of a dump that is large enough to split."""
    path = write(folder / "dump.xml.bz2", content)
    assert path.stat().st_size >= 2 * corpus.UNIT_BYTES // registry._COMPRESSION
    return Corpus.of(DataConfig(sources=(f"wikipedia:{path}",), root=str(folder / "root")))


def noise(count):
    """Make pages that hardly compress."""
    draw = random.Random(0)
    return [page(f"P{n}", f"{n}: " + " ".join(f"{draw.getrandbits(64):x}" for _ in range(40))) for n in range(count)]


def test_corpus_cuts_a_multistream_dump_into_units(tmp_path, monkeypatch):
    content = streams(head(), *noise(300), "</mediawiki>\n")
    text_bytes = 4 * len(content)
    for count in range(2, 40):
        monkeypatch.setattr(corpus, "UNIT_BYTES", text_bytes // count)
        whole = large(tmp_path, content)
        assert len(whole.files[0]) == 1 and not whole.files[0][0].span
        assert len(whole.units) == count and {len(unit.files) for unit in whole.units} == {1}
        assert all(abs(unit.size - len(content) / count) <= 1 for unit in whole.units)
    edges = [whole.units[0].files[0].span[0], *(unit.files[0].span[1] for unit in whole.units)]
    assert sum(unit.size for unit in whole.units) == edges[-1] == whole.files[0][0].size
    unit_texts = [texts_of(unit) for unit in whole.units]
    assert min(map(len, unit_texts)) > 1
    assert list(chain.from_iterable(unit_texts)) == texts(whole.files[0][0].path)


@pytest.mark.parametrize("parts", ["one stream", "streams anywhere", "head and pages"])
def test_dump_that_is_not_multistream_is_one_unit(tmp_path, monkeypatch, parts):
    monkeypatch.setattr(corpus, "UNIT_BYTES", 30_000)
    pages = noise(300)
    xml = dump(*pages)
    content = {
        "one stream": [xml],
        "streams anywhere": [xml[start : start + 9000] for start in range(0, len(xml), 9000)],  # as pbzip2 makes them
        "head and pages": [head() + "".join(pages), "</mediawiki>\n"],
    }[parts]
    whole = large(tmp_path, streams(*content))
    assert [[file.span for file in unit.files] for unit in whole.units] == [[None]]
    path = whole.files[0][0].path
    assert in_spans(path, spans(Path(path), 5))[0] == texts(path) and len(texts(path)) == 300


def test_damaged_multistream_dump_is_refused_by_span(tmp_path):
    parts = [bz2.compress(part.encode()) for part in (head(), *noise(40), "</mediawiki>\n")]
    path = write(tmp_path / "a.xml.bz2", b"".join(parts))
    edges = spans(path, 4)
    flipped = bytearray(path.read_bytes())
    place = sum(map(len, parts[:20]))
    flipped[place + 40] ^= 0xFF
    for content, message in (
        (bytes(flipped), "a.xml.bz2, bytes .*damaged or cut off after"),
        (b"".join(parts)[: place + 400], "a.xml.bz2, bytes .*damaged or cut off after"),
        (b"".join(parts[:20]), "a.xml.bz2, bytes .*page 'P18': cut off here"),
    ):
        write(path, content)
        with pytest.raises(ValueError, match=message):
            in_spans(path, edges if len(content) == edges[-1] else spans(path, 4))


def test_store_of_a_split_dump_equals_the_whole(tmp_path, monkeypatch):
    monkeypatch.setattr(corpus, "UNIT_BYTES", 30_000)
    cut = streams(head(), *noise(300), "</mediawiki>\n")
    vocab = write(
        tmp_path / "vocab.txt",
        "\n".join([*SPECIAL_TOKENS, ":", *(f"{m}{c}" for c in "0123456789abcdef" for m in ("", "##"))]),
    )
    ids = []
    for name, content in (("cut", cut), ("whole", bz2.compress(bz2.decompress(cut)))):
        (tmp_path / name).mkdir()
        path = write(tmp_path / name / "a.xml.bz2", content)
        data = DataConfig(
            sources=(f"wikipedia:{path}",), root=str(tmp_path / name), vocab=str(vocab), held_out=0.2, workers=1
        )
        store = TokenStore.open(prepare(data))
        views = [store.split(split) for split in SPLITS]
        ids.append(
            [
                (v.tokens(v.sentence_offsets[:-1], np.diff(v.sentence_offsets)).tolist(), v.document_offsets.tolist())
                for v in views
            ]
        )
    assert ids[0] == ids[1]


# refusals


def refusal(path):
    with pytest.raises(ValueError) as error:
        texts(path)
    assert str(path) in str(error.value)
    return str(error.value)


def test_truncated_dump_is_refused(tmp_path):
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
        ("<!DOCTYPE html>\n<html></html>", "its first element is <html>, not <mediawiki>"),
        (f"{dump()}<mediawiki></mediawiki>", "bad XML (junk after document element)"),
        (dump(page("A", "x")).replace("</title>", "</titel>"), "bad XML (mismatched tag)"),
        (dump(page("A", "x", ns="zero")), "page 'A': a namespace has the number 'zero'"),
        (dump(names={"x" * 99: "N"}), f"a namespace has the number '{'x' * 40}'"),
        (dump(page("A", "x")).replace("é", "e").replace("x</text>", "&nbsp;</text>"), "bad XML (undefined entity)"),
    ],
)
def test_other_xml_is_refused(tmp_path, xml, message):
    assert message in refusal(write(tmp_path / "a.xml", xml))


def test_entities_that_expand_without_bound_are_refused(tmp_path):
    levels = "".join(f'<!ENTITY e{n} "{f"&e{n - 1};" * 10}">' for n in range(1, 20))
    bomb = f'<?xml version="1.0"?>\n<!DOCTYPE mediawiki [<!ENTITY e0 "lol">{levels}]>\n<mediawiki>&e19;</mediawiki>'
    assert "bad XML (limit on input amplification factor" in refusal(write(tmp_path / "a.xml", bomb))


def test_overlong_line_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(wikipedia, "RECORD_CAP", 1 << 20)
    line = "words of a line " * 140_000
    assert "page 'Big', line 23: a line of more than 1 MiB" in refusal(
        write(tmp_path / "b.xml", dump(page("Big", line)))
    )


def test_omitted_pages_may_be_long(tmp_path):
    path = write(tmp_path / "a.xml", dump(page("Diskussion:A", "Talk.\n" * 500_000, ns=1), page("A", "Text.")))
    assert texts(path) == ["Text."]


def test_source_without_prose_is_refused(tmp_path):
    counts = ReadCounts()
    path = write(tmp_path / "a.xml", dump(page("A", "* only\n* lists")))
    assert texts(path, counts) == []
    with pytest.raises(ValueError, match=r"no text in it \(1 documents, all empty\); is it really of kind wikipedia"):
        require_documents(parse_source(f"wikipedia:{path}"), counts)


def test_memory_does_not_grow_with_the_dump(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "CHUNK", 1 << 17)
    draw = random.Random(0)
    texts = [" ".join(f"{draw.getrandbits(64):x}" for _ in range(60)) for _ in range(25)]
    one = page("A", "\n\n".join(texts))

    def peak(repeats):
        path = tmp_path / f"{repeats}.xml.bz2"
        with bz2.open(path, "wt", 1) as stream:
            stream.write(head() + one * repeats + "</mediawiki>\n")
        tracemalloc.start()
        characters = sum(len(document.text) for document in read_documents(SourceFile("wikipedia", str(path))))
        _, most = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert characters == repeats * len("\n".join(texts))
        return most

    assert peak(80) < 1.1 * peak(20)


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


@pytest.mark.parametrize(
    ("name", "pages", "redirects", "articles"),
    [pytest.param(*dump, id=dump[0][:6], marks=[pytest.mark.long] * (number % 2)) for number, dump in enumerate(DUMPS)],
)
def test_real_dumps_agree_with_mwparserfromhell(dumps, name, pages, redirects, articles):
    pytest.importorskip("mwparserfromhell", reason="pip install mwparserfromhell to compare with it")
    report = check_wikipedia.check(str(dumps / name), repeats=1)
    assert (report.pages, report.redirects, report.articles) == (pages, redirects, articles)
    for measure in ("words", "pairs"):
        assert report.share(measure, "ours") > 0.995 and report.share(measure, "theirs") > 0.995
    assert report.words > 1000 and not report.leftovers


def test_real_dump_has_no_markup_left(dumps):
    path = next(dumps.glob("enwiki-latest*"))
    counts, words, left = ReadCounts(), 0, []
    for document in read_documents(SourceFile("wikipedia", str(path)), counts):
        words += len(check_wikipedia.words(document.text))
        left += check_wikipedia.LEFTOVERS.findall(document.text)
    assert (counts.documents, counts.empty_documents) == (105, 1) and words > 400_000  # one is a list
    assert len(left) <= 8, left  # from the authors: a bar in a list of characters, spaces inside parentheses


@pytest.mark.long  # the suite cuts made-up dumps anywhere
def test_real_dump_made_multistream_is_read_in_spans(dumps, tmp_path, monkeypatch):
    xml = bz2.decompress(next(dumps.glob("enwiki-latest*")).read_bytes())
    first = xml.index(b"  <page>")
    pages = [part + b"</page>\n" for part in xml[first:].split(b"</page>\n")]
    end = pages.pop().removesuffix(b"</page>\n")
    parts = [xml[:first], *(b"".join(pages[start : start + 3]) for start in range(0, len(pages), 3)), end]
    path = write(tmp_path / "a.xml.bz2", b"".join(map(bz2.compress, parts)))
    monkeypatch.setattr(corpus, "UNIT_BYTES", 1 << 19)
    units = Corpus.of(DataConfig(sources=(f"wikipedia:{path}",), root=str(tmp_path))).units
    assert len(units) > 10
    assert [d for unit in units for d in texts_of(unit)] == texts(next(dumps.glob("enwiki-latest*")))


def texts_of(unit):
    return [document.text for file in unit.files for document in read_documents(file)]
