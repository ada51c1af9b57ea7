"""Document filters: their rules, which copy stays, and equal stores from any processes and machines."""

import hashlib
import json
import random
from pathlib import Path

import numpy as np
import pytest
from small_corpus import VOCAB, changed, content, generated_text

from bertjax.config import DataConfig
from bertjax.storage.remote import remote_files
from bertjax.text import corpus, screening
from bertjax.text import prepare as module
from bertjax.text.filters import exact_duplicates, gopher_quality, gopher_repetition, near_duplicates
from bertjax.text.filters.filter import Filter
from bertjax.text.filters.registry import FILTERS, choose
from bertjax.text.prepare import prepare, prepare_share, reading_notes, require_sources
from bertjax.text.screening import later_copies
from bertjax.text.store.format import TokenStore
from bertjax.text.store.manifest import read_manifest

EXACT, QUALITY = ("exact_duplicates",), ("gopher_quality", "exact_duplicates")


@pytest.fixture
def data(tmp_path, monkeypatch):
    """Sixty documents in two sources and about ten units; one in five is a copy, another has few words."""
    monkeypatch.setattr(corpus, "UNIT_BYTES", 1500)
    monkeypatch.setattr(corpus, "MAX_UNITS", 1000)
    (tmp_path / "vocab.txt").write_text("\n".join(VOCAB))
    sources = []
    for source in range(2):
        folder = tmp_path / f"text{source}"
        folder.mkdir()
        sources.append(f"jsonl:{folder}/*.jsonl")
        for file in range(6):
            texts = [text_of(100 * source + 10 * file + n) for n in range(3)]
            texts.insert(1, f"  {text_of(0).upper()}\n\n")  # a copy of the first text
            texts.append("The river is by the river.")
            (folder / f"{file}.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    return DataConfig(
        sources=tuple(sources),
        root=str(tmp_path / "data"),
        vocab=str(tmp_path / "vocab.txt"),
        held_out=0.25,
        workers=1,
        filters=EXACT,
    )


def text_of(seed: int, sentences: int = 24) -> str:
    """Generate prose whose words are long enough for Gopher's rules."""
    return generated_text(seed, sentences).replace("the", "water").replace(" on", " under")


def test_first_of_exact_copies_stays(data):
    store = TokenStore.open(prepare(data))
    screened = store.manifest["provenance"]["screened"]
    # 12 copies of the first text, and 11 of the 12 short ones
    assert screened == {"documents": 60, "left_out": {"exact_duplicates: copies of an earlier document": 23}}
    assert sum(store.split(split).num_documents for split in ("train", "held_out")) == 37
    notes = "\n".join(reading_notes(store.manifest))
    assert "documents that data.filters left out: 23 of 60\n            23  exact_duplicates: copies" in notes
    # The first copies stay: a store of files without the later copies has the same documents.
    for path in sorted(Path(data.root).parent.glob("text*/*.jsonl")):
        lines = path.read_text().splitlines()
        first_copies = [
            n for n in range(5) if n not in (1, 4) or (n == 4 and path.parent.name == "text0" and path.stem == "0")
        ]
        path.write_text("".join(f"{lines[n]}\n" for n in first_copies))
    plain = TokenStore.open(prepare(changed(data, filters=())))
    for split in ("train", "held_out"):
        ours, theirs = store.split(split), plain.split(split)
        assert np.array_equal(ours.document_offsets, theirs.document_offsets)
        assert np.array_equal(_tokens(ours), _tokens(theirs))


def _tokens(split):
    return split.tokens(split.sentence_offsets[:-1], np.diff(split.sentence_offsets))


@pytest.mark.parametrize("seed", [0, 1])
def test_note_states_the_held_out_share_of_stored_text(data, tmp_path, seed):
    notice = text_of(900 + seed)
    texts = [*(text_of(1000 * seed + n) for n in range(60)), *[notice] * 200]
    (tmp_path / "copies.jsonl").write_text("".join(f"{json.dumps({'text': text})}\n" for text in texts))
    sources = (f"jsonl:{tmp_path}/copies.jsonl",)
    manifest = read_manifest(prepare(changed(data, sources=sources, held_out=1e-6)))
    train, held_out = (manifest["splits"][split]["tokens"] for split in ("train", "held_out"))
    share = held_out / (train + held_out)
    assert 0.03 < share < 0.1
    assert any(note.startswith(f"{share:.1%} of the text is held out") for note in reading_notes(manifest))


