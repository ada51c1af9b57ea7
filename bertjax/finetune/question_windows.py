"""Questions as rows: each with a window of its text, or with several that overlap where the text is long.

The windows are those of google-research/bert's run_squad.py and its port to transformers. `doc_stride` is run_squad's:
how far each window begins behind the one before. What transformers' tokenizers and run_qa.py call `stride` is the
overlap instead, the room for the text minus `doc_stride`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property

import numpy as np

from bertjax.finetune.examples import Question
from bertjax.finetune.lengths import RowCounts, too_long
from bertjax.finetune.rows import TaskRows
from bertjax.finetune.token_spans import encode_with_spans
from bertjax.text.ragged import places_in
from bertjax.tokenization.tokenizer import Tokenizer

_SPECIAL = 3  # [CLS] question [SEP] window [SEP]


@dataclass(frozen=True)
class WindowSizes:
    """How much goes in a row, in tokens, and how far windows are apart: run_squad.py's."""

    max_length: int = 384  # of a row, special tokens included
    doc_stride: int = 128
    max_query: int = 64  # of a question; more is cut off

    def __post_init__(self) -> None:
        """Raise ValueError if no text fits beside a question, or windows stand still."""
        if self.max_query < 1 or self.doc_stride < 1:
            raise ValueError(f"max query {self.max_query} and doc stride {self.doc_stride}: give 1 or more for each")
        if self.max_length <= self.max_query + _SPECIAL:
            raise ValueError(
                f"max length {self.max_length}: a question of {self.max_query} tokens and {_SPECIAL} special ones "
                "leave no room for its text; raise the one or lower the other"
            )


@dataclass
class QuestionCounts(RowCounts):
    """What became of long texts and questions."""

    questions_cut: int = 0  # questions cut off
    question_tokens_cut: int = 0  # tokens that were lost so

    def told(self, max_length: int) -> list[str]:
        """What is to be said of them, a line each; nothing if every question fitted with its text."""
        lines = super().told(max_length)
        if self.questions_cut:
            lines.append(
                f"{self.questions_cut:,} of {self.examples:,} questions were too long themselves and were truncated: "
                f"{self.question_tokens_cut:,} tokens were left out"
            )
        return lines


@dataclass(frozen=True)
class QuestionWindows:
    """Rows [CLS] question [SEP] window [SEP] of questions, in order; each has one at least."""

    questions: Sequence[Question]
    rows: TaskRows  # of kind span
    question: np.ndarray  # int64 [n]: the place in `questions` of the one that each row asks
    begins: np.ndarray  # int64 [n]: how many tokens of the text come before the window
    spans: np.ndarray  # int32 [tokens, 2]: each token's characters in the text, first and one behind last; outside, -1

    @cached_property
    def most_context(self) -> np.ndarray:
        """bool [tokens]: whether a token of the text has most context in this window of all.

        As in run_squad.py: the tokens on the side where there are fewer of them, and 0.01 for each of the window; where
        windows are equal, the first.
        """
        inside = np.flatnonzero(self.spans[:, 0] >= 0)
        row = np.repeat(np.arange(len(self.rows)), self.rows.lengths)[inside]
        sizes = np.bincount(row, minlength=len(self.rows))
        left = places_in(np.zeros(len(sizes), np.int64), sizes)
        score = np.minimum(left, sizes[row] - 1 - left) + 0.01 * sizes[row]
        ends = np.zeros(len(self.questions), np.int64)
        np.maximum.at(ends, self.question, self.begins + sizes)
        token = (np.cumsum(ends) - ends)[self.question[row]] + self.begins[row] + left
        best = np.full(ends.sum(), -np.inf)
        np.maximum.at(best, token, score)
        candidates = np.flatnonzero(score == best[token])
        most = np.zeros(len(self.spans), bool)
        most[inside[candidates[np.unique(token[candidates], return_index=True)[1]]]] = True
        return most


@dataclass(frozen=True)
class _Pieces:
    """Texts as tokens: those of text i are [offsets[i], offsets[i + 1])."""

    ids: np.ndarray  # int32 [tokens]
    offsets: np.ndarray  # int64 [texts + 1]
    spans: np.ndarray = field(default_factory=lambda: np.zeros((0, 2), np.int32))

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)


