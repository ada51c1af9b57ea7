"""A new kind of source is one object and one registry line, shown with a made-up kind."""

import importlib.util
import sys
from dataclasses import replace

import pytest
from small_corpus import WORDS, changed

from bertjax.storage.utf8 import ReadCounts
from bertjax.text.corpus import Corpus
from bertjax.text.prepare import prepare, reading_notes
from bertjax.text.sources.registry import KINDS, parse_source, read_documents, source_files
from bertjax.text.store.format import TokenStore
from bertjax.text.store.manifest import SPLITS

MADE_UP = '''
"""The `cards` source: 100 bytes for each document, whose sentences stand between bars."""

from dataclasses import replace

from bertjax.text.sources.source import SourceKind, source_lines


def read(file, counts):
    first, last = file.span or (0, file.size)
    for number, card in enumerate(source_lines(file, counts)):
        if not first <= number * 100 < last:
            continue
        if card.startswith("?"):
            counts.lines_outside_documents += 1
            continue
        if "!!" in card:
            raise ValueError(f"{file.path}, card {number}: it shouts")
        yield from map(str.strip, card.split("|"))
        yield None


def split(file, count):
    middle = file.size // 200 * 100
    return [replace(file, span=span) for span in ((0, middle), (middle, file.size))]


KIND = SourceKind(
    "cards",
    read,
    example="box/*.cards",
    default_pattern="DEFAULT",
    where_from="cards are sold at the stationer's",
    split=split,
    sentence_per_line=True,
)
'''


@pytest.fixture
def cards(tmp_path, monkeypatch):
    """Define the kind `cards` in a temporary file and register it, as one registry line would."""
    path = tmp_path / "cards_source.py"
    path.write_text(MADE_UP.replace("DEFAULT", f"{tmp_path}/box/*.cards"))
    spec = importlib.util.spec_from_file_location("cards_source", path)
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "cards_source", module)
    spec.loader.exec_module(module)
    monkeypatch.setitem(KINDS, module.KIND.name, module.KIND)
    (tmp_path / "box").mkdir()
    return tmp_path / "box"


def write_cards(path, cards):
    path.write_text("".join(f"{card:99}\n" for card in cards))


def test_made_up_source_makes_a_store(cards, data):
    first = [f"{WORDS[n % 16]} {WORDS[n // 16]}. the | of it" for n in range(60)]
    write_cards(cards / "a.cards", first)
    write_cards(cards / "b.cards", ["? to be", "and the. to it | the river was | on it"])
    data = changed(data, sources=("cards",))
    spans = [file.span for unit in Corpus.of(data).units for file in unit.files]
    assert spans == [(0, 3000), (3000, 6000), None]
    store = TokenStore.open(prepare(data))
    views = [store.split(split) for split in SPLITS]
    assert sum(view.num_documents for view in views) == 61
    assert sum(view.num_sentences for view in views) == 123  # a line is a sentence, whatever periods are in it
    assert store.manifest["provenance"]["sources"][0]["kind"] == "cards"
    assert "lines of text outside a document, which were left out: 1" in reading_notes(store.manifest)
    assert prepare(changed(data, sources=(f"cards:{cards}/*.cards",))) == store.path


def test_made_up_source_reports_errors(cards, data):
    with pytest.raises(ValueError, match=r"^source cards:.*: the glob matches nothing .*; cards are sold at the stat"):
        source_files(parse_source("cards"))
    assert parse_source("cards:") == parse_source("cards")
    with pytest.raises(ValueError, match=r"did you mean cards:x\? kinds: .*, cards$"):
        parse_source("card:x")
    write_cards(cards / "a.cards", ["fine", "not!!"])
    with pytest.raises(ValueError, match=r"a\.cards, card 1: it shouts"):
        prepare(changed(data, sources=("cards",)))


def test_last_document_may_lack_its_end(cards, monkeypatch):
    write_cards(cards / "a.cards", ["One sentence. | Another one."] * 3)
    (file,) = source_files(parse_source("cards"))
    ended = [document.text for document in read_documents(file)]
    read = KINDS["cards"].read
    kind = replace(KINDS["cards"], read=lambda file, counts: [*read(file, counts)][:-1])
    monkeypatch.setitem(KINDS, "unended", kind)
    counts = ReadCounts()
    assert [document.text for document in read_documents(replace(file, kind="unended"), counts)] == ended
    assert len(ended) == 3 and counts.empty_documents == 0