def test_same_bytes_for_processes_and_shards(data, tmp_path):
    data = changed(data, filters=QUALITY)
    alone = content(prepare(data))
    assert content(prepare(changed(data, root=str(tmp_path / "two"), workers=2))) == alone
    shared = changed(data, root=str(tmp_path / "shared"))
    for index in (2, 0):
        done, units = prepare_share(shared, index, 3)
    assert done == units > 8
    assert content(prepare(shared)) == alone


def test_store_in_a_bucket_equals_the_local_one(data):
    expected = content(prepare(data))
    store = prepare(changed(data, root="memory://filters/root"))
    names = [url.rpartition("/")[2] for url in remote_files(f"{store}/**")]
    assert {name: hashlib.sha256((store / name).read_bytes()).hexdigest() for name in names} == expected


def test_killed_comparison_continues_to_the_same_bytes(data, tmp_path, monkeypatch):
    alone = content(prepare(changed(data, root=str(tmp_path / "alone"))))
    processed = []

    def run(stops_after, during):
        def wrapped(function, units, what):
            for number, unit in enumerate(units):
                if what == during and number == stops_after:
                    raise KeyboardInterrupt
                processed.append((what, unit.number))
                yield unit, function(unit)

        return prepare(data, runner=wrapped)

    for stops_after, during in ((3, "comparing documents"), (2, "comparing documents"), (4, "preparing text")):
        with pytest.raises(KeyboardInterrupt):
            run(stops_after, during)
    with monkeypatch.context() as patched:
        patched.setattr(module, "write_verdicts", lambda *_: pytest.fail("the verdicts exist already"))
        store = run(-1, "")
    assert content(store) == alone
    assert len(processed) == len(set(processed))  # no unit was processed twice in a pass


def test_copies_are_sought_among_documents_retained_so_far(data):
    both = read_manifest(prepare(changed(data, filters=QUALITY)))["provenance"]["screened"]["left_out"]
    assert both == {
        "exact_duplicates: copies of an earlier document": 12,
        "gopher_quality: fewer than 50 or more than 100,000 words": 12,
    }
    reverse = read_manifest(prepare(changed(data, filters=QUALITY[::-1])))["provenance"]["screened"]["left_out"]
    assert reverse == {
        "exact_duplicates: copies of an earlier document": 23,
        "gopher_quality: fewer than 50 or more than 100,000 words": 1,
    }


def test_pieces_of_a_work_stay_together(data, tmp_path):
    """If a work's first chapter is left out as a copy, its second does not join the work before it."""
    chapters = [f"Chapter {n}.\n" + "\n".join(generated_text(90 + n, 24).split("\n\n") * 3) for n in range(6)]
    folder = tmp_path / "works"
    folder.mkdir()
    (folder / "a.txt").write_text("\n".join(chapters[:3]))
    (folder / "b.txt").write_text("\n".join([chapters[0], *chapters[3:]]))
    (folder / "c.txt").write_text("\n".join(chapters[4:]))
    data = changed(data, sources=(f"text:{folder}/*.txt",), split_documents="always", filters=EXACT)
    without = read_manifest(prepare(changed(data, filters=())))
    assert sum(_works(without)) == sum(without["splits"][s]["documents"] for s in ("train", "held_out")) > 8
    manifest = read_manifest(prepare(data))
    assert sum(manifest["provenance"]["screened"]["left_out"].values()) > 0
    assert sum(_works(manifest)) == sum(manifest["splits"][split]["documents"] for split in ("train", "held_out"))


def _works(manifest):
    return [
        work
        for split in ("train", "held_out")
        for shard in manifest["splits"][split]["shards"]
        for work in shard["works"]
    ]


