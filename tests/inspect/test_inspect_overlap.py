"""Overlap of planted evaluation texts, compared with sets of tuples; files of every kind; bad files."""

from __future__ import annotations

import gzip
import json
from collections import defaultdict

import numpy as np
import pytest
from stored_documents import write_store

from bertjax.inspect.evaluation_texts import EvaluationTexts, file_texts, held_out_texts
from bertjax.inspect.near_duplicates import NGrams
from bertjax.inspect.overlap import MEASURES, RunIndex, find_overlaps
from bertjax.text.store.format import TokenStore
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.training import count_for, train_tokenizer
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

WORDS = [f"w{letter}{other}" for letter in "abcdefghijklmnopqrst" for other in "abcdefghij"]
TOKENIZER = WordPiece([*SPECIAL_TOKENS, *WORDS], TextRules(True, True))
GPT3, PALM = MEASURES


def ignore(more):
    """Ignore progress."""


def concatenate(lists):
    return [one for part in lists for one in part]


def tuples(tokens, n):
    return [tuple(tokens[place : place + n]) for place in range(len(tokens) - n + 1)]


@pytest.mark.parametrize("n", [1, 5, 13])
def test_ngrams_do_not_cross_texts(n):
    draw = np.random.default_rng(0)
    texts = [draw.integers(0, 3, length).tolist() for length in (0, 4, 5, 1, 0, 60, 13, 12, 2)]
    lengths = np.array([len(text) for text in texts])
    hashes, counts = NGrams(n, 3)(np.array(concatenate(texts)), lengths)
    expected = [tuples(text, n) for text in texts]
    assert counts.tolist() == [len(runs) for runs in expected]
    by_hash = defaultdict(set)
    for value, run in zip(hashes.tolist(), concatenate(expected), strict=True):
        by_hash[value].add(run)
    assert len(by_hash) == len(set(concatenate(expected))), "one hash for each run"
    assert all(len(runs) == 1 for runs in by_hash.values())


def test_no_text_has_no_ngrams():
    hashes, counts = NGrams(5, 9)(np.zeros(0, np.uint32), np.zeros(0, np.int64))
    assert (len(hashes), len(counts)) == (0, 0)


def test_index_records_seen_hashes():
    draw = np.random.default_rng(0)
    held, others = np.split(draw.integers(0, 2**64, 40_000, dtype=np.uint64), 2)
    index = RunIndex(held)
    for part in np.array_split(np.concatenate([others, held[::3]]), 7):
        index.mark(part)
    assert index.is_marked(held).tolist() == [n % 3 == 0 for n in range(len(held))]
    nothing = RunIndex(held[:0])
    nothing.mark(others)
    assert nothing.is_marked(held[:0]).tolist() == []


def random_text(draw, low, high):
    return draw.integers(5, 205, draw.integers(low, high)).tolist()


def planted():
    """Training documents and texts; many texts contain a part of a training document."""
    draw = np.random.default_rng(7)
    training = [random_text(draw, 1, 120) for _ in range(80)]
    texts = []
    for number in range(60):
        document = training[int(draw.integers(80))]
        start = int(draw.integers(len(document)))
        taken = document[start : start + int(draw.integers(0, 40))] if number % 3 else []
        whole = random_text(draw, 0, 20) + taken + random_text(draw, 0, 6)
        cut = int(draw.integers(len(whole) + 1))
        texts.append([whole[:cut], whole[cut:]] if number % 2 else [whole])
    return training, texts


def as_texts(texts):
    segments = [segment for text in texts for segment in text]
    return EvaluationTexts(
        "planted", 1.0, len(texts), np.array(concatenate(segments), np.uint32), np.array([len(s) for s in segments]),
        np.repeat(np.arange(len(texts)), [len(text) for text in texts]),
    )  # fmt: skip


@pytest.mark.parametrize("documents_per_shard", [None, 7])
def test_overlap_matches_exhaustive_comparison(tmp_path, documents_per_shard):
    training, texts = planted()
    held_out = [training[5], random_text(np.random.default_rng(1), 20, 30)]
    splits = {"train": [[d] for d in training], "held_out": [[d] for d in held_out]}
    store = TokenStore.open(write_store(tmp_path / "store", splits, TOKENIZER, documents_per_shard=documents_per_shard))
    both = [held_out_texts(store.split("held_out"), "held out"), as_texts(texts)]
    overlaps = find_overlaps(store.split("train"), both, TOKENIZER.vocab_size, ignore, 3)
    for overlap, expected in zip(overlaps, ([[d] for d in held_out], texts), strict=True):
        for result in overlap.by_measure:
            n = result.measure.n
            known = {run for document in training for run in tuples(document, n)}
            seen = [[run in known for segment in text for run in tuples(segment, n)] for text in expected]
            shares = [np.mean(one) if one else 0.0 for one in seen]
            flagged = [share > 0 if result.measure is GPT3 else share >= 0.7 for share in shares]
            assert result.texts == sum(map(bool, seen))
            assert (result.runs, result.seen) == (sum(map(len, seen)), sum(map(sum, seen)))
            assert result.flagged == sum(flagged)
            best = sorted((share for share, flag in zip(shares, flagged, strict=True) if flag), reverse=True)
            assert [share for _, share in result.worst] == pytest.approx(best[:3])
            assert all(share == pytest.approx(shares[text]) for text, share in result.worst)
    by_name = [overlap.by_measure for overlap in overlaps]
    assert by_name[0][0].flagged == 1 and by_name[0][0].texts == 2
    assert 10 < by_name[1][0].flagged < 50 and 2 < by_name[1][1].flagged < by_name[1][0].flagged


