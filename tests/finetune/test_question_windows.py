"""Windows and targets match transformers' tokenizer and run_qa.py on every question of real files."""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from bertjax.finetune.data.examples import Question
from bertjax.finetune.data.questions import read_questions
from bertjax.finetune.encoding.question_windows import QuestionCounts, QuestionWindows, WindowSizes, question_windows
from bertjax.finetune.encoding.texts import encode_with_spans
from bertjax.tokenization.loading import load_tokenizer
from bertjax.tokenization.tokenizer import TextRules, Tokenizer
from bertjax.tokenization.training import count_for, train_tokenizer
from bertjax.tokenization.wordpiece import SPECIAL_TOKENS, WordPiece

UNCASED = TextRules(lowercase=True, strip_accents=True)
FILES = {"xquad.en.json": (False, 1190), "cs224n-dev-v2.0.json.xz": (True, 6078)}
LETTERS = [*SPECIAL_TOKENS, *"abcdefghijklmnopqrstuvwxyz.?", *(f"##{letter}" for letter in "abcdefghij")]


@pytest.fixture(scope="module")
def tiny() -> WordPiece:
    """A tokenizer with a token for every letter and every continuation letter."""
    return WordPiece(LETTERS, UNCASED)


@pytest.fixture(scope="module")
def uncased(real_data: Path) -> Tokenizer:
    return load_tokenizer(real_data / "vocab" / "bert-base-uncased", UNCASED)


def make_question(
    context: str, question: str = "a b ?", *answers: tuple[str, int], impossible: bool = False
) -> Question:
    return Question(f"made-up.json: question {context[:9]}", context, question, context, answers, impossible)


def make_windows(
    questions: list[Question], tokenizer: Tokenizer, **sizes: int
) -> tuple[QuestionWindows, QuestionCounts]:
    counts = QuestionCounts()
    return question_windows(questions, tokenizer, WindowSizes(**sizes), counts), counts


def list_rows(windows: QuestionWindows) -> Iterator[tuple[int, list[int], list[int], list, int, int]]:
    """Yield (question, ids, token types, spans or None, start, end) of each row."""
    rows = windows.rows
    for n, question in enumerate(windows.question.tolist()):
        inside = slice(rows.offsets[n], rows.offsets[n + 1])
        ids, types = (rows.tokens[name][inside].tolist() for name in ("input_ids", "token_type_ids"))
        spans = [None if pair[0] < 0 else tuple(pair) for pair in windows.spans[inside].tolist()]
        yield question, ids, types, spans, int(rows.rows["starts"][n, 0]), int(rows.rows["ends"][n, 0])


def run_qa_target(offsets: list, places: list[int], question: Question) -> tuple[int, int]:
    """Find a window's target like run_qa.py; `places` are the positions of the text's tokens in the row."""
    if not question.answers:
        return 0, 0
    text, start = question.answers[0]
    end = start + len(text)
    first, last = places[0], places[-1]
    if not (offsets[first][0] <= start and offsets[last][1] >= end):
        return 0, 0
    while first < len(offsets) and offsets[first][0] <= start:
        first += 1
    while offsets[last][1] >= end:
        last -= 1
    # The last [SEP] has the span (0, 0), so that the walk reaches it if the answer starts in the last token.
    return min(first - 1, places[-1]), last + 1


def transformers_rows(questions: list[Question], tokenizer, sizes: WindowSizes) -> list[tuple]:
    """Like `list_rows`, with transformers' tokenizer. Its `stride` is the overlap, so that each length needs a call."""
    numbers_by_length = defaultdict(list)
    for number, ids in enumerate(tokenizer([q.question for q in questions], add_special_tokens=False)["input_ids"]):
        assert len(ids) <= sizes.max_query
        numbers_by_length[len(ids)].append(number)
    rows = []
    for length, numbers in numbers_by_length.items():
        encoded = tokenizer(
            [questions[number].question.lstrip() for number in numbers],
            [questions[number].context for number in numbers],
            truncation="only_second",
            max_length=sizes.max_length,
            stride=max(sizes.max_length - length - sizes.template.pair_tokens - sizes.doc_stride, 0),
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_token_type_ids=True,
        )
        for n, sample in enumerate(encoded["overflow_to_sample_mapping"]):
            question, offsets = questions[numbers[sample]], encoded["offset_mapping"][n]
            inside = [sequence == 1 for sequence in encoded.sequence_ids(n)]
            places = [place for place, holds in enumerate(inside) if holds]
            spans = [offset if holds else None for offset, holds in zip(offsets, inside, strict=True)]
            target = run_qa_target(offsets, places, question)
            rows.append((numbers[sample], encoded["input_ids"][n], encoded["token_type_ids"][n], spans, *target))
    return sorted(rows, key=lambda row: row[0])  # stable: a question's windows stay in order


