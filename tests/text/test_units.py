"""Units to mask whole: from spans or a list to the planes of a token store, and refusals."""

import itertools
import json
import random

import numpy as np
import pytest
from small_corpus import WORDS, changed, content

from bertjax.input.training_data import open_training_data
from bertjax.storage.progress import no_progress
from bertjax.storage.utf8 import ReadCounts
from bertjax.text import corpus
from bertjax.text.documents import assemble, divide_works
from bertjax.text.prepare import prepare, require_sources
from bertjax.text.spans import MarkedText, Span, get_spans, join, mark_spans, split_spans
from bertjax.text.store.format import TokenStore
from bertjax.text.units import UnitMarker, find_units, list_digest
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.training import count_for, train_tokenizer
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

NAMES = ["river of which", "the", "to in is", "but"]
PLANES = ("continues", "phrases", "entities")


def random_record(seed):
    """Generate a record with spans of two kinds; also returns its words with the units that they belong to."""
    draw = random.Random(seed)
    text, spans, words = "", [], []
    for number in range(draw.randint(8, 14)):
        size = draw.randint(3, 12)
        sentence = draw.choices([*WORDS, "believes", "lifted"], k=size)
        begins = []
        for place, word in enumerate(sentence):
            begins.append(len(text))
            text += (word.capitalize() if not place else word) + (". " if place == size - 1 else " ")
            words.append({"word": word, "first": not place, "word unit": None, "phrase": None, "entity": None})
        for kind in ("phrase", "entity"):
            edges = sorted(draw.sample(range(size + 1), 2 * draw.randint(0, 2)))
            for first, last in zip(edges[::2], edges[1::2], strict=True):
                spans.append([begins[first], begins[last - 1] + len(sentence[last - 1]), kind])
                for word in words[len(words) - size + first : len(words) - size + last]:
                    word[kind] = (number, first)
        if draw.random() < 0.3:
            text += "\n \n"
    return {"text": text, "marks": spans}, words


def expected_plane(words, kind, tokenizer):
    """Compute from a document's words which of its tokens continue a unit of a kind."""
    plane = []
    for place, word in enumerate(words):
        (pieces,) = tokenizer.encode_sentences([word["word"]])
        before = words[place - 1][kind] if place else None
        plane.append(word[kind] is not None and not word["first"] and word[kind] == before)
        plane += [True] * (len(pieces) - 1)
        if place == len(words) - 1 or words[place + 1]["first"]:
            plane.append(False)  # the full stop
    return plane


@pytest.fixture
def marked_data(data, tmp_path):
    """A config for records with spans, and the words of each record."""
    records = [random_record(seed) for seed in range(60)]
    with open(tmp_path / "marks.jsonl", "w") as file:
        file.writelines(json.dumps(record) + "\n" for record, _ in records)
    return changed(
        data,
        sources=(f"jsonl:{tmp_path}/marks.jsonl",),
        units="spans:marks",
        masking="entities",
        split_documents="never",
    ), [words for _, words in records]


def by_text(view, plane):
    """Map the tokens of each document to a plane of theirs."""
    starts = view.sentence_offsets[view.document_offsets[:-1]]
    lengths = np.diff(view.sentence_offsets[view.document_offsets])
    ends = np.cumsum(lengths)[:-1]
    ids = np.split(view.tokens(starts, lengths), ends)
    return {
        tuple(one.tolist()): p.tolist()
        for one, p in zip(ids, np.split(view.continues(starts, lengths, plane), ends), strict=True)
    }


def test_planes_mark_the_words_of_the_spans(marked_data):
    data, documents = marked_data
    store = TokenStore.open(prepare(data))
    store.verify()
    tokenizer = store.tokenizer()
    views = [store.split(split) for split in ("train", "held_out")]
    assert store.manifest["planes"] == dict.fromkeys(PLANES, "|b1") and all(
        view.has_plane("entities") for view in views
    )
    for kind, plane in (("word unit", "continues"), ("phrase", "phrases"), ("entity", "entities")):
        planes = by_text(views[0], plane) | by_text(views[1], plane)
        assert len(planes) == len(documents)
        words_by_ids = {}
        for words in documents:
            ends = [place + 1 == len(words) or words[place + 1]["first"] for place in range(len(words))]
            text = " ".join(word["word"] + " ." * end for word, end in zip(words, ends, strict=True))
            words_by_ids[tuple(tokenizer.encode_sentences([text])[0].tolist())] = words
        assert words_by_ids.keys() == planes.keys()
        for ids, words in words_by_ids.items():
            assert planes[ids] == expected_plane(words, kind, tokenizer), kind
    number = sum(kind == "entity" for seed in range(60) for *_, kind in random_record(seed)[0]["marks"])
    assert store.manifest["provenance"]["units"]["entities"] == number > 20