def test_palm_measure_needs_seven_tenths(tmp_path):
    draw = np.random.default_rng(3)
    document = random_text(draw, 40, 41)
    store = TokenStore.open(write_store(tmp_path / "store", {"train": [[document]]}, TOKENIZER))
    # 14 and 13 of 20 runs of 8: a text of 27 tokens, of which the first 21, or 20, are the document's.
    texts = [[document[:taken] + [5] * (27 - taken)] for taken in (21, 20)]
    (overlap,) = find_overlaps(store.split("train"), [as_texts(texts)], TOKENIZER.vocab_size, ignore, 5)
    assert overlap.by_measure[1].worst == ((0, 0.7),)
    assert (overlap.by_measure[1].seen, overlap.by_measure[1].runs) == (27, 40)


def decode_segments(texts):
    ends = np.cumsum(texts.segment_lengths)
    parts = [texts.ids[b - n : b].tolist() for b, n in zip(ends, texts.segment_lengths, strict=True)]
    result = [[] for _ in range(texts.texts)]
    for text, part in zip(texts.text_numbers.tolist(), parts, strict=True):
        result[text].append(" ".join(TOKENIZER.tokens[n] for n in part))
    return result


FILES = {
    "a.txt": ("waa wab\n\n  \nwac\twad\n", [["waa wab"], ["wac wad"]]),
    "a.tsv": ("1\twaa wab\twac\nwad\n", [["[UNK]", "waa wab", "wac"], ["wad"]]),
    "a.jsonl": (
        json.dumps({"text": "waa", "more": [{"b": "wab wac"}, 3, None]}) + "\n" + json.dumps("w\ud800ad") + "\n",
        [["waa", "wab wac"], ["wad"]],
    ),
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("compressed", [False, True])
def test_line_of_a_file_is_a_text(tmp_path, name, compressed):
    content, expected = FILES[name]
    path = tmp_path / (f"{name}.gz" if compressed else name)
    path.write_bytes(gzip.compress(content.encode()) if compressed else content.encode())
    texts = file_texts(str(path), TOKENIZER)
    assert decode_segments(texts) == expected
    assert (texts.name, texts.share, texts.texts) == (str(path), 1.0, len(expected))


def test_text_of_a_file_is_found_inside_a_document(tmp_path):
    """Including texts without the space that follows another sentence."""
    sentences = [f"The {'cat dog river '[n:]}sat on a mat." for n in range(12)]
    rules = TextRules(False, False, prefix_space=False)
    tokenizer = train_tokenizer("byte_bpe", count_for("byte_bpe", sentences * 9, rules), 300, rules)
    ids, lengths = tokenizer.encode_running(sentences, [True] + [False] * 11)
    document = [part.tolist() for part in np.split(ids, np.cumsum(lengths)[:-1])]
    store = TokenStore.open(write_store(tmp_path / "store", {"train": [document]}, tokenizer))
    (tmp_path / "a.txt").write_text("\n".join([" ".join(sentences[2:5]), *sentences[1:]]))
    texts = file_texts(str(tmp_path / "a.txt"), tokenizer)
    (overlap,) = find_overlaps(store.split("train"), [texts], tokenizer.vocab_size, ignore, 3)
    assert all(result.seen == result.runs > 10 and result.flagged == result.texts for result in overlap.by_measure)


def test_sample_of_a_large_file_ignores_batching(tmp_path, monkeypatch):
    path = tmp_path / "many.txt"
    lines = [" ".join(np.random.default_rng(n).choice(WORDS, 10)) for n in range(2000)]
    path.write_text("\n".join(lines))
    texts = file_texts(str(path), TOKENIZER, most_tokens=6000)
    assert texts.share == 0.25 and 400 < texts.texts < 600 and len(texts.ids) == 10 * texts.texts
    sampled = [one for (one,) in decode_segments(texts)]
    assert sampled == [line for line in lines if line in set(sampled)]
    monkeypatch.setattr("bertjax.inspect.evaluation_texts._LINES_AT_ONCE", 17)
    assert decode_segments(file_texts(str(path), TOKENIZER, most_tokens=6000)) == [[one] for one in sampled]


def test_too_many_held_out_documents_are_sampled(tmp_path):
    draw = np.random.default_rng(0)
    documents = [[random_text(draw, 5, 30)] for _ in range(200)]
    store = TokenStore.open(write_store(tmp_path / "store", {"train": [[[5]]], "held_out": documents}, TOKENIZER))
    view = store.split("held_out")
    texts = held_out_texts(view, "held out", most_tokens=view.num_tokens // 4)
    assert texts.share == pytest.approx(0.25, abs=0.01) and 25 < texts.texts < 75
    assert all(
        text in [" ".join(TOKENIZER.tokens[n] for n in d[0]) for d in documents] for (text,) in decode_segments(texts)
    )


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.txt", b"", "no text in it"),
        ("a.tsv", b"\n \n", "no text in it"),
        ("a.txt", b"waa\xff", "not UTF-8"),
        ("a.jsonl", b'{"a": 1}\n{"b"\n', "line 2: bad JSON"),
        ("a.txt.gz", b"no gzip", "damaged"),
        ("a.txt", None, "cannot be read"),
    ],
)
def test_bad_file_is_named(tmp_path, name, content, message):
    path = tmp_path / name
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(ValueError, match=message) as error:
        file_texts(str(path), TOKENIZER)
    assert str(path) in str(error.value)
