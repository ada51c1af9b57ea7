"""Any text makes a store: one file, a few novels, one line; too little text is refused before tokenizing."""

import itertools
import json
import random
from pathlib import Path

import numpy as np
import pytest
from small_corpus import VOCAB, changed, generated_text

from bertjax.input.plan import build_plan
from bertjax.storage.utf8 import ReadCounts
from bertjax.text import prepare as prepare_module
from bertjax.text import trained_vocabulary
from bertjax.text.corpus import Corpus, draws
from bertjax.text.division import LARGEST_SHARE, LEAST_DOCUMENTS, MEASURED, MEASURED_SHARE, divide
from bertjax.text.documents import Document, assemble, divide_works
from bertjax.text.prepare import prepare, reading_notes
from bertjax.text.sources.registry import read_documents
from bertjax.text.store.format import TokenStore
from bertjax.text.store.manifest import SPLITS

CHAPTERS = 40


def chapter(name, paragraphs=6):
    return "\n\n".join(generated_text(f"{name} {n}") for n in range(paragraphs))


def novel(name, chapters=CHAPTERS):
    return "\n\n".join(f"CHAPTER {n}\n\n{chapter(f'{name} {n}')}" for n in range(1, chapters + 1))


def one_line(name):
    return " ".join(novel(name).split())


LAYOUTS = {
    "chapters": novel("a"),
    "crlf": novel("a").replace("\n", "\r\n"),
    "one_line": one_line("a"),
    "no_blank_line": "\n".join(line for line in novel("a").split("\n") if line),
    "sentence_per_line": novel("a").replace("\n\n", " ").replace(". ", ".\n"),
}


@pytest.fixture
def source(data, tmp_path):
    """Return a function that writes texts, a file each, and returns a config for them."""

    def make(*texts, **values):
        folder = tmp_path / "own"
        folder.mkdir(exist_ok=True)
        for number, text in enumerate(texts):
            (folder / f"{number}.txt").write_bytes(text.encode())
        return changed(data, sources=(f"text:{folder}/*.txt",), **{"held_out": 0.01} | values)

    return make


def sorted_characters(text):
    """The characters of a text, which do not depend on its division into documents."""
    return "".join(sorted(" ".join(text.split())))


@pytest.mark.parametrize("layout", LAYOUTS)
def test_one_file_becomes_documents_of_both_splits(source, layout):
    data = source(LAYOUTS[layout])
    store = TokenStore.open(prepare(data))
    train, held_out = (store.split(split) for split in SPLITS)
    assert train.num_documents > 20 and held_out.num_documents >= LEAST_DOCUMENTS
    assert held_out.num_tokens < 0.2 * train.num_tokens
    notes = reading_notes(store.manifest)
    num_documents_made = train.num_documents + held_out.num_documents
    assert f"{num_documents_made:,} documents were made from 0.txt" in notes
    assert any("of the text is held out" in note for note in notes)
    # The pieces have all text exactly once.
    (file,) = Corpus.of(data).files[0]
    pieces = [d.text for d in read_documents(file, longest=divide(Corpus.of(data), data).longest)]
    assert len(pieces) == num_documents_made
    assert sorted_characters(" ".join(pieces)) == sorted_characters(LAYOUTS[layout])


def test_pieces_begin_at_chapters():
    longest = 4 * len(chapter("a"))
    counts = ReadCounts()
    paragraphs = [*novel("a", 12).split("\n\n"), None, "A short text.", None]
    pieces = list(assemble(divide_works(paragraphs, longest, counts), counts))
    *chapters, short = pieces
    assert len(chapters) == 12 and all(piece.text.startswith(f"CHAPTER {n}\n") for n, piece in enumerate(chapters, 1))
    assert [piece.is_of_same_work for piece in chapters] == [False] + 11 * [True]
    assert short == Document("A short text.")
    assert (counts.documents, counts.divided_works, counts.pieces) == (13, 1, 12)


@pytest.mark.parametrize(
    "heading",
    [
        "CHAPTER I.", "Chapter 12: The Whale", "Book the First", "PART TWO", "XIV.", "7", "## Results", "Prologue",
        "Kapitel 3", "Chapitre I", "Глава 5", "第十二章 归来", "제 3 장",
    ],
)  # fmt: skip
def test_headings_begin_pieces(heading):
    stream = ["x" * 900, heading, "y" * 900, None]
    assert list(divide_works(stream, 4000, ReadCounts())) == ["x" * 900, "", heading, "y" * 900, None]


