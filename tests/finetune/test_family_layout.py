"""Rows of tasks match the family's tokenizer in transformers."""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from family_models import TEXTS, their_tokenizer, tokenizer_of
from test_question_windows import list_rows, transformers_rows
from their_families import members

from bertjax.families.registry import FAMILIES
from bertjax.finetune.data.examples import Question, TaggedSentence, TextExample
from bertjax.finetune.encoding.question_windows import QuestionCounts, WindowSizes, question_windows
from bertjax.finetune.encoding.tag_windows import TagCounts, tag_windows
from bertjax.finetune.kinds import KINDS
from bertjax.input.layout import Template
from bertjax.input.lengths import LengthCounts
from bertjax.tokenization.tokenizer import Tokenizer

WORDS = [word for text in TEXTS[:-3] for word in text.split()]


def random_text(draw: np.random.Generator, most: int) -> str:
    """Draw up to `most` words."""
    return " ".join(draw.choice(WORDS, int(draw.integers(most + 1))))


@dataclass(frozen=True)
class Member:
    """A family's tokenizer, ours and transformers', and its template."""

    ours: Tokenizer
    theirs: Any
    template: Template


@pytest.fixture(scope="module", params=members())
def member(request: pytest.FixtureRequest) -> Member:
    family = request.param
    return Member(tokenizer_of(family), their_tokenizer(family), FAMILIES[family].template)


@pytest.mark.parametrize("max_length", [8, *(pytest.param(length, marks=pytest.mark.long) for length in (16, 17, 40))])
@pytest.mark.parametrize("kind", ["sequence", "relevance", "choice"])
def test_pairs_and_choices_match_transformers(member: Member, kind: str, max_length: int) -> None:
    draw, ends = np.random.default_rng(max_length), 3 if kind == "choice" else 1
    groups = [[random_text(draw, 12) for _ in range(1 + ends)] for _ in range(60)]
    labels, label = {"sequence": (["no"], "no"), "relevance": ([], 0.0), "choice": (["0", "1", "2"], "0")}[kind]
    examples = [TextExample("here", str(n), tuple(texts), label) for n, texts in enumerate(groups)]
    counts = LengthCounts()
    rows = KINDS[kind].encode(examples, labels, member.ours, max_length, counts, template=member.template)
    firsts = [first for first, *_ in groups for _ in range(ends)]
    seconds = [second for _, *others in groups for second in others]
    options = {"truncation": "longest_first", "max_length": max_length, "return_token_type_ids": True}
    expected = member.theirs(firsts, seconds, **options)
    np.testing.assert_array_equal(rows.tokens["input_ids"], np.concatenate(expected["input_ids"]))
    # DistilBERT uses BERT's tokenizer, whose token types its model does not read.
    types = np.concatenate(expected["token_type_ids"]) * member.template.token_types
    np.testing.assert_array_equal(rows.tokens["token_type_ids"], types)
    lengths = np.array([*map(len, expected["input_ids"])]).reshape(-1, ends)
    np.testing.assert_array_equal(rows.lengths, lengths.sum(1))
    np.testing.assert_array_equal(rows.rows["cls_positions"], np.cumsum(lengths, 1) - lengths)
    sequences = np.repeat(np.tile(np.arange(1, ends + 1), len(groups)), lengths.ravel())
    np.testing.assert_array_equal(rows.tokens["sequence_ids"], sequences)
    assert 0 < counts.truncated <= len(groups) and (lengths <= max_length).all()
    cut = next(number for number, row in enumerate(lengths) if row.max() == max_length)
    with pytest.raises(ValueError, match=f"over the max length of {max_length}; raise"):
        KINDS[kind].encode(
            examples[cut:], labels, member.ours, max_length, counts, template=member.template, strict=True
        )


