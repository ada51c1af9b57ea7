"""Rows of tokens match transformers' tokenizer, including truncation."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from bertjax.finetune.data.examples import TextExample
from bertjax.finetune.encoding.rows import TaskRows
from bertjax.finetune.kinds import KINDS
from bertjax.finetune.load import read_split, task_labels
from bertjax.finetune.tasks import find_task
from bertjax.input.lengths import LengthCounts
from bertjax.tokenization.tokenizer import TextRules
from bertjax.tokenization.wordpiece import WordPiece

WORDS = [chr(ord("a") + n) for n in range(20)]
TOKENIZER = WordPiece(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *WORDS], TextRules(True, True))
CLS, SEP = TOKENIZER.cls_id, TOKENIZER.sep_id
LONG, LABELS = 64, ("no", "yes")


def example(*texts: str, label: str | float | None = "yes", line: int = 1) -> TextExample:
    return TextExample(f"a.tsv:{line}", str(line), texts, label)


def encode_rows(
    examples: list[TextExample], kind: str = "sequence", labels=LABELS, max_length=LONG, **options
) -> TaskRows:
    return KINDS[kind].encode(examples, labels, TOKENIZER, max_length, LengthCounts(), **options)


def row(rows: TaskRows, number: int) -> dict[str, list[int]]:
    begin, end = rows.offsets[number : number + 2]
    return {name: values[begin:end].tolist() for name, values in rows.tokens.items()}


def ids(text: str) -> list[int]:
    return [TOKENIZER.tokens.index(word) for word in text.split()]


def test_texts_and_pairs_are_encoded() -> None:
    rows = encode_rows([example("a b c"), example("", label="no"), example("d", label=None)])
    assert row(rows, 0) == {
        "input_ids": [CLS, *ids("a b c"), SEP], "token_type_ids": [0] * 5, "sequence_ids": [1] * 5,
    }  # fmt: skip
    assert row(rows, 1)["input_ids"] == [CLS, SEP] and len(rows) == 3 and rows.lengths.tolist() == [5, 2, 3]
    assert rows.rows["labels"].tolist() == [[1], [0], [0]] and rows.rows["label_weights"].tolist() == [[1], [1], [0]]
    rows = encode_rows([example("a b", "c")])
    assert row(rows, 0) == {
        "input_ids": [CLS, *ids("a b"), SEP, *ids("c"), SEP], "token_type_ids": [0, 0, 0, 0, 1, 1],
        "sequence_ids": [1] * 6,
    }  # fmt: skip
    dtypes = {name: values.dtype for name, values in (rows.tokens | rows.rows).items()}
    assert dtypes.pop("label_weights") == np.float32 and set(dtypes.values()) == {np.dtype(np.int32)}
    assert rows.offsets.dtype == np.int64 and rows.rows["cls_positions"].tolist() == [[0]]


def test_choices_share_a_row() -> None:
    rows = encode_rows(
        [example("a b", "c", "d e", label="1"), example("f", "g", "h", label=None)], "choice", ("0", "1")
    )
    one, two = [CLS, *ids("a b"), SEP, *ids("c"), SEP], [CLS, *ids("a b"), SEP, *ids("d e"), SEP]
    assert row(rows, 0) == {
        "input_ids": one + two, "token_type_ids": [0, 0, 0, 0, 1, 1, 0, 0, 0, 0, 1, 1, 1],
        "sequence_ids": [1] * 6 + [2] * 7,
    }  # fmt: skip
    assert rows.rows["cls_positions"].tolist() == [[0, 6], [0, 5]]
    assert rows.rows["labels"].tolist() == [1, 0] and rows.rows["label_weights"].tolist() == [1, 0]


def test_vector_pair_has_two_sequences() -> None:
    rows = encode_rows([example("a b", "c", label=None)], "vector", ())
    assert row(rows, 0) == {
        "input_ids": [CLS, *ids("a b"), SEP, CLS, *ids("c"), SEP], "token_type_ids": [0] * 7,
        "sequence_ids": [1] * 4 + [2] * 3,
    }  # fmt: skip
    assert rows.rows["cls_positions"].tolist() == [[0, 4]] and rows.rows["label_weights"].tolist() == [1]


def test_equal_texts_have_equal_numbers() -> None:
    pairs = [("a", "b c"), ("a", "d"), ("e", "b c"), ("d", "D"), ("a b", "c")]
    texts = encode_rows([example(*pair, label=None) for pair in pairs], "vector", ()).rows["texts"]
    assert texts.dtype == np.int32 and texts.shape == (5, 2)
    for one, number in zip(np.ravel(pairs), texts.ravel(), strict=True):
        assert [one == other for other in np.ravel(pairs)] == (texts.ravel() == number).tolist()


def test_label_weights_of_regression_and_classes() -> None:
    rows = encode_rows([example("a", label=2.5), example("a", label=None)], "regression", ())
    assert rows.rows["labels"].dtype == np.float32 and rows.rows["labels"].tolist() == [[2.5], [0]]
    assert rows.rows["label_weights"].tolist() == [[1], [0]]
    rows = encode_rows([example("a"), example("a", label="no"), example("a", label=None)], label_weights=[0.25, 3])
    assert rows.rows["label_weights"].tolist() == [[3], [0.25], [0]]


def run_classifier_pair(a: int, b: int, room: int) -> tuple[int, int]:
    """Truncate like google-research/bert: one token at a time from the longer text, from the second in a tie."""
    while a + b > room:
        if a > b:
            a -= 1
        else:
            b -= 1
    return a, b


@settings(max_examples=200)
@given(st.integers(0, 60), st.integers(0, 60), st.integers(8, 70))
def test_longer_text_is_truncated_first(a: int, b: int, max_length: int) -> None:
    counts, room = LengthCounts(), max_length - 3
    pair = example(" ".join(["a"] * a), " ".join(["b"] * b))
    rows = KINDS["sequence"].encode([pair], LABELS, TOKENIZER, max_length, counts)
    lengths = [rows.tokens["input_ids"].tolist().count(token) for token in ids("a b")]
    expected = run_classifier_pair(a, b, room)
    both_are_cut = a + b > room and min(a, b) > room // 2
    if both_are_cut and room % 2 and a <= b:
        expected = expected[0] - 1, expected[1] + 1  # the one token that `tokenizers` gives to the other text
    assert tuple(lengths) == expected
    cut = max(a + b - room, 0)
    assert counts == LengthCounts(1, a + b, int(cut > 0), cut, empty=int(not a or not b))


def test_long_examples_are_reported_or_rejected() -> None:
    counts = LengthCounts()
    examples = [example("a b"), example("a " * 9, line=2), example("a " * 12, line=3), example("\u200b", line=4)]
    rows = KINDS["sequence"].encode(examples, LABELS, TOKENIZER, 8, counts)
    assert rows.lengths.tolist() == [4, 8, 8, 2] and counts == LengthCounts(4, 23, 2, 9, empty=1)
    assert counts.notices(8) == [
        "2 of 4 examples were cut to 8 tokens: 9 of 23 tokens were left out",
        "1 of 4 examples have a text without any token",
    ]
    assert LengthCounts(3, 4).notices(8) == []
    with pytest.raises(ValueError, match=r"a.tsv:2: 11 tokens, special ones included, over the max length of 8"):
        encode_rows(examples, max_length=8, strict=True)
    with pytest.raises(ValueError, match=r"a.tsv:1: 9 tokens"):
        encode_rows([example("a", "b", "a " * 5, label="0")], "choice", ("0", "1"), max_length=8, strict=True)
    encode_rows(examples, max_length=14, strict=True)
    with pytest.raises(ValueError, match="max length 7: it must be at least 8 tokens"):
        encode_rows(examples, max_length=7)


@pytest.mark.parametrize(
    ("examples", "kind", "labels", "message"),
    [
        ([example("a"), example("a", label="perhaps", line=2)], "sequence", LABELS,
         r"a.tsv:2: label 'perhaps' is not one of no, yes;"),
        ([example("a", "b", "c", label="2")], "choice", ("0", "1"), r"a.tsv:1: label '2' is not one of 0, 1;"),
        ([example("a", "b", "c", label="0")], "choice", ("0", "1", "2"),
         r"a.tsv:1: 2 choices, but every example must have 3"),
        ([example("a", "b"), example("a", line=2)], "sequence", LABELS,
         r"a.tsv:2: 1 texts, but every example must have 2"),
        ([example("a", "b", "c")], "sequence", LABELS, r"a.tsv:1: 3 texts, but every example must have 2"),
        ([example("a")], "vector", (), r"a.tsv:1: 1 texts, but every example must have 2"),
        ([], "sequence", LABELS, r"no examples to encode"),
    ],
)  # fmt: skip
def test_encode_rejects_bad_examples(
    examples: list[TextExample], kind: str, labels: tuple[str, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        encode_rows(examples, kind, labels)


def test_encoding_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    examples = [example(" ".join(WORDS[: n % 7]), " ".join(WORDS[: n % 5]), line=n) for n in range(50)]
    whole = encode_rows(examples)
    monkeypatch.setattr("bertjax.finetune.encoding.texts._AT_ONCE", 7)
    parts = encode_rows(examples)
    np.testing.assert_array_equal(whole.offsets, parts.offsets)
    for name in whole.tokens:
        np.testing.assert_array_equal(whole.tokens[name], parts.tokens[name])


@pytest.fixture(scope="module")
def uncased(real_data: Path) -> tuple[WordPiece, object]:
    """The published vocabulary in our tokenizer and in transformers'."""
    transformers = pytest.importorskip("transformers")
    path = real_data / "vocab" / "bert-base-uncased" / "vocab.txt"
    return WordPiece.load(path, TextRules(True, True)), transformers.BertTokenizer(str(path), do_lower_case=True)