def test_units_change_no_token(marked_data):
    data, _ = marked_data
    plain = content(prepare(changed(data, units="", masking="tokens")))
    with_units = content(prepare(data))
    assert {name: x for name, x in with_units.items() if not name.endswith((*PLANES, ".json"))} == {
        name: x for name, x in plain.items() if not name.endswith(".json")
    }


def test_planes_ignore_processes_and_file_kind(marked_data, tmp_path, monkeypatch):
    data, _ = marked_data
    pa, pq = pytest.importorskip("pyarrow"), pytest.importorskip("pyarrow.parquet")
    records = [random_record(seed)[0] for seed in range(60)]
    rows = [[dict(zip(("start", "end", "kind"), span, strict=True)) for span in one["marks"]] for one in records]
    rows[3] = None
    records[3]["marks"] = None
    (tmp_path / "parts").mkdir()
    for part in range(8):
        with open(tmp_path / "parts" / f"{part}.jsonl", "w") as file:
            file.writelines(json.dumps(record) + "\n" for record in records[part::8])
        table = pa.table({"text": [record["text"] for record in records[part::8]], "marks": rows[part::8]})
        pq.write_table(table, tmp_path / "parts" / f"{part}.parquet")
    monkeypatch.setattr(corpus, "UNIT_BYTES", 1)  # each file is a unit of work
    store_paths = [
        prepare(changed(data, sources=(f"{kind}:{tmp_path}/parts/*.{kind}",), root=root, workers=workers))
        for kind, root, workers in (
            ("jsonl", data.root, 1),
            ("jsonl", f"{data.root}-2", 2),
            ("parquet", f"{data.root}-3", 1),
        )
    ]
    assert content(store_paths[0]) == content(store_paths[1])
    tables = [{name: x for name, x in content(one).items() if not name.endswith(".json")} for one in store_paths]
    assert tables[0] == tables[2]
    assert sum(name.endswith("entities") for name in tables[0]) >= 8, "a shard for each file"
    kinds = [kind for record in records for *_, kind in record["marks"] or ()]
    for store in map(TokenStore.open, store_paths):
        assert store.manifest["provenance"]["units"] == {
            "phrases": kinds.count("phrase"), "entities": kinds.count("entity")
        }  # fmt: skip