@pytest.mark.parametrize(
    ("name", "sizes", "several"),
    [
        pytest.param("xquad.en.json", WindowSizes(), 40, marks=pytest.mark.long),
        ("xquad.en.json", WindowSizes(128, 32, 48), 1100),
        pytest.param("cs224n-dev-v2.0.json.xz", WindowSizes(), 200, marks=pytest.mark.long),
        pytest.param("cs224n-dev-v2.0.json.xz", WindowSizes(128, 200, 40), 5000, marks=pytest.mark.long),
        pytest.param("cs224n-dev-v2.0.json.xz", WindowSizes(128, 32, 48), 14000, marks=pytest.mark.long),
    ],
)
def test_windows_match_transformers_on_real_questions(
    real_data: Path, uncased: Tokenizer, name: str, sizes: WindowSizes, several: int
) -> None:
    transformers = pytest.importorskip("transformers")
    unanswerable, count = FILES[name]
    questions = read_questions(real_data / "qa" / name, unanswerable)
    assert len(questions) == count
    vocabulary = str(real_data / "vocab" / "bert-base-uncased" / "vocab.txt")
    theirs = transformers_rows(questions, transformers.BertTokenizerFast(vocabulary, do_lower_case=True), sizes)
    counts = QuestionCounts()
    windows = question_windows(questions, uncased, sizes, counts)
    ours = list(list_rows(windows))
    assert len(ours) == len(theirs) > count + several
    assert ours == theirs
    assert counts.examples == count and counts.windows - counts.windowed == len(ours) - count


def test_long_text_gets_overlapping_windows(tiny: WordPiece) -> None:
    question = make_question("c d e f g h i", "a b ?", ("g", 8))
    windows, counts = make_windows([question], tiny, max_length=9, doc_stride=2, max_query=3)
    texts = [" ".join(tiny.tokens[i] for i in ids) for _, ids, *_ in list_rows(windows)]
    front = "[CLS] a b ? [SEP]"
    assert texts == [f"{front} {part} [SEP]" for part in ("c d e", "e f g", "g h i")]
    assert [row[2] for row in list_rows(windows)] == [[0] * 5 + [1] * 4] * 3
    assert [row[4:] for row in list_rows(windows)] == [(0, 0), (7, 7), (5, 5)]
    assert [question.context[slice(*span)] for row in list_rows(windows) for span in row[3] if span] == [*"cdeefgghi"]
    assert windows.rows.rows["cls_positions"].tolist() == [[0]] * 3
    assert (windows.rows.tokens["sequence_ids"] == 1).all()
    assert (counts.examples, counts.tokens, counts.windowed, counts.windows) == (1, 10, 1, 3)
    assert counts.notices(9) == ["1 of 1 examples were longer than 9 tokens and became 3 windows"]
    assert {name: part.dtype.name for name, part in (windows.rows.tokens | windows.rows.rows).items()} == {
        **dict.fromkeys(("input_ids", "token_type_ids", "sequence_ids", "cls_positions", "starts", "ends"), "int32"),
        "label_weights": "float32",
    }


@pytest.mark.parametrize(
    ("answer", "target"),
    [
        (("ab", 0), (5, 6)),
        (("b", 1), (6, 6)),
        ((" ab ", 2), (7, 8)),  # white space around an answer is not part of it
        (("c", 7), (9, 9)),
        (("ab ab  c", 0), (5, 9)),
        (("9", 10), (10, 10)),  # [UNK]
        (("\u00ad", 11), (0, 0)),  # no token represents it
    ],
)
def test_targets_are_tokens_of_the_answer(tiny: WordPiece, answer: tuple[str, int], target: tuple[int, int]) -> None:
    context = "ab ab  c 99\u00ad"
    assert context[answer[1] :].startswith(answer[0])
    (row,) = list_rows(make_windows([make_question(context, "a b ?", answer)], tiny)[0])
    assert row[4:] == target