def question_windows(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    sizes: WindowSizes,
    counts: QuestionCounts,
    *,
    strict: bool = False,
) -> QuestionWindows:
    """The rows of questions, with the first answer's first and last token as targets.

    Targets are 0, the [CLS], where the window does not hold the answer whole, or there is none; such windows count in
    training as any other, as in run_squad.py. Questions that are neither answered nor impossible have weight 0.
    `counts` is added to. Raises ValueError naming the first question that needs more than a row where `strict`.
    """
    asked = _encoded_questions(questions, tokenizer)
    texts = list(dict.fromkeys(question.context for question in questions))
    contexts = _encoded_contexts(texts, tokenizer)
    place = {text: number for number, text in enumerate(texts)}
    context = np.array([place[question.context] for question in questions], np.int64)
    kept = np.minimum(asked.lengths, sizes.max_query)
    length = contexts.lengths[context]
    room = sizes.max_length - _SPECIAL - kept
    step = np.minimum(sizes.doc_stride, room)
    windows = 1 + np.maximum(0, -(-(length - room) // step))
    _count(questions, asked.lengths, length, windows, sizes, counts, strict)

    question = np.repeat(np.arange(len(questions)), windows)
    begins = places_in(np.zeros(len(questions), np.int64), windows) * step[question]
    size = np.minimum(room[question], length[question] - begins)
    offsets = np.concatenate([[0], np.cumsum(kept[question] + size + _SPECIAL)]).astype(np.int64)
    window = offsets[:-1] + kept[question] + 2  # where its first token lies
    source = places_in(contexts.offsets[context[question]] + begins, size)
    inside = places_in(window, size)

    ids = np.full(offsets[-1], tokenizer.sep_id, np.int32)
    ids[offsets[:-1]] = tokenizer.cls_id
    ids[places_in(offsets[:-1] + 1, kept[question])] = asked.ids[places_in(asked.offsets[question], kept[question])]
    ids[inside] = contexts.ids[source]
    types = np.zeros_like(ids)
    types[places_in(window, size + 1)] = 1
    spans = np.full((len(ids), 2), -1, np.int32)
    spans[inside] = contexts.spans[source]

    first, last = _answer_tokens(questions, contexts, context)
    rows = TaskRows(
        offsets,
        {"input_ids": ids, "token_type_ids": types, "sequence_ids": np.ones_like(ids)},
        {"cls_positions": np.zeros((len(question), 1), np.int32)}
        | _targets(first[question] - begins, last[question] - begins, size, kept[question] + 2)
        | {"label_weights": np.array([bool(q.answers) or q.impossible for q in questions], np.float32)[question]},
    )
    return QuestionWindows(questions, rows, question, begins, spans)


def _encoded_questions(questions: Sequence[Question], tokenizer: Tokenizer) -> _Pieces:
    # White space in front would be a token to some tokenizers; run_qa.py strips it too.
    ids, lengths = tokenizer.encode([question.question.lstrip() for question in questions])
    return _Pieces(ids.astype(np.int32), np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def _encoded_contexts(texts: Sequence[str], tokenizer: Tokenizer) -> _Pieces:
    ids, spans = [np.zeros(0, np.int32)], [np.zeros((0, 2), np.int32)]
    for some, where in encode_with_spans(tokenizer, texts):
        ids.append(some)
        spans.append(where)
    offsets = np.cumsum([len(part) for part in ids])
    return _Pieces(np.concatenate(ids), offsets.astype(np.int64), np.concatenate(spans))


def _answer_tokens(
    questions: Sequence[Question], contexts: _Pieces, context: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """The tokens of each text that the first answer begins and ends in, int64 [questions]; -1 where there is none."""
    first, last = np.full((2, len(questions)), -1, np.int64)
    for number, question in enumerate(questions):
        if not question.answers:
            continue
        text, start = question.answers[0]
        begin, end = start + len(text) - len(text.lstrip()), start + len(text.rstrip())
        spans = contexts.spans[contexts.offsets[context[number]] : contexts.offsets[context[number] + 1]]
        if len(spans) and spans[0, 0] <= begin and end <= spans[-1, 1]:
            first[number] = np.searchsorted(spans[:, 0], begin, side="right") - 1
            last[number] = np.searchsorted(spans[:, 1], end)
    return first, last


def _targets(first: np.ndarray, last: np.ndarray, size: np.ndarray, window: np.ndarray) -> dict[str, np.ndarray]:
    whole = (first >= 0) & (last < size)
    return {
        "starts": np.where(whole, first + window, 0).astype(np.int32),
        "ends": np.where(whole, last + window, 0).astype(np.int32),
    }


def _count(
    questions: Sequence[Question],
    asked: np.ndarray,
    length: np.ndarray,
    windows: np.ndarray,
    sizes: WindowSizes,
    counts: QuestionCounts,
    strict: bool,
) -> None:
    cut = np.maximum(asked - sizes.max_query, 0)
    long = (cut > 0) | (windows > 1)
    if strict and long.any():
        worst = int(np.argmax(long))
        if cut[worst]:
            raise ValueError(
                f"{questions[worst].where}: the question has {asked[worst]} tokens, over max query "
                f"{sizes.max_query}; raise it, or leave --strict-length out"
            )
        raise too_long(questions[worst].where, int(asked[worst] + length[worst]) + _SPECIAL, sizes.max_length)
    counts.examples += len(questions)
    counts.tokens += int((asked + length).sum())
    counts.empty += int(((asked == 0) | (length == 0)).sum())
    counts.windowed += int((windows > 1).sum())
    counts.windows += int(windows[windows > 1].sum())
    counts.questions_cut += int((cut > 0).sum())
    counts.question_tokens_cut += int(cut.sum())
