"""Questions as rows, each with a window of its text; a long text has several overlapping windows.

The windows equal google-research/bert's (run_squad.py) and transformers' port. As in run_squad.py,
`doc_stride` is the distance between the beginnings of windows. In transformers' tokenizers and run_qa.py `stride` is
the overlap instead: the room for the text minus `doc_stride`.

If an answer begins with a window's last token, run_qa.py takes the [SEP] after it as the start; we take the token. In
XQuAD and CS224N's dev set this never occurs at the usual sizes, and in 4 of 24,252 windows of 128 tokens, 32 apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from bertjax.finetune.data.examples import Question
from bertjax.finetune.encoding.rows import Segments, TaskRows, join_segments, too_long
from bertjax.finetune.encoding.texts import encode_with_spans
from bertjax.input.layout import BERT, Template
from bertjax.input.lengths import LengthCounts
from bertjax.text.ragged import range_indices
from bertjax.tokenization.tokenizer import Tokenizer


@dataclass(frozen=True)
class WindowSizes:
    """The sizes of rows in tokens, as in run_squad.py; the template decides how many remain for the text."""

    max_length: int = 384  # of a row, special tokens included
    doc_stride: int = 128
    max_query: int = 64  # of a question; the rest is cut off
    template: Template = BERT

    def __post_init__(self) -> None:
        """Raise ValueError if a question leaves no room for text, or the step is not positive."""
        if self.max_query < 1 or self.doc_stride < 1:
            raise ValueError(f"max query {self.max_query} and doc stride {self.doc_stride}: both must be at least 1")
        if self.max_length <= self.max_query + self.template.pair_tokens:
            raise ValueError(
                f"max length {self.max_length}: a question of {self.max_query} tokens and {self.template.pair_tokens} "
                "special ones leave no room for its text; raise max length or lower max query"
            )


@dataclass
class QuestionCounts(LengthCounts):
    """Numbers of long texts and questions that were truncated or split."""

    questions_cut: int = 0
    question_tokens_cut: int = 0

    @property
    def any_cut(self) -> bool:
        """Whether any token was left out."""
        return super().any_cut or self.questions_cut > 0

    def notices(self, max_length: int) -> list[str]:
        """Notices, a line each; none if every question fits with its text."""
        lines = super().notices(max_length)
        if self.questions_cut:
            lines.append(
                f"{self.questions_cut:,} of {self.examples:,} questions were too long themselves and were truncated: "
                f"{self.question_tokens_cut:,} tokens were left out"
            )
        return lines


@dataclass(frozen=True)
class QuestionWindows:
    """Rows of a question and a window of its text, in the order of questions; each has at least one."""

    questions: Sequence[Question]
    rows: TaskRows
    question: np.ndarray  # int64 [n]: the index in `questions` of each row's question
    spans: np.ndarray  # int32 [tokens, 2]: each token's characters in the text, [first, end); -1 for other tokens


@dataclass(frozen=True)
class _Pieces:
    """Tokenized texts; text i has the tokens [offsets[i], offsets[i + 1])."""

    ids: np.ndarray  # int32 [tokens]
    spans: np.ndarray  # int32 [tokens, 2], or [0, 2] if they are not needed
    offsets: np.ndarray  # int64 [texts + 1]

    @property
    def lengths(self) -> np.ndarray:
        return np.diff(self.offsets)


@dataclass(frozen=True)
class _Layout:
    """The content of each row, int64 [n] each."""

    question: np.ndarray
    queries: np.ndarray  # number of tokens of the question
    begins: np.ndarray  # number of tokens of the text before the window
    sizes: np.ndarray  # number of tokens of the window
    template: Template

    @property
    def window(self) -> np.ndarray:
        """Position of the window's first token in its row: int64 [n]."""
        return 1 + self.queries + self.template.separators