@pytest.mark.parametrize("at_once", [1 << 20, 7, 1])
def test_later_copies_match_a_plain_reimplementation(tmp_path, at_once):
    draw = np.random.default_rng(0)
    sizes = [20, 0, 31, 9]
    rows = draw.integers(0, 40, (sum(sizes), 3)).astype(np.uint64)  # 0 equals nothing
    compared = draw.random(len(rows)) < 0.8
    files = []
    for number, part in enumerate(np.split(rows, np.cumsum(sizes)[:-1])):
        files.append(tmp_path / str(number))
        files[-1].write_bytes(part.T.astype("<u8").tobytes())
    expected = [
        bool(compared[n]) and any(compared[m] and (rows[m] == rows[n])[rows[n] > 0].any() for m in range(n))
        for n in range(len(rows))
    ]
    assert 5 < sum(expected) < 40
    assert later_copies(files, sizes, 3, compared, at_once).tolist() == expected


def values(one, *parts):
    signature = one.signature()
    for part in parts:
        signature.add(part)
    return signature.values()


def test_exact_duplicates_disregard_case_and_space():
    exact = exact_duplicates.FILTER
    text = generated_text(1)
    same = (text.upper(), f" {text}\n", text.replace(" ", "\n\n"))
    assert all(np.array_equal(values(exact, text), values(exact, one)) for one in same)
    half = len(text) // 2 + text[len(text) // 2 :].index(" ")
    assert np.array_equal(values(exact, text), values(exact, text[:half], text[half:]))
    assert np.array_equal(values(exact, "e\u0301tude"), values(exact, "\u00c9tude"))
    assert not np.array_equal(values(exact, text), values(exact, text.replace("river", "rivers")))


def edited(text: str, share: float, seed: int) -> str:
    """A text with a share of its words replaced."""
    draw = random.Random(seed)
    return " ".join(f"{draw.random()}" if draw.random() < share else word for word in text.split())


def test_near_duplicates_match_datasketch_lsh():
    """Compares with datasketch's index of the same minima, on texts of every similarity."""
    datasketch = pytest.importorskip("datasketch")
    near = near_duplicates.FILTER
    index = datasketch.MinHashLSH(num_perm=112, params=(14, 8))
    draw = random.Random(3)
    texts = []
    for number in range(60):
        text = " ".join(draw.choices([f"word{n}" for n in range(900)], k=300))
        texts += [text, edited(text, number / 400, number)]
    rows, theirs = [], []
    for number, text in enumerate(texts):
        signature = near.signature()
        signature.add(text)
        theirs.append(bool(index.query(signature._minima)))
        index.insert(str(number), signature._minima)
        rows.append(signature.values())
    rows = np.array(rows)
    ours = [bool((rows[:n] == rows[n]).any()) for n in range(len(rows))]
    assert ours == theirs
    assert not any(ours[::2]) and all(ours[1:8:2]) and 8 < sum(ours) < 55