@pytest.mark.parametrize(
    ("spans", "message"),
    [
        ("all", "line 2: field `marks` is str, not a list of spans"),
        ([3], r"line 2: span 3 of `marks`: it must be \[start, end\] or \[start, end, kind\]"),
        ([[0, 3, "phrase", 1]], "line 2: span .* it must be"),
        ([[0, 3.0]], r"line 2: span \[0, 3.0\] of `marks`: start and end must be integers"),
        ([[True, 3]], "start and end must be integers"),
        ([[0, 3, "PER"]], "kind 'PER' is unknown; choose from word, phrase, entity"),
        ([[0, 3, ["PER"]]], r"kind \['PER'\] is unknown; choose from word, phrase, entity"),
        ([{"start": 0, "end": 3, "kind": {}}], "kind {} is unknown; choose from word, phrase, entity"),
        ([[0, 3], [4, 11]], r"span \[4, 11\] of `marks`: \[start, end\) must .* lie within 0 to 10, the length"),
        ([[-1, 3]], "lie within 0 to 10"),
        ([[3, 3]], "must be non-empty"),
        ([[0, 3, "entity"], [2, 5, "entity"]], r"span \[2, 5, 'entity'\] of `marks` overlaps \[0, 3, 'entity'\]"),
    ],
)
def test_bad_spans_are_refused_with_file_and_line(data, tmp_path, spans, message):
    lines = [{"text": "The river.", "marks": [[0, 3]]}, {"text": "To it was.", "marks": spans}]
    (tmp_path / "bad.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    data = changed(data, sources=(f"jsonl:{tmp_path}/bad.jsonl",), units="spans:marks", masking="phrases")
    with pytest.raises(ValueError, match=rf"bad\.jsonl, {message}" if message.startswith("line") else message):
        prepare(data)


def test_invalid_units_are_refused(data, tmp_path):
    for units, message in (
        ("jieba", "write spans:FIELD"),
        ("list:", "write spans:FIELD"),
        (f"list:{tmp_path}/none.txt", "no such file"),
        ("spans:marks", "only records of jsonl, csv, parquet, hf, smiles, .*folder have fields"),
    ):
        with pytest.raises(ValueError, match=f"data.units='{units}'.*{message}"):
            require_sources(changed(data, units=units, masking="phrases"))
    (tmp_path / "units.txt").write_text("the river\tplace\n")
    with pytest.raises(
        ValueError, match=r"line 1: .*a line has a unit, or a unit and its kinds \(word, phrase, entity\)"
    ):
        require_sources(changed(data, units=f"list:{tmp_path}/units.txt", masking="phrases"))
    (tmp_path / "units.txt").write_text("zebra crossing\n")
    with pytest.raises(ValueError, match="no unit was found in the text; check the field's name or the list"):
        prepare(changed(data, units=f"list:{tmp_path}/units.txt", masking="phrases"))


def test_list_edited_during_prepare_is_named(data, tmp_path):
    path = tmp_path / "units.txt"
    path.write_text("the river\n")

    def edit(what, done, total):
        if what == "preparing text, bytes":
            path.write_text("river with\n")

    with pytest.raises(ValueError, match=r"data\.units='list:.*': .*units\.txt was changed while text was prepared"):
        prepare(changed(data, units=f"list:{path}", masking="phrases"), edit)


def test_units_unused_by_stages_are_refused_early(data, tmp_path):
    path = tmp_path / "units.txt"
    path.write_text("the river\nwhich\n")
    with_list = changed(data, units=f"list:{path}", masking="phrases", mask_count="each", max_predictions=60)
    for stages, message in (
        ([changed(with_list, masking="entities")], "data.masking='entities' .*: no unit of this kind is marked"),
        (
            [with_list, changed(with_list, masking="entities")],
            "data.masking='entities' .*: no unit of this kind is marked",
        ),
        ([with_list, changed(with_list, masking="units")], "data.masking='units' .*: no unit of this kind is marked"),
        ([changed(data, masking="units")], "data.masking='units' .*: no unit of this kind is marked"),
        ([changed(with_list, masking="words")], "has no effect: the list marks phrases"),
    ):
        with pytest.raises(ValueError, match=message):
            open_training_data(stages, no_progress)
    assert not (tmp_path / "data").exists()
    open_training_data([with_list, changed(with_list, masking="words")], no_progress)


def test_field_without_spans_is_refused_before_encoding(data, tmp_path):
    with open(tmp_path / "marks.jsonl", "w") as file:
        file.writelines(json.dumps(random_record(seed)[0]) + "\n" for seed in range(60))
    data = changed(data, sources=(f"jsonl:{tmp_path}/marks.jsonl",), units="spans:mark", masking="entities")
    done = []
    with pytest.raises(ValueError, match=r"data\.units='spans:mark': no unit was found in the first 1,000 documents"):
        prepare(data, lambda what, *_: done.append(what))
    assert "preparing text, bytes" not in done


def test_list_finds_the_longest_unit_in_whole_words(tmp_path):
    path = tmp_path / "units.txt"
    path.write_text(
        "New York\nriver boat\nnew york city\tentity\nriver\nriver bank\tentity\nthe\tword\n北京\tentity\n北京大学\n",
        encoding="utf-8",
    )
    find = find_units(f"list:{path}", True)

    def units_in(text):
        return [(text[start:end], kind) for start, end, kind in find(text)]

    assert units_in("In New  York City and New York, newer York; the RIVERS") == [
        ("New  York", "phrase"),
        ("New  York City", "entity"),
        ("New York", "phrase"),
        ("the", "word"),
    ]
    assert units_in("他在北京大学，她在北京。") == [("北京", "entity"), ("北京大学", "phrase"), ("北京", "entity")]
    assert units_in("big river bank, river bank") == [("river", "phrase"), ("river bank", "entity")] * 2
    assert units_in("A river") == [("river", "phrase")]
    assert [*find_units(f"list:{path}", False)("new york and New York")] == [Span(13, 21, "phrase")]
    path.write_text("\ufeffriver\nthe\n", encoding="utf-8")  # a byte order mark is not part of a unit
    assert [*find_units(f"list:{path}", True)("the river")] == [Span(0, 3, "phrase"), Span(4, 9, "phrase")]


def test_kind_without_units_is_not_marked(data, tmp_path):
    (tmp_path / "units.txt").write_text("river with\n")
    store = TokenStore.open(prepare(changed(data, units=f"list:{tmp_path}/units.txt", masking="phrases")))
    train = store.split("train")
    assert (
        train.has_plane("phrases") and not train.has_plane("entities") and store.split("held_out").has_plane("phrases")
    )
    assert not train.has_plane("continues"), "neither a segmenter nor units mark words"


def test_unit_has_all_tokens_that_share_a_character_with_it():
    tokenizer = WordPiece([*SPECIAL_TOKENS, *"北京大学的", "un", "##like", "##ly", "."], TextRules(True, True))
    text = MarkedText("unlikely. \0北京大学的", [Span(2, 6, "entity"), Span(11, 13, "phrase"), Span(11, 15, "entity")])
    ids, lengths = tokenizer.encode([text])
    marker = UnitMarker(get_spans)
    planes = marker.planes(tokenizer, [text], [True], lengths, tokenizer.is_continuation[ids])
    assert planes["continues"].tolist() == [False, True, True, False, *[False] * 5]
    assert planes["phrases"].tolist() == [False, True, True, False, False, True, False, False, False]
    assert planes["entities"].tolist() == [False, False, False, False, False, True, True, True, False]
    assert marker.counts == {"entities": 2, "phrases": 1}


@pytest.mark.parametrize("prefix_space", [False, True])
def test_units_are_marked_with_and_without_prefix_space(prefix_space):
    rules = TextRules(False, False, prefix_space=prefix_space)
    sentences = [MarkedText(f"Rivers were {word}.", [Span(0, 11, "entity")]) for word in ("lifted", "seen", "deep")]
    texts = [*sentences, "Red Rome Ran"] * 5  # so that " Rivers" is one token, and "Rivers" is two
    tokenizer = train_tokenizer("byte_bpe", count_for("byte_bpe", texts, rules), 300, rules)
    bare = [True, False, False]
    ids, lengths = tokenizer.encode_running(sentences, bare)
    continues = tokenizer.is_continuation[ids]
    planes = UnitMarker(get_spans).planes(tokenizer, sentences, bare, lengths, continues)
    units = np.split(ids, np.flatnonzero(~planes["entities"])[1:])
    expected = [unit for word in ("lifted", "seen", "deep") for unit in ("Rivers were", word, ".")]
    assert [tokenizer.decode(unit).strip() for unit in units] == expected


@pytest.mark.parametrize("kind", ["wordpiece", "unigram", "bpe", "byte_bpe"])
def test_offsets_locate_the_tokens_of_every_tokenizer(kind):
    texts = ["the rivers of the north were lifted in winter", "believes in  nothing but rivers", " lifted"] * 5
    rules = TextRules(lowercase=False, strip_accents=False)
    tokenizer = train_tokenizer(kind, count_for(kind, texts, rules), 60 if kind != "byte_bpe" else 280, rules)
    for text in [*texts[:3], "rivers lifted  the  ", ""]:
        (ids,) = tokenizer.encode_sentences([text])
        places = tokenizer.offsets(text)
        assert places.shape == (len(ids), 2)
        spelled = [text[first:last].strip() for first, last in places]
        for surface, number in zip(spelled, ids, strict=True):  # the mark of a word's beginning has its word's place
            assert tokenizer.surfaces[number].decode().strip() in (
                (surface, "") if kind in ("unigram", "bpe") else (surface,)
            )


def test_pieces_keep_their_part_of_the_spans():
    draw = random.Random(4)
    for _ in range(200):
        words = ["".join(draw.choices("abcd", k=draw.randint(1, 5))) for _ in range(draw.randint(1, 12))]
        text = " ".join(words)
        edges = sorted(draw.sample(range(len(text) + 1), 2 * draw.randint(0, min(3, len(text) // 2))))
        whole = MarkedText(text, [Span(a, b, "entity") for a, b in zip(edges[::2], edges[1::2], strict=True)])
        inside = [any(a <= n < b for a, b, _ in whole.spans) for n in range(len(text))]
        cut = sorted(draw.sample(range(len(words) + 1), draw.randint(0, 2)))
        parts = [" ".join(words[a:b]) for a, b in itertools.pairwise([0, *cut, len(words)]) if a < b]
        pieces = [*split_spans(whole, parts)]
        assert pieces == parts
        covered = [any(a <= n < b for a, b, _ in get_spans(piece)) for piece in pieces for n in range(len(piece))]
        letters = [n for n in range(len(text)) if text[n] != " "]
        where = [n for n, letter in enumerate("".join(pieces)) if letter != " "]
        assert [covered[n] for n in where] == [inside[n] for n in letters]
        again = join(pieces, " ")
        assert again == text and [any(a <= n < b for a, b, _ in get_spans(again)) for n in letters] == [
            inside[n] for n in letters
        ]


def test_spans_survive_the_division_of_long_documents():
    sentences = [f"Sentence {n} is about river {n}." for n in range(400)]
    text = " ".join(sentences)
    spans = [[text.index(f"river {n}."), text.index(f"river {n}.") + len(f"river {n}")] for n in range(400)]
    paragraphs = [mark_spans(text, spans, "marks", "here"), None]
    parts = [*assemble(divide_works(iter(paragraphs), 500, ReadCounts()), ReadCounts())]
    assert len(parts) > 20
    units = [s[a:b] for part in parts for s in part.sentences() for a, b, _ in get_spans(s)]
    assert units == [f"river {n}" for n in range(400)]


def test_list_digest_expands_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "units.txt").write_text("the river\n")
    assert list_digest("list:~/units.txt") == list_digest(f"list:{tmp_path}/units.txt")