def question_windows(
    questions: Sequence[Question],
    tokenizer: Tokenizer,
    sizes: WindowSizes,
    counts: QuestionCounts,
    *,
    strict: bool = False,
) -> QuestionWindows:
    """Encode questions with the first and last token of the first answer as targets, and add to `counts`.

    `rows` have `starts` and `ends`, int32 [n, 1]: positions in the row, or 0, which is [CLS], if the window does not
    contain the whole answer or there is none. Such windows count in training like any other, as in run_squad.py.
    `label_weights` float32 [n, 1] are 0 for questions that are neither answered nor impossible. Raises ValueError with
    `strict`, naming the first question that does not fit in a row with its text.
    """
    # 1. Tokens; each text is encoded once
    texts = {text: number for number, text in enumerate(dict.fromkeys(question.context for question in questions))}
    text = np.array([texts[question.context] for question in questions], np.int64)
    # White space in front would be a token to some tokenizers; run_qa.py strips it too.
    ids, lengths = tokenizer.encode([question.question.lstrip() for question in questions])
    queries = _Pieces(ids.astype(np.int32), np.zeros((0, 2), np.int32), np.append(0, np.cumsum(lengths)))
    encoded, spans = zip(*encode_with_spans(tokenizer, [*texts]), strict=True)
    offsets = np.cumsum([0, *map(len, encoded)]).astype(np.int64)
    contexts = _Pieces(np.concatenate(encoded), np.concatenate(spans), offsets)

    # 2. Windows
    query_lengths, text_lengths = queries.lengths, contexts.lengths[text]
    layout = _lay_out(query_lengths, text_lengths, sizes)
    windows, cut = np.bincount(layout.question), np.maximum(query_lengths - sizes.max_query, 0)
    long = (cut > 0) | (windows > 1)
    if strict and long.any():
        first = int(np.argmax(long))
        where, length = questions[first].where, query_lengths[first]
        if cut[first]:
            raise ValueError(
                f"{where}: the question has {length} tokens, over max query {sizes.max_query}; raise it, or leave "
                "--strict-length out"
            )
        raise too_long(where, int(length + text_lengths[first]) + sizes.template.pair_tokens, sizes.max_length)
    counts.add(query_lengths + text_lengths, np.zeros_like(cut), windows)
    counts.empty += int(((query_lengths == 0) | (text_lengths == 0)).sum())
    counts.questions_cut += int((cut > 0).sum())
    counts.question_tokens_cut += int(cut.sum())

    # 3. Rows, with targets
    rows, row_spans = _fill(layout, queries, contexts, text, tokenizer)
    weights = np.array([bool(question.answers) or question.impossible for question in questions], np.float32)
    first, last = (
        part[layout.question] - layout.begins for part in _answer_tokens(questions, contexts, text, tokenizer)
    )
    whole = (first >= 0) & (last < layout.sizes)
    targets = {
        "starts": np.where(whole, first + layout.window, 0).astype(np.int32)[:, None],
        "ends": np.where(whole, last + layout.window, 0).astype(np.int32)[:, None],
        "label_weights": weights[layout.question][:, None],
    }
    rows = rows.extended(rows=targets, positions=("starts", "ends"))
    return QuestionWindows(questions, rows, layout.question, row_spans)


def _lay_out(queries: np.ndarray, length: np.ndarray, sizes: WindowSizes) -> _Layout:
    """Lay out windows for questions of `queries` tokens on texts of `length` tokens, int64 [questions] each."""
    queries = np.minimum(queries, sizes.max_query)
    room = sizes.max_length - sizes.template.pair_tokens - queries
    step = np.minimum(sizes.doc_stride, room)
    windows = 1 + np.maximum(0, -(-(length - room) // step))
    question = np.repeat(np.arange(len(queries)), windows)
    begins = range_indices(np.zeros(len(queries), np.int64), windows) * step[question]
    window = np.minimum(room[question], length[question] - begins)
    return _Layout(question, queries[question], begins, window, sizes.template)


def _fill(
    layout: _Layout, queries: _Pieces, contexts: _Pieces, text: np.ndarray, tokenizer: Tokenizer
) -> tuple[TaskRows, np.ndarray]:
    """Make (rows, the characters of the text that each token covers: int32 [tokens, 2], -1 for other tokens)."""
    text_begins = contexts.offsets[text[layout.question]] + layout.begins
    begin = np.stack([queries.offsets[layout.question], len(queries.ids) + text_begins], axis=1)
    sizes = np.stack([layout.queries, layout.sizes], axis=1)
    ids = np.concatenate([queries.ids, contexts.ids])
    rows = join_segments(ids, begin, sizes, Segments.one_sequence(2).opens, tokenizer, layout.template)
    spans = np.full((rows.offsets[-1], 2), -1, np.int32)
    spans[range_indices(rows.offsets[:-1] + layout.window, layout.sizes)] = contexts.spans[
        range_indices(text_begins, layout.sizes)
    ]
    return rows, spans


def _answer_tokens(
    questions: Sequence[Question], contexts: _Pieces, text: np.ndarray, tokenizer: Tokenizer
) -> tuple[np.ndarray, np.ndarray]:
    """Find the first and last token that share a character with the first answer, int64 [questions]; -1 if none do.

    Normalization may leave a character without a token, such as an accent in decomposed text, or give one character
    several tokens, such as a ligature. Tokens that only mark the start of a word do not count. run_qa.py takes the
    tokens around the answer's ends instead, which may belong to other words.
    """
    first, last = np.full((2, len(questions)), -1, np.int64)
    has_text = np.array([bool(surface.strip()) for surface in tokenizer.surfaces])
    has_text[[*tokenizer.special.values()]] = True  # [UNK] represents a word
    has_text = has_text[contexts.ids]
    for number, question in enumerate(questions):
        if not question.answers:
            continue
        answer, start = question.answers[0]
        begin, end = start + len(answer) - len(answer.lstrip()), start + len(answer.rstrip())
        inside = slice(*contexts.offsets[text[number] : text[number] + 2])
        spans = contexts.spans[inside]
        shared = np.flatnonzero((spans[:, 0] < end) & (spans[:, 1] > begin) & has_text[inside])
        if shared.size:
            first[number], last[number] = shared[0], shared[-1]
    return first, last
