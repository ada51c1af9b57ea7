"""Regression per word, or per letter of a sequence (transformers' BertForTokenClassification with one label)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import FinetuneConfig, TaskConfig
from bertjax.finetune.data.examples import TaggedSentence
from bertjax.finetune.data.tags import read_numbers, write_words
from bertjax.finetune.encoding.tag_windows import TagCounts, TagWindows, word_windows
from bertjax.finetune.kinds.kind import (
    Card,
    Figures,
    Inference,
    Recipe,
    Split,
    Splits,
    Task,
    TaskContent,
    refuse_options,
)
from bertjax.finetune.kinds.words import WordKind
from bertjax.finetune.metrics.classification import compute_metrics, require_finite
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.objectives import Batch, Forward, Keys, Sums
from bertjax.training.objectives.objective import MODEL

_USE = """\
import torch
from transformers import AutoModelForTokenClassification, AutoTokenizer

tokenizer = AutoTokenizer.from_pretrained("path/to/this/folder")
model = AutoModelForTokenClassification.from_pretrained("path/to/this/folder")
with torch.no_grad():
    numbers = model(**tokenizer("a text", return_tensors="pt")).logits[0, :, 0]  # of each token"""


class WordNumber(NamedTuple):
    """A word and its number; NaN for a word without a token."""

    word: str
    number: float


class TokenNumberKind(WordKind):
    """Examples are sentences of words with a number each."""

    name, own_task, column = "token_regression", "token-regression", "numbers"
    dropped_clause = "they are not trained on, and get no number"
    metrics = ("spearman", "pearson")  # over all words
    problem_type = "regression"
    figures: ClassVar[tuple[str, ...]] = ("loss",)
    card = Card(
        "token-classification",
        "gives every word a number",
        _USE,
        onnx_outputs="`logits` has a row per token: the number that it was trained to give. A word has the number of "
        "its first token",
    )

    def num_labels(self, labels: int) -> int:
        return 1

    def logits(self, forward: Forward, batch: Batch, keys: Keys, network: str = MODEL) -> jax.Array:
        """[B, L]."""
        return forward.network(network).token_logits(forward(batch, network), batch["sequence_ids"], keys)[..., 0]

    def sums(self, task: TaskConfig, forward: Forward, batch: Batch, keys: Keys) -> Sums:
        """Sum the squared error."""
        error = self.logits(forward, batch, keys) - batch["labels"]
        return {"loss": jnp.sum(jnp.square(error) * batch["label_weights"])}

    def load(self, task: Task, config: FinetuneConfig, tokenizer: Tokenizer, splits: Splits) -> TaskContent:
        """Encode the sentences. Raises ValueError for a training or development set without a number."""
        counts, length = TagCounts(clause=self.dropped_clause), config.data.sequence_length

        def windows(sentences: Sequence[TaggedSentence]) -> TagWindows:
            return number_windows(sentences, tokenizer, length, counts, strict=config.task.strict_length)

        def split(name: str, sentences: Sequence[TaggedSentence]) -> Split:
            rows = windows(sentences)
            answers = word_numbers(sentences)
            measured = ~np.isnan(answers) & np.isin(np.arange(len(answers)), rows.word)

            def measure(logits: np.ndarray) -> Figures:
                return compute_metrics(task.metrics, decode_numbers(rows, logits)[measured], answers[measured])

            def write(folder: Path, logits: np.ndarray) -> list[Path]:
                numbers = iter(decode_numbers(rows, logits).tolist())
                fields = [[f"{next(numbers):.6g}" for _ in one.words] for one in sentences]
                write_words(path := folder / f"{name}.conll", sentences, fields)
                return [path]

            return Split(rows.rows, write, measure if measured.any() else None, numbers=answers[measured])

        train = windows(splits.train).rows
        dev = {name: split(name, sentences) for name, sentences in splits.dev.items()}
        for sentences, rows in ((splits.train, train), *((splits.dev[name], one.rows) for name, one in dev.items())):
            if not rows.tokens["label_weights"].any():
                raise ValueError(f"{sentences[0].where}: no word from here on has a number; add some")
        test = {name: split(name, sentences) for name, sentences in splits.test.items()}
        return TaskContent(self, (), train, dev, test, task.metrics, (*splits.notes, *counts.notices(length)))

    def own(self, config: TaskConfig) -> Task:
        refuse_options(config, ("labels",), "has no classes")
        return Task("own", self, self.metrics, Recipe(5e-5), partial(read_numbers, self.columns(config)))

    def predict_words(self, model: Inference, sentences: Sequence[TaggedSentence], counts: TagCounts) -> list[Any]:
        windows = number_windows(sentences, model.tokenizer, model.max_length, counts)
        numbers = iter(decode_numbers(windows, model.outputs(windows.rows)).tolist())
        return [[WordNumber(word, next(numbers)) for word in one.words] for one in sentences]

    def lines(self, prediction: list[WordNumber]) -> list[str]:
        return [f"{number:10.4f}  {word}" for word, number in prediction]


def number_windows(
    sentences: Sequence[TaggedSentence],
    tokenizer: Tokenizer,
    max_length: int,
    counts: TagCounts,
    *,
    strict: bool = False,
) -> TagWindows:
    """Like `tag_windows`, with `labels` float32; a word without a number has no weight."""
    numbers = word_numbers(sentences)
    windows = word_windows(sentences, tokenizer, max_length, counts, strict=strict)
    return windows.labelled(np.nan_to_num(numbers).astype(np.float32), ~np.isnan(numbers))


def word_numbers(sentences: Sequence[TaggedSentence]) -> np.ndarray:
    """Parse the number of each word: float64 [words], NaN without one."""
    return np.array([float(tag or "nan") for one in sentences for tag in one.tags or ("",) * len(one.words)])


def decode_numbers(windows: TagWindows, logits: np.ndarray) -> np.ndarray:
    """Decode the number of each word from logits float32 [tokens, 1]: float64 [words], NaN for a word without a token.

    Raises ValueError if a logit is not finite.
    """
    require_finite(logits)
    numbers = np.full(sum(len(one.words) for one in windows.sentences), np.nan)
    first = windows.word >= 0
    numbers[windows.word[first]] = logits[first, 0]
    return numbers


TOKEN_NUMBERS = TokenNumberKind()