def nfd(text: str) -> str:
    return unicodedata.normalize("NFD", text)


@pytest.mark.parametrize(
    ("context", "answer", "tokens"),
    [
        (nfd("le café ouvre"), nfd("café"), ["cafe"]),
        (nfd("le café"), nfd("café"), ["cafe"]),  # at the end of the text
        (nfd("éa café ouvre"), nfd("éa café"), ["ea", "cafe"]),
        (nfd("la cafe à á ouvre"), nfd("à á"), ["a", "a"]),
        ("le \u200bcafe\u200b ouvre", "\u200bcafe\u200b", ["cafe"]),
        ("le\u200b cafe ouvre", "cafe", ["cafe"]),
        ("le caf\u0301e\u0301\u0327 ouvre", "caf\u0301e\u0301\u0327", ["cafe"]),
        (nfd("한국 문서"), nfd("한국"), [nfd("한국")]),
    ],
)
def test_targets_match_answers_with_stripped_accents(context: str, answer: str, tokens: list[str]) -> None:
    words = ["le", "la", "ea", "a", "cafe", "ouvre", nfd("한국"), nfd("문서")]
    assert answered_by(WordPiece([*SPECIAL_TOKENS, *words], UNCASED), context, answer) == (
        tokens,
        answer.strip("\u200b"),
    )


def answered_by(tokenizer: Tokenizer, context: str, answer: str) -> tuple[list[str], str]:
    """Get (tokens of the target, text of the answer that they predict)."""
    question = make_question(context, "a", (answer, context.index(answer)))
    ((_, ids, _, spans, start, end),) = list_rows(make_windows([question], tokenizer)[0])
    assert 0 < start <= end, (start, end)
    return [tokenizer.tokens[i] for i in ids[start : end + 1]], context[spans[start][0] : spans[end][1]]


@pytest.fixture(scope="module")
def composing() -> Tokenizer:
    """A Unigram tokenizer with NFKC normalization."""
    rules = TextRules(lowercase=False, strip_accents=False)
    letters = "an office cafe é ｶﾞガカ 한국어 x full 12 ½ ⁄"
    texts = [f"{first} {second}" for first in letters.split() for second in letters]
    return train_tokenizer("unigram", count_for("unigram", texts, rules), 60, rules)


@pytest.mark.parametrize(
    ("context", "answer"),
    [
        (nfd("an é x"), nfd("é")),
        (nfd("an é"), nfd("é")),
        ("an o\ufb03ce x", "\ufb03ce"),  # a ligature is several tokens
        ("an \ufb03 x", "\ufb03"),
        ("an x\ufb03", "x\ufb03"),
        (nfd("x 한국어 x"), nfd("한국어")),
        (nfd("x 국어"), nfd("국어")),
        ("x \uff46\uff55\uff4c\uff4c x", "\uff46\uff55\uff4c\uff4c"),
        ("x \uff76\uff9e x", "\uff76\uff9e"),
        ("x a\u200b x", "a\u200b"),
    ],
)
def test_targets_are_tokens_of_answer_under_nfkc(composing: Tokenizer, context: str, answer: str) -> None:
    tokens, predicted = answered_by(composing, context, answer)
    spelled = unicodedata.normalize("NFKC", answer).replace("\u200b", "")
    spelling = unicodedata.normalize("NFKC", "".join(tokens).lstrip("\u2581"))
    assert spelling in (spelled, "<unk>")  # one token for a word of unknown characters
    assert predicted == answer.replace("\u200b", "")


def test_unanswered_questions_have_cls_as_target(tiny: WordPiece) -> None:
    questions = [
        make_question("a c", impossible=True),
        make_question("b c"),
        make_question("\u00ad"),
        make_question("d c", "e", ("c", 2)),
    ]
    windows, _ = make_windows(questions, tiny)
    assert [row[4:] for row in list_rows(windows)] == [(0, 0), (0, 0), (0, 0), (4, 4)]
    assert windows.rows.rows["label_weights"].tolist() == [[1], [0], [0], [1]]
    assert windows.rows.lengths.tolist() == [8, 8, 6, 6]  # a text without tokens has a row too


