"""Pieces match transformers' `is_split_into_words`; every word of a long sentence is predicted once."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.finetune.data.examples import TaggedSentence
from bertjax.finetune.data.tags import read_tagged, tag_layout, tags_in
from bertjax.finetune.encoding.tag_windows import TagCounts, TagWindows, decode_tags, most_frequent_tag, tag_windows
from bertjax.finetune.kinds.tokens import tag_figures
from bertjax.tokenization.loading import load_tokenizer
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

CASED = TextRules(lowercase=False, strip_accents=False)
TREEBANKS = ("ar_pud", "en_pud", "hi_pud", "ja_gsd", "ko_pud", "ru_pud", "th_pud", "zh_pud")
TINY = WordPiece([*SPECIAL_TOKENS, *"abcdefgh", *(f"##{letter}" for letter in "abcdefgh")], CASED)


@pytest.fixture(scope="module")
def multilingual(real_data: Path) -> Tokenizer:
    return load_tokenizer(real_data / "vocab" / "bert-base-multilingual-cased", CASED)


@pytest.fixture(scope="module")
def theirs(real_data: Path):
    transformers = pytest.importorskip("transformers")
    vocabulary = real_data / "vocab" / "bert-base-multilingual-cased" / "vocab.txt"
    return transformers.BertTokenizerFast(str(vocabulary), do_lower_case=False)


def sentence(words: str, tags: str | None = None) -> TaggedSentence:
    return TaggedSentence(f"f:{len(words)}", words, tuple(words.split()), None if tags is None else tuple(tags.split()))


def make_windows(
    sentences: list[TaggedSentence], labels: str, max_length: int, tokenizer: Tokenizer = TINY, **options
) -> tuple[TagWindows, TagCounts]:
    counts = TagCounts()
    return tag_windows(sentences, labels.split(), tokenizer, max_length, counts, **options), counts


def split(windows: TagWindows, flat: np.ndarray) -> list[list]:
    """Split values per token by row, without [CLS] and [SEP]."""
    return [part[1:-1].tolist() for part in np.split(flat, windows.rows.offsets[1:-1])]


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.long] * (number % 2)) for number, name in enumerate(TREEBANKS)]
)
def test_pieces_equal_transformers(real_data: Path, multilingual: Tokenizer, theirs, name: str) -> None:
    (path,) = (real_data / "pos").glob(f"{name}*")
    sentences = read_tagged(path, tag_layout(path))
    labels, counts = tags_in(sentences), TagCounts()
    windows = tag_windows(sentences, labels, multilingual, 512, counts)
    encoded = theirs([list(s.words) for s in sentences], is_split_into_words=True)
    offsets, flat = windows.rows.offsets, windows.rows.tokens
    assert len(windows.rows) == len(sentences) == len(encoded["input_ids"]) and counts.windowed == 0
    first_word = 0
    for n, tagged in enumerate(sentences):
        inside = slice(offsets[n], offsets[n + 1])
        assert flat["input_ids"][inside].tolist() == encoded["input_ids"][n]
        words = encoded.word_ids(n)
        # Only the first piece of each word has a label, like in run_ner.py.
        first = [None if word == before else word for before, word in itertools.pairwise([None, *words])]
        assert flat["labels"][inside].tolist() == [0 if w is None else labels.index(tagged.tags[w]) for w in first]
        assert flat["label_weights"][inside].tolist() == [float(w is not None) for w in first]
        assert windows.word[inside].tolist() == [-1 if w is None else first_word + w for w in first]
        first_word += len(tagged.words)


@pytest.mark.parametrize("name", ["en_pud", "th_pud"])
def test_long_real_sentences_are_split_into_windows(real_data: Path, multilingual: Tokenizer, name: str) -> None:
    (path,) = (real_data / "pos").glob(f"{name}*")
    sentences = read_tagged(path, tag_layout(path))
    labels, counts = tags_in(sentences), TagCounts()
    windows = tag_windows(sentences, labels, multilingual, 24, counts)
    assert counts.windowed > 500 and counts.truncated < 10 and windows.rows.lengths.max() <= 24
    predicted = windows.word[windows.word >= 0]
    assert sorted(predicted.tolist()) == list(range(counts.words)) and counts.without_pieces == 0
    assert (windows.rows.tokens["label_weights"] == (windows.word >= 0)).all()
    perfect = np.eye(len(labels), dtype=np.float32)[windows.rows.tokens["labels"]]
    assert decode_tags(windows, perfect, labels, "?") == [list(s.tags) for s in sentences]


def test_long_sentence_gets_overlapping_windows() -> None:
    windows, counts = make_windows([sentence("a bb c d e f g h", "A B A A A A A B")], "A B", max_length=6)
    flat = windows.rows.tokens
    texts = [" ".join(TINY.tokens[i] for i in ids) for ids in split(windows, flat["input_ids"])]
    assert texts == ["a b ##b c", "b ##b c d", "c d e f", "e f g h"]
    # Each word is predicted where its first piece has most context on the shorter side.
    assert split(windows, windows.word) == [[0, 1, -1, -1], [-1, -1, 2, -1], [-1, 3, 4, -1], [-1, 5, 6, 7]]
    assert split(windows, flat["labels"]) == [[0, 1, 0, 0], [0] * 4, [0] * 4, [0, 0, 0, 1]]
    assert (flat["label_weights"] == (windows.word >= 0)).all()
    assert (counts.windowed, counts.windows, counts.truncated) == (1, 4, 0)
    assert counts.notices(6) == ["1 of 1 examples were longer than 6 tokens and became 4 windows"]


def test_word_longer_than_a_row_is_truncated() -> None:
    windows, counts = make_windows([sentence("a bcdefg a a", "A B A A")], "A B", max_length=6)
    texts = [" ".join(TINY.tokens[i] for i in ids) for ids in split(windows, windows.rows.tokens["input_ids"])]
    assert texts == ["a", "b ##c ##d ##e", "a a"]
    assert sorted(windows.word[windows.word >= 0].tolist()) == [0, 1, 2, 3]
    assert (counts.truncated, counts.tokens_cut, counts.tokens, counts.windows) == (1, 2, 9, 3)


def test_words_without_pieces_get_a_fixed_tag() -> None:
    tagged = [sentence("a \u00ad b", "A B A"), sentence("\u00ad", "B"), sentence("c \u00ad")]
    windows, counts = make_windows(tagged, "A B", max_length=8)
    assert windows.rows.lengths.tolist() == [4, 2, 3]
    assert windows.rows.tokens["label_weights"].tolist() == [0, 1, 1, 0, 0, 0, 0, 0, 0]
    assert (windows.rows.tokens["labels"] == 0).all()
    logits = np.zeros((9, 2), np.float32)
    logits[2, 1] = 1
    assert decode_tags(windows, logits, ["A", "B"], "C") == [["A", "C", "B"], ["C"], ["A", "C"]]
    assert counts.without_pieces == 3 and counts.empty == 1 and "3 of 6 words have no token" in counts.notices(8)[-1]
    assert most_frequent_tag(tagged) == "A" and most_frequent_tag([*tagged[:1], sentence("a", "B")]) == "A"


def test_tag_figures_by_hand() -> None:
    tagged = [sentence("a b", "B-X I-X"), sentence("c", "O")]
    assert tag_figures(("accuracy",), tagged, [["B-X", "O"], ["O"]]) == {"accuracy": 2 / 3}
    figures = tag_figures(("f1", "precision", "recall"), tagged, [["B-X", "I-X"], ["B-Y"]])
    assert figures == {"f1": 2 / 3, "precision": 0.5, "recall": 1.0}


def test_label_weights_are_at_first_pieces() -> None:
    windows, _ = make_windows([sentence("a b cc", "A B A")], "A B", 8, label_weights=[0.5, 2.0])
    assert windows.rows.tokens["label_weights"].tolist() == [0, 0.5, 2, 0.5, 0, 0]
    assert {name: part.dtype.name for name, part in (windows.rows.tokens | windows.rows.rows).items()} == {
        **dict.fromkeys(("input_ids", "token_type_ids", "sequence_ids", "labels", "cls_positions"), "int32"),
        "label_weights": "float32",
    }


def test_tag_windows_reject_bad_input() -> None:
    with pytest.raises(ValueError, match=r"f:3: tag 'C' of 'b' is not one of A, B"):
        make_windows([sentence("a b", "A C")], "A B", 8)
    with pytest.raises(ValueError, match=r"f:9: 7 tokens, special ones included, over the max length of 6; raise"):
        make_windows([sentence("a b", "A B"), sentence("a b c d e")], "A B", 6, strict=True)
    with pytest.raises(ValueError, match=r"must leave room"):
        make_windows([sentence("a b")], "A B", 2)
    windows, _ = make_windows([sentence("a b")], "A B", 6, strict=True)
    with pytest.raises(ValueError, match="diverged"):
        decode_tags(windows, np.full((4, 2), np.nan, np.float32), ["A", "B"], "A")


CHINESE = WordPiece([*SPECIAL_TOKENS, *(chr(0x4E00 + n) for n in range(1200))], CASED)  # one piece each


@settings(max_examples=150)
@given(
    st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=30), min_size=1, max_size=4),
    st.integers(3, 12),
)
def test_every_word_is_predicted_once_with_most_context(sizes: list[list[int]], max_length: int) -> None:
    """Every word with pieces is predicted once, in the window with most context; every window adds words."""
    ends = np.cumsum([0, *itertools.chain(*sizes)]).tolist()
    spans = [range(start, end) for start, end in itertools.pairwise(ends)]
    words = ["".join(chr(0x4E00 + piece) for piece in span) or "\u00ad" for span in spans]
    parts = np.split(np.array(words, object), np.cumsum([len(part) for part in sizes])[:-1])
    sentences = [TaggedSentence("f:1", "", tuple(part), None) for part in parts]
    windows, counts = make_windows(sentences, "A", max_length, CHINESE)
    rows = [[piece - len(SPECIAL_TOKENS) for piece in ids] for ids in split(windows, windows.rows.tokens["input_ids"])]
    room, starts = max_length - 2, {span[0] for span in spans if span}
    for row in filter(None, rows):
        assert row == list(range(row[0], row[-1] + 1)) and row[0] in starts and len(row) <= room
        assert row[-1] + 1 in ends or len(row) == room
    reached = [row[-1] for row in rows if row]
    assert reached == sorted({*reached})
    assert counts.tokens - counts.tokens_cut == len({piece for row in rows for piece in row})
    assert counts.tokens_cut == sum(max(len(span) - room, 0) for span in spans)
    assert len(rows) == len(sizes) - counts.windowed + counts.windows
    predictions = [
        (word, number) for number, row in enumerate(split(windows, windows.word)) for word in row if word >= 0
    ]
    for word, number in predictions:
        first = spans[word][0]
        context = [min(first - row[0], row[-1] - first) if first in row else -1 for row in rows]
        assert number == context.index(max(context))
        assert rows[number][split(windows, windows.word)[number].index(word)] == first
    assert sorted(word for word, _ in predictions) == [word for word, span in enumerate(spans) if span]
