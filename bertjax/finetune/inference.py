"""A fine-tuned model, asked about what someone gives it: labels, numbers, choices, tags, answers."""

from __future__ import annotations

import unicodedata
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np
import optax

from bertjax.config import FinetuneConfig, MeshConfig
from bertjax.finetune.answers import find_answers
from bertjax.finetune.encoding import encode_texts
from bertjax.finetune.examples import Question, TaggedSentence, TextExample
from bertjax.finetune.lengths import RowCounts
from bertjax.finetune.objectives import OUTPUTS, PER_TOKEN, objective_of
from bertjax.finetune.predicting import Predictor
from bertjax.finetune.question_windows import QuestionCounts, WindowSizes, question_windows
from bertjax.finetune.rows import TaskRows
from bertjax.finetune.tag_windows import TagCounts, tag_windows
from bertjax.parallel.mesh import batch_shards, make_mesh
from bertjax.parallel.sharding import power_of_two_below, tokens_at_once
from bertjax.training.run_directory import TrainedModel
from bertjax.training.state import draw_blueprint
from bertjax.training.step import make_predict_step

_JOINERS = "\u200c\u200d"  # within words of Persian and of India


class Prediction(NamedTuple):
    """The likeliest label of a text or a pair, and the probability of every label."""

    label: str
    probability: float
    probabilities: dict[str, float]


class Choice(NamedTuple):
    """The likeliest of several ends of one start: its place from 0, and the probability of every end."""

    place: int
    end: str
    probability: float
    probabilities: tuple[float, ...]


class Tag(NamedTuple):
    """A word and its likeliest tag; None for a word of which the tokenizer leaves nothing."""

    word: str
    tag: str | None
    probability: float


class Answer(NamedTuple):
    """The words of a text that answer a question, as they stand there; "" if it does not answer it.

    The probability is that among the likeliest answers, as many as `task.n_best`.
    """

    text: str
    probability: float


Input = str | tuple[str, str] | tuple[str, Sequence[str]] | Sequence[str]
Output = Prediction | float | Choice | list[Tag] | Answer