def test_single_texts_match_transformers(member: Member) -> None:
    texts = [random_text(np.random.default_rng(n), 12) for n in range(40)]
    examples = [TextExample("here", str(n), (text,), "no") for n, text in enumerate(texts)]
    rows = KINDS["sequence"].encode(examples, ["no"], member.ours, 16, LengthCounts(), template=member.template)
    expected = member.theirs(texts, truncation=True, max_length=16)["input_ids"]
    np.testing.assert_array_equal(rows.tokens["input_ids"], np.concatenate(expected))
    assert not rows.tokens["token_type_ids"].any()


@pytest.mark.parametrize("size", [(64, 8, 40), (65, 32, 40)])
def test_question_windows_match_transformers(member: Member, size: tuple[int, int, int]) -> None:
    draw, questions = np.random.default_rng(1), []
    for number in range(40):
        context = f"{random_text(draw, 60)} {WORDS[number % len(WORDS)]} ."
        answer = str(draw.choice(context.split()))
        answers = ((answer, context.index(answer)),)
        questions.append(Question("here", str(number), random_text(draw, 2), context, answers, False))
    sizes = WindowSizes(*size, member.template)
    windows = question_windows(questions, member.ours, sizes, QuestionCounts())
    ours, theirs = list(list_rows(windows)), transformers_rows(questions, member.theirs, sizes)
    assert len(ours) == len(theirs) > 2 * len(questions)
    assert [row[:2] for row in ours] == [row[:2] for row in theirs]
    # Without token types, tokenizers leaves 1 in all windows after the first; such models do not read them.
    assert [row[2] for row in ours] == [[one * member.template.token_types for one in row[2]] for row in theirs]
    for (question, _, _, spans, *_), (_, _, _, their_spans, *_) in zip(ours, theirs, strict=True):
        # transformers' SentencePiece tokens begin at the space in front of a word.
        text = questions[question].context
        trimmed = [
            span and (span[1] - len(text[slice(*span)].lstrip()), span[1]) for span in map(_as_pair, their_spans)
        ]
        # A piece for a lone space covers the space in DeBERTa v2's tokenizer, and the next character in ours.
        one, other = ([span and (span[0], max(span[1], span[0] + 1)) for span in part] for part in (spans, trimmed))
        assert one == other
    # The tokens of an answer cover its characters, wherever they are in the row.
    holding = [(question, spans[start : end + 1]) for question, _, _, spans, start, end in ours if start]
    assert {question for question, _ in holding} == {*range(40)}
    for question, ((first, _), *_, (_, last)) in ((n, [*spans, spans[-1]]) for n, spans in holding):
        answer, start = questions[question].answers[0]
        assert first <= start and start + len(answer) <= last


def _as_pair(span: tuple[int, int] | None) -> tuple[int, int] | None:
    return None if span is None else (span[0], span[1])


def test_window_sizes_count_separators_of_template() -> None:
    two = Template(separators=2, token_types=False)
    assert WindowSizes(20, 4, 16).max_length == 20
    with pytest.raises(ValueError, match="a question of 16 tokens and 4 special ones leave no room"):
        WindowSizes(20, 4, 16, two)


@pytest.mark.parametrize("family", members())
def test_tagged_words_match_transformers(family: str) -> None:
    ours = tokenizer_of(family)
    # RoBERTa's tokenizer accepts words only with this option.
    options = {} if ours.rules.prefix_space else {"add_prefix_space": True}
    theirs = their_tokenizer(family, **options)
    draw = np.random.default_rng(2)
    words_by_sentence = [tuple(random_text(draw, 9).split()) or ("the",) for _ in range(40)]
    sentences = [
        TaggedSentence("here", str(n), words, ("X",) * len(words)) for n, words in enumerate(words_by_sentence)
    ]
    windows = tag_windows(sentences, ["X"], ours, 128, TagCounts())
    expected = theirs([list(words) for words in words_by_sentence], is_split_into_words=True)
    np.testing.assert_array_equal(windows.rows.tokens["input_ids"], np.concatenate(expected["input_ids"]))
    first = []
    for number in range(len(words_by_sentence)):
        words = expected.word_ids(number)
        first += [word is not None and word != before for before, word in itertools.pairwise([None, *words])]
    np.testing.assert_array_equal(windows.word >= 0, first)