def test_near_duplicates_handle_parts_and_other_scripts():
    pytest.importorskip("datasketch")
    near = near_duplicates.FILTER
    text = generated_text(5, 60)
    half = text.index(" ", len(text) // 2)
    assert np.array_equal(values(near, text), values(near, text[:half], text[half:]))
    assert np.array_equal(values(near, text), values(near, text.upper().replace(".", "!")))
    assert np.array_equal(values(near, "By the river"), values(near, "by the river."))
    assert not (values(near, "by the river") == values(near, "by the rivers")).any()
    assert not values(near, "...").any() and not values(near).any()
    chinese = "他在河边看见了一条很长的船。" * 3
    assert (values(near, chinese) == values(near, chinese.replace("。", ""))).all()


def test_near_duplicates_retain_one_document(data):
    pytest.importorskip("datasketch")
    paths = sorted(Path(data.root).parent.glob("text1/*.jsonl"))
    for number, path in enumerate(paths):
        text = edited(generated_text(7, 60), 0.01, number)
        path.write_text(path.read_text() + json.dumps({"text": text}) + "\n")
    store = TokenStore.open(prepare(changed(data, filters=(*EXACT, "near_duplicates"))))
    left_out = store.manifest["provenance"]["screened"]["left_out"]
    assert left_out["near_duplicates: near copies of an earlier document"] >= len(paths) - 1
    assert left_out["exact_duplicates: copies of an earlier document"] == 23


GOOD = " ".join(text_of(2).split())


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (GOOD, ""),
        ("word " * 49, "fewer than 50 or more than 100,000 words"),
        ("word " * 50, ""),
        ("a " * 100_001, "fewer than 50 or more than 100,000 words"),
        ("ab cd " * 40, "words shorter than 3 or longer than 10 letters"),
        ("internationalisation " * 60, "words shorter than 3 or longer than 10 letters"),
        (GOOD + " ###" * 60, "hashes or ellipses per word"),
        (GOOD.replace(" w", "... w").replace(" r", "… r"), "hashes or ellipses per word"),
        ("\n".join(f"- {word} words" for word in GOOD.split()), "lines begin with a bullet"),
        (
            "\n".join(f"{line} river which water under ..." for line in GOOD.split(".")),
            "end with an ellipsis",
        ),
        ("1234 5678 " * 60 + GOOD, "of the words have a letter"),
    ],
)
def test_gopher_quality_names_the_broken_rule(text, rule):
    reason = gopher_quality.broken_rule(text)
    assert rule in reason and bool(rule) == bool(reason)
    assert not reason or reason in gopher_quality.FILTER.reasons


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        (" ".join(f"word{n}" for n in range(99)), ""),
        ("\n".join(f"line {n % 60} {n % 60}" for n in range(99)), "in repeated lines"),
        ("\n".join(["x", "a line"] * 2 + [f"one{n} line{n} more{n}" for n in range(9)]), ""),
        ("\n".join(["a very long line that is repeated " * 5] * 2 + [f"{n}" for n in range(9)]), "in repeated lines"),
        (" ".join(f"and so {n}" for n in range(99)), "one run of 2 words"),
        (" ".join(f"wait for it{n % 50}" if n % 2 else f"{n}" for n in range(300)), "one run of 2 words"),
        ("single", ""),
    ],
)
def test_gopher_repetition_names_the_broken_rule(text, rule):
    reason = gopher_repetition.broken_rule(text)
    assert rule in reason and bool(rule) == bool(reason)


@pytest.mark.parametrize(
    ("filters", "sources", "message"),
    [
        (("exact_duplicate",), None, "'exact_duplicate' is unknown; did you mean exact_duplicates?"),
        (("dedup",), None, "'dedup' is unknown; choose from gopher_quality"),
        (EXACT * 2, None, "names a filter twice"),
        (("gopher_quality",), ("smiles:{0}/m.smi",), "is for prose, and source smiles:"),
    ],
)
def test_invalid_filters_are_refused(data, tmp_path, filters, sources, message):
    (tmp_path / "m.smi").write_text("CCO a\nCC b\n")
    sources = tuple(source.format(tmp_path) for source in sources) if sources else data.sources
    with pytest.raises(ValueError, match=message.replace("?", r"\?")):
        require_sources(changed(data, filters=filters, sources=sources))


def test_filters_that_leave_too_few_documents_are_refused(data):
    for path in Path(data.root).parent.glob("text*/*.jsonl"):
        path.write_text("".join(f"{json.dumps({'text': f'The river {n} of {path}.'})}\n" for n in range(5)))
    with pytest.raises(ValueError, match="leaves 0 documents for training") as error:
        prepare(changed(data, filters=("gopher_quality",)))
    assert "60  gopher_quality: fewer than 50" in str(error.value)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"reasons": "long", "broken_rule": str}, "reasons='long'; give a tuple"),
        ({"reasons": ("long",)}, "give it `broken_rule` or `signature`, and not both"),
    ],
)
def test_incomplete_filter_is_refused(fields, message):
    with pytest.raises(ValueError, match=message):
        Filter("mine", **fields)


def test_unlisted_reason_of_a_filter_is_refused():
    mine = Filter("mine", ("long",), lambda text: text)
    assert (screening.judge([mine], "long"), screening.judge([mine], "")) == (1, 0)
    with pytest.raises(
        ValueError, match=r"filter 'mine' returned 'short', which is not one of its reasons \('long',\)"
    ):
        screening.judge([mine], "short")


def test_verdicts_fit_into_a_byte():
    assert len(screening.list_reasons([*FILTERS.values()])) < 256  # a verdict is a byte
    assert [one.name for one in choose(QUALITY)] == [*QUALITY]