class TaskModel:
    """A fine-tuned model on the devices of this machine; `counts` tells of what the last `predict` was given."""

    def __init__(self, model: TrainedModel, devices: Sequence[jax.Device] | None = None) -> None:
        """Put the weights on the devices. Raises ValueError for a model without the head of a task."""
        if model.kind not in _PREDICTS:
            what = (
                "it gives vectors: use encode" if model.kind == "vector" else "it has no head of a task; fine-tune it"
            )
            raise ValueError(f"{model.directory}: {what}")
        assert isinstance(model.config, FinetuneConfig), "a head is of a task"
        self.counts = RowCounts()
        self._kind, self._task, self._tokenizer = model.kind, model.config.task, model.tokenizer
        self._max_length = model.max_length
        outputs = max(1, model.config.model.num_labels)
        self._labels = model.labels or tuple(f"LABEL_{number}" for number in range(outputs))
        self._mesh = make_mesh(MeshConfig(), jax.local_devices() if devices is None else devices)
        blueprint = draw_blueprint(model.config.model, optax.identity(), self._mesh)
        self._params = jax.device_put(model.params, blueprint.shardings.params)
        self._objective = objective_of(self._kind, self._task.temperature)
        self._step = make_predict_step(blueprint, (self._objective,), OUTPUTS[self._kind])

    def predict(self, inputs: Sequence[Input], null_threshold: float | None = None) -> list[Output]:
        """What the model says of each input, as `bertjax.loaded.LoadedModel.predict` has it.

        Raises ValueError, naming the number of the input from 1, for one that is not what the kind of task takes, and
        for a `null_threshold` where nothing answers questions.
        """
        if null_threshold is not None and self._kind != "span":
            raise ValueError(f"null threshold {null_threshold:g}: the model answers no questions; leave it out")
        self._null_threshold = self._task.no_answer_threshold if null_threshold is None else null_threshold
        return list(_PREDICTS[self._kind](self, inputs)) if inputs else []

    def told(self) -> list[str]:
        """What is to be said of inputs of the last `predict` of which tokens were left out, a line each."""
        cut = self.counts.truncated or (isinstance(self.counts, QuestionCounts) and self.counts.questions_cut)
        return self.counts.told(self._max_length) if cut else []

    def _outputs(self, rows: TaskRows) -> np.ndarray:
        """Float32, [rows, ...] or [tokens, ...]. Raises ValueError if one is not finite."""
        longest, pad_id = int(rows.lengths.max()), self._tokenizer.pad_id
        most = power_of_two_below(max(1, tokens_at_once(self._mesh) // longest))
        batch_size = min(most, 1 << (len(rows) - 1).bit_length()) * batch_shards(self._mesh)
        predictor = Predictor(self._step, self._mesh, batch_size, pad_id, longest, self._kind in PER_TOKEN)
        # Accelerators multiply float32 in fewer bits unless told otherwise.
        with jax.set_mesh(self._mesh), jax.default_matmul_precision("highest"):
            found = predictor.predict(self._params, rows, self._objective)
        assert found is not None, "nobody said no"
        if not np.isfinite(found[0]).all():
            raise ValueError("an output is not finite; are the model's weights damaged?")
        return found[0]

    def _of_texts(self, texts: Sequence[tuple[str, ...]], labels: Sequence[str] = ()) -> np.ndarray:
        examples = [TextExample(f"input {n}", str(n), parts, None) for n, parts in enumerate(texts, 1)]
        self.counts = RowCounts()
        return self._outputs(encode_texts(examples, self._kind, labels, self._tokenizer, self._max_length, self.counts))

    def _classified(self, inputs: Sequence[Any]) -> list[Prediction]:
        found = []
        for shares in _softmax(self._of_texts([_texts(x, n) for n, x in enumerate(inputs, 1)], self._labels)):
            best = int(shares.argmax())
            probabilities = dict(zip(self._labels, shares.tolist(), strict=True))
            found.append(Prediction(self._labels[best], float(shares[best]), probabilities))
        return found

    def _numbers(self, inputs: Sequence[Any]) -> list[float]:
        return self._of_texts([_texts(x, n) for n, x in enumerate(inputs, 1)])[:, 0].tolist()

    def _relevances(self, inputs: Sequence[Any]) -> list[float]:
        pairs = [_pair(x, n, "a query and a passage") for n, x in enumerate(inputs, 1)]
        return (1 / (1 + np.exp(-self._of_texts(pairs)[:, 0].astype(np.float64)))).tolist()

    def _chosen(self, inputs: Sequence[Any]) -> list[Choice]:
        starts = [_start_and_ends(x, n) for n, x in enumerate(inputs, 1)]
        places = [str(place) for place in range(len(starts[0]) - 1)]
        found = []
        for (_, *ends), shares in zip(starts, _softmax(self._of_texts(starts, places)), strict=True):
            best = int(shares.argmax())
            found.append(Choice(best, ends[best], float(shares[best]), tuple(shares.tolist())))
        return found

    def _tagged(self, inputs: Sequence[Any]) -> list[list[Tag]]:
        words = [_words(x, n) for n, x in enumerate(inputs, 1)]
        sentences = [TaggedSentence(f"input {n}", str(n), some, None) for n, some in enumerate(words, 1)]
        self.counts = TagCounts()
        windows = tag_windows(sentences, self._labels, self._tokenizer, self._max_length, self.counts)
        shares = _softmax(self._outputs(windows.rows))
        tags: list[tuple[str | None, float]] = [(None, 0.0)] * sum(map(len, words))
        for token in np.flatnonzero(windows.word >= 0):
            best = int(shares[token].argmax())
            tags[windows.word[token]] = self._labels[best], float(shares[token, best])
        given = iter(tags)
        return [[Tag(word, *next(given)) for word in some] for some in words]

    def _answered(self, inputs: Sequence[Any]) -> list[Answer]:
        pairs = [_pair(x, n, "a question and a text") for n, x in enumerate(inputs, 1)]
        asked = [Question(f"input {n}", str(n), *pair, (), False) for n, pair in enumerate(pairs, 1)]
        task, threshold = self._task, self._null_threshold
        sizes = WindowSizes(self._max_length, task.doc_stride, task.max_query)
        self.counts = counts = QuestionCounts()
        windows = question_windows(asked, self._tokenizer, sizes, counts)
        row = np.repeat(windows.question, windows.rows.lengths)
        hold = np.bincount(row[windows.spans[:, 0] >= 0], minlength=len(asked))  # tokens of each text
        for question, tokens in zip(asked, hold, strict=True):
            if not tokens or not question.context.strip():
                raise ValueError(f"{question.where}: the text has no words, so that no answer is in it")
        logits = self._outputs(windows.rows)
        found = find_answers(windows, *logits.T, threshold is not None, task.n_best, task.max_answer)
        texts = found.predictions(threshold or 0.0) | dict.fromkeys(found.without_span, "")
        return [
            Answer(texts[name], next((one["probability"] for one in best if one["text"] == texts[name]), 1.0))
            for name, best in found.n_best.items()
        ]


_PREDICTS = {
    "sequence": TaskModel._classified,
    "regression": TaskModel._numbers,
    "relevance": TaskModel._relevances,
    "choice": TaskModel._chosen,
    "tokens": TaskModel._tagged,
    "span": TaskModel._answered,
}


def _softmax(logits: np.ndarray) -> np.ndarray:
    exponentials = np.exp((logits - logits.max(axis=-1, keepdims=True)).astype(np.float64))
    return exponentials / exponentials.sum(axis=-1, keepdims=True)


def _texts(given: Any, number: int) -> tuple[str, ...]:
    if isinstance(given, str):
        return (given,)
    if isinstance(given, tuple | list) and len(given) in (1, 2) and all(isinstance(text, str) for text in given):
        return tuple(given)
    raise ValueError(f"input {number}: {_shown(given)} is neither a text nor a pair of texts")


def _pair(given: Any, number: int, what: str) -> tuple[str, str]:
    if isinstance(given, tuple | list) and len(given) == 2 and all(isinstance(text, str) for text in given):
        return given[0], given[1]
    raise ValueError(f"input {number}: {_shown(given)} is not {what}; give a pair of texts")


def _start_and_ends(given: Any, number: int) -> tuple[str, ...]:
    if isinstance(given, tuple | list) and len(given) == 2 and isinstance(given[0], str):
        start, ends = given
        if isinstance(ends, tuple | list) and len(ends) > 1 and all(isinstance(end, str) for end in ends):
            return (start, *ends)
    raise ValueError(f"input {number}: {_shown(given)} is not a start and a list of two ends or more")


def _words(given: Any, number: int) -> tuple[str, ...]:
    """The words of a sentence; of a text those between spaces, with signs apart."""
    words = _words_in(given) if isinstance(given, str) else given
    if isinstance(words, tuple | list) and words and all(isinstance(word, str) for word in words):
        return tuple(words)
    raise ValueError(f"input {number}: {_shown(given)} is neither a text nor a list of words")


def _words_in(text: str) -> tuple[str, ...]:
    """Runs of letters and digits, and every other sign alone; marks, as Hindi's vowels, go with what they stand on."""
    words: list[str] = []
    last = "space"
    for character in text:
        if character.isspace():
            last = "space"
            continue
        mark = character in _JOINERS or unicodedata.category(character).startswith("M")
        now = "letter" if character.isalnum() or character == "_" else "sign"
        if last != "space" and (mark or now == last == "letter"):
            words[-1] += character
        else:
            words.append(character)
            last = now
    return tuple(words)


def _shown(given: Any) -> str:
    text = repr(given)
    return text if len(text) <= 60 else f"{text[:57]}..."