def test_long_questions_are_truncated_or_rejected(tiny: WordPiece) -> None:
    questions = [make_question("c d", "a"), make_question("c d e f", "a b ? a b")]
    windows, counts = make_windows(questions, tiny, max_length=8, doc_stride=3, max_query=4)
    assert windows.rows.lengths.tolist() == [6, 8, 8, 8, 8]  # with room for one token, windows are one apart
    *others, last = counts.notices(8)
    assert last == "1 of 2 questions were too long themselves and were truncated: 1 tokens were left out"
    assert "1 of 2 examples were longer than 8 tokens and became 4 windows" in others
    for sizes, message in (
        (WindowSizes(8, 3, 4), "question c d e f: the question has 5 tokens, over max query 4; raise"),
        (WindowSizes(10, 3, 5), "question c d e f: 12 tokens, special ones included, over the max length of 10"),
    ):
        with pytest.raises(ValueError, match=message):
            question_windows(questions, tiny, sizes, QuestionCounts(), strict=True)
    assert len(question_windows(questions, tiny, WindowSizes(12, 3, 5), QuestionCounts(), strict=True).rows) == 2


@pytest.mark.parametrize("sizes", [(67, 128, 64), (384, 0, 64), (384, 128, 0)])
def test_impossible_window_sizes_are_rejected(sizes: tuple[int, int, int]) -> None:
    with pytest.raises(ValueError, match=r"; raise max length or lower max query|both must be at least 1"):
        WindowSizes(*sizes)


def test_text_cannot_forge_separators(tiny: WordPiece) -> None:
    windows, _ = make_windows([make_question("[SEP] a", "[CLS] b")], tiny)
    ids = windows.rows.tokens["input_ids"].tolist()
    assert ids.count(tiny.cls_id) == 1 and ids.count(tiny.sep_id) == 2
    with pytest.raises(ValueError, match="NUL"):
        next(encode_with_spans(tiny, ["a\0b"]))


def test_text_may_spell_a_unigram_piece() -> None:
    """Control pieces are part of a Unigram model, so that other readers of the model find them in text."""
    rules = TextRules(lowercase=False, strip_accents=False)
    learned = [f"{first} {second} [MASK]<pad>." for first in "abcdefgh" for second in "ABCDEFGHIJKLMNOPRSTU"]
    tokenizer = train_tokenizer("unigram", count_for("unigram", learned, rules), 60, rules)
    text = f"a [MASK] b {' '.join(tokenizer.tokens[number] for number in tokenizer.special.values())} c."
    ((ids, spans),) = encode_with_spans(tokenizer, [text])
    assert len(ids) == len(spans) and not {*ids.tolist()} & {*tokenizer.special.values()} - {tokenizer.unk_id}
    covered = {place for start, end in spans.tolist() for place in range(start, end)}
    assert covered >= {place for place, letter in enumerate(text) if not letter.isspace()}


@pytest.mark.parametrize(
    ("vocabulary", "rules"),
    [
        ("bert-base-multilingual-cased", TextRules(False, False)),
        ("bert-base-uncased", TextRules(True, True, "characters")),
        ("roberta-base", TextRules(False, False)),
        ("albert-base-v1", UNCASED),
    ],
)
def test_spans_cover_text_for_every_tokenizer(real_data: Path, vocabulary: str, rules: TextRules) -> None:
    tokenizer = load_tokenizer(real_data / "vocab" / vocabulary, rules)
    texts = {q.context for q in read_questions(real_data / "qa" / "xquad.en.json", unanswerable=False)}
    texts = ["", " a  b ", "<mask> [MASK] x", "e\u0301t\u00e9  \u4e2d\u6587", *sorted(texts)[:40]]
    encoded = list(encode_with_spans(tokenizer, texts))
    for text, ids, (ours, spans) in zip(texts, tokenizer.encode_sentences(texts), encoded, strict=True):
        assert ours.tolist() == ids.tolist() and spans.shape == (len(ids), 2)
        words = [text[start:end] for start, end in spans]
        assert not any(word[:1].isspace() for word in words)
        covered = np.zeros(len(text), bool)
        for start, end in spans:
            covered[start:end] = True
        left = {letter for letter, is_in in zip(text, covered, strict=True) if not is_in}
        assert all(letter.isspace() or unicodedata.combining(letter) for letter in left), left