@pytest.mark.parametrize(
    "paragraph", ["Chapters were long.", "Part of me wanted to go.", "I saw him.", "Mix. Match.", "1815 was a year."]
)
def test_other_lines_are_not_headings(paragraph):
    stream = ["x" * 900, paragraph, "y" * 900, None]
    assert list(divide_works(stream, 4000, ReadCounts())) == stream


def test_table_of_contents_stays_together():
    contents = [f"Chapter {n}" for n in range(1, 31)]
    stream = [*contents, "x" * 900, None]
    assert list(divide_works(stream, 4000, ReadCounts())) == stream


def test_long_paragraph_is_cut_after_a_sentence():
    draw = random.Random(1)
    text = " ".join("word " * draw.randint(3, 20) + "end." for _ in range(400))
    pieces = [p for p in divide_works([text, None], 1000, ReadCounts()) if p]
    assert all(len(p) <= 1000 and p.endswith("end.") for p in pieces)
    assert " ".join(pieces) == text
    unspaced = "字" * 5000
    assert "".join(p for p in divide_works([unspaced, None], 1000, ReadCounts()) if p) == unspaced


def test_corpus_of_many_documents_is_unchanged(data):
    """Stores from before documents could be divided have the same inputs."""
    corpus = Corpus.of(data)
    division = divide(corpus, data)
    assert division.inputs() == {"held_out": 0.25} and not division.notes()
    folder = prepare(data)
    assert "works" not in json.dumps(TokenStore.open(folder).manifest["splits"])
    assert prepare(changed(data, split_documents="never")) == folder


def test_more_documents_are_held_out_if_too_few(data, tmp_path):
    texts = [(tmp_path / "text" / f"{n:02}.txt").read_text() for n in range(40)]
    share = min(draws(text)[0] for text in texts) * 0.99  # no document is below it
    division = divide(Corpus.of(data), changed(data, held_out=share))
    assert division.longest == 0
    expected = sorted(texts, key=draws)[: sum(draws(text)[0] < division.held_out for text in texts)]
    assert len(expected) >= LEAST_DOCUMENTS and sum(map(len, expected)) <= LARGEST_SHARE * sum(map(len, texts))
    store = TokenStore.open(prepare(changed(data, held_out=share)))
    assert store.split("held_out").num_documents == len(expected)
    assert [note for note in reading_notes(store.manifest) if f"{division.share:.1%} of the text is held out" in note]


def test_enough_is_held_out_to_measure(source):
    text = "\n\n".join(novel(f"{n}") for n in range(2))
    data = source(text)
    division = divide(Corpus.of(data), data)
    (file,) = Corpus.of(data).files[0]
    pieces = [d.text for d in read_documents(file, longest=division.longest)]
    held_out_characters = sum(len(p) for p in pieces if draws(p)[0] < division.held_out)
    assert held_out_characters >= min(MEASURED, MEASURED_SHARE * len(text)) * 0.99


def test_short_source_keeps_the_works_of_others(source, tmp_path):
    """The short source's shard has a single document, which ends with the shard."""
    note = tmp_path / "note.txt"
    note.write_text(novel("note", 1)[:400] + ".")
    data = source(novel("a", 12), novel("b", 12), split_documents="always", held_out=0.001)
    data = changed(data, sources=(*data.sources, f"text:{note}"))
    view = TokenStore.open(prepare(data)).split("train")
    assert view.num_sources == 2 and np.diff(view.source_edges)[1] == 1
    assert view.works is not None and len(view.works) == view.num_documents
    assert len(np.unique(view.works)) == 3