# 24 and 128 leave an odd number of tokens for the texts, 33 an even one.
@pytest.mark.parametrize("max_length", [24, 33, 128])
@pytest.mark.parametrize("name", ["mrpc", "rte", "wnli", "sst2", "cola"])
def test_pairs_match_transformers_on_real_files(real_data: Path, uncased, name: str, max_length: int) -> None:
    ours, theirs = uncased
    task, counts = find_task(name), LengthCounts()
    examples = read_split(task, real_data / "glue", "dev")
    rows = task.kind.encode(examples, task.labels, ours, max_length, counts)
    texts = [list(column) for column in zip(*(example.texts for example in examples), strict=True)]
    expected = theirs(*texts, truncation="longest_first", max_length=max_length)
    for key in ("input_ids", "token_type_ids"):
        np.testing.assert_array_equal(rows.tokens[key], np.concatenate(expected[key]))
    np.testing.assert_array_equal(rows.lengths, [len(row) for row in expected["input_ids"]])
    full = theirs(*texts, add_special_tokens=True)["input_ids"]
    assert counts.truncated == sum(len(row) > max_length for row in full)
    assert counts.tokens_cut == sum(max(len(row) - max_length, 0) for row in full)
    assert [task.labels[n] for n in rows.rows["labels"][:, 0]] == [example.label for example in examples]


@pytest.mark.parametrize("max_length", [16, 17, 64])
def test_choices_match_transformers_on_real_files(real_data: Path, uncased, max_length: int) -> None:
    ours, theirs = uncased
    task = find_task("swag")
    examples = read_split(task, real_data / "swag" / "swag_sample", "dev")
    rows = task.kind.encode(examples, task_labels(task, examples), ours, max_length, LengthCounts())
    starts = [example.texts[0] for example in examples for _ in range(4)]
    ends = [end for example in examples for end in example.texts[1:]]
    expected = theirs(starts, ends, truncation="longest_first", max_length=max_length)
    for key in ("input_ids", "token_type_ids"):
        np.testing.assert_array_equal(rows.tokens[key], np.concatenate(expected[key]))
    begins = np.cumsum([0, *(len(row) for row in expected["input_ids"])])[:-1].reshape(-1, 4)
    np.testing.assert_array_equal(rows.rows["cls_positions"] + rows.offsets[:-1, None], begins)