def test_random_segment_b_is_from_another_work(source, tmp_path):
    """Chapters are documents of a work; six novels are six works."""
    names = [f"novel{n}" for n in range(6)]
    (tmp_path / "novels.txt").write_text("\n".join([*VOCAB, *names]))
    texts = [novel(name, 12).replace(".", f" {name}.") for name in names]
    store = TokenStore.open(prepare(source(*texts, vocab=str(tmp_path / "novels.txt"), split_documents="always")))
    view = store.split("train")
    assert view.works is not None and len(view.works) == view.num_documents > 30
    assert len(np.unique(view.works)) == 6
    last = view.tokens(view.sentence_offsets[1:] - 2, np.ones(view.num_sentences, int))
    of_document = np.repeat(np.arange(view.num_documents), np.diff(view.document_offsets))
    spelled = np.array(store.tokenizer().tokens)[last]
    for n in range(6):
        novel_names = {
            w for w in spelled[np.isin(of_document, np.flatnonzero(view.works == n))] if w.startswith("novel")
        }
        assert novel_names == {names[n]}

    def plan(works):
        return build_plan(
            view.document_offsets,
            view.sentence_offsets,
            max_tokens=61,
            short_sequence_probability=0.1,
            seed=1,
            epoch=0,
            works=works,
        )

    def works_of(plan):
        a, b = (view.works[of_document[start]] for start in (plan.a_start, plan.b_start))
        return a[plan.is_random], b[plan.is_random]

    a, b = works_of(plan(view.works))
    assert len(a) > 100 and (a != b).all()
    assert len(set(zip(a.tolist(), b.tolist(), strict=True))) == 30  # every other work is drawn from every work
    a, b = works_of(plan(None))
    assert (a == b).mean() > 0.05
    # With a single work, B is from another chapter.
    alone = plan(np.zeros(view.num_documents, np.int64))
    other = plan(None)
    assert np.array_equal(alone.b_start, other.b_start)


def test_auto_and_always_divide_novels_alike(source):
    data = source(*(novel(f"{n}", 10) for n in range(3)))
    folders = [prepare(changed(data, split_documents=mode)) for mode in ("auto", "always")]
    assert folders[0] == folders[1]


def test_trained_vocabulary_ignores_held_out_pieces(source):
    marked = "\n\n".join(paragraph + f" Qqq{number}zzz." for number, paragraph in enumerate(novel("a").split("\n\n")))
    data = source(marked, vocab="", vocab_size=300)
    corpus = Corpus.of(data)
    division = divide(corpus, data)
    counts = trained_vocabulary._count_unit(corpus.units[0], data, 1.0, division)
    for document in read_documents(corpus.files[0][0], longest=division.longest):
        words = [word.strip(".").lower() for word in document.text.split() if word.startswith("Qqq")]
        assert all((word in counts) == (draws(document.text)[0] >= division.held_out) for word in words)
    assert prepare(data) == prepare(data)


@pytest.mark.parametrize(
    ("texts", "values", "message"),
    [
        ([" \n\n"], {}, r"source text:.*no text in it"),
        ([""], {}, r"source text:.*no text, every file is empty"),
        ([generated_text(1)], {}, r"data\.held_out=0\.01 leaves . of . documents .* add text to the \d+ characters"),
        ([novel("a")], {"split_documents": "never"}, r"leaves 0 of 1 documents for evaluation and 1 for training"),
        ([novel("a")], {"held_out": 0.0}, r"data\.held_out=0\.0 leaves 0 of"),
    ],
)
def test_bad_settings_are_refused_before_tokenizing(source, monkeypatch, texts, values, message):
    monkeypatch.setattr(prepare_module, "make_shards", lambda *_, **__: pytest.fail("text was tokenized"))
    monkeypatch.setattr(trained_vocabulary, "_count_unit", lambda *_, **__: pytest.fail("words were counted"))
    data = source(*texts, vocab="", **values)
    with pytest.raises(ValueError, match=message):
        prepare(data)
    assert not [path for path in Path(data.root).glob("*") if path.name.startswith(("store", "vocab"))]


def test_real_novels_are_divided_at_chapters(real_data, data):
    """Divides six books from Project Gutenberg, and one of them alone."""
    books = [
        "austen-emma",
        "austen-persuasion",
        "carroll-alice",
        "Doyle_Hound_1902",
        "melville-moby_dick",
        "austen-sense",
    ]
    for names in (books[:1], books):
        sources = tuple(f"text:{real_data}/books_en/{name}.txt.xz" for name in names)
        corpus = Corpus.of(changed(data, sources=sources, held_out=0.01))
        division = divide(corpus, changed(data, sources=sources, held_out=0.01))
        for file in itertools.chain(*corpus.files):
            pieces = [d.text for d in read_documents(file, longest=division.longest)]
            assert len(pieces) >= 12
            assert sum("chapter" in piece[:12].lower() for piece in pieces) > 0.4 * len(pieces), file.path
