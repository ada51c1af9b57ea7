"""Tagging: predict a tag for every word of a sentence (transformers' BertForTokenClassification)."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import astuple, replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np
from scipy.special import softmax

from bertjax.config import FinetuneConfig, TaskConfig
from bertjax.finetune.data.examples import TaggedSentence, label_weights
from bertjax.finetune.data.tables import WITHOUT_TABS
from bertjax.finetune.data.tags import (
    CONLL,
    EntitySet,
    TagColumns,
    read_entity_set,
    read_tags,
    tag_layout,
    tagged_text,
    tags_in,
    write_tags,
    write_words,
)
from bertjax.finetune.encoding.tag_windows import (
    TagCounts,
    TagWindows,
    decode_tags,
    most_frequent_tag,
    tag_numbers,
    tag_windows,
)
from bertjax.finetune.kinds.kind import (
    Card,
    Figures,
    Inference,
    Judged,
    Measure,
    Recipe,
    Split,
    Splits,
    Task,
    TaskContent,
    mismatch_error,
    read_run_file,
)
from bertjax.finetune.kinds.words import WordKind
from bertjax.finetune.metrics.classification import accuracy
from bertjax.finetune.metrics.entities import EntityFigures, entity_figures
from bertjax.storage.remote import AnyPath
from bertjax.tokenization.tokenizer import Tokenizer
from bertjax.training.objectives import Batch, Forward, Keys
from bertjax.training.objectives.objective import MODEL

_ENTITY_METRICS = ("f1", "precision", "recall")
_REACH = 8  # words shown on both sides of a tag in the report
_TAG = """\
from transformers import pipeline

tag = pipeline("token-classification", "path/to/this/folder", aggregation_strategy="first")
tag("A text of several words.")  # a word has the tag of its first piece"""


class Tag(NamedTuple):
    """A word and its likeliest tag; None for a word without a token."""

    word: str
    tag: str | None
    probability: float


class TokenKind(WordKind):
    """Examples are sentences of words with a tag each."""

    name, own_task = "tokens", "token-classification"
    dropped_clause = "they are not trained on, and are predicted to have the most frequent tag"
    metrics = ("accuracy",)
    names_outputs = learns_predictions = True
    card = Card(
        "token-classification",
        "gives every word a tag",
        _TAG,
        onnx_outputs="`logits` has a row per token, with a number for each label: {labels}. A word has the numbers of "
        "its first token",
    )

    def logits(self, forward: Forward, batch: Batch, keys: Keys, network: str = MODEL) -> jax.Array:
        """[B, L, classes]."""
        return forward.network(network).token_logits(forward(batch, network), batch["sequence_ids"], keys)

    def load(self, task: Task, config: FinetuneConfig, tokenizer: Tokenizer, splits: Splits) -> TaskContent:
        """Encode the sentences. Raises ValueError naming file and line of a tag that the training set lacks."""
        labels, counts, length = task.labels, TagCounts(clause=self.dropped_clause), config.data.sequence_length
        otherwise = most_frequent_tag(splits.train)

        def windows(sentences: Sequence[TaggedSentence], weights: Sequence[float] | None = None) -> TagWindows:
            strict = config.task.strict_length
            return tag_windows(sentences, labels, tokenizer, length, counts, strict=strict, label_weights=weights)

        def split(name: str, sentences: Sequence[TaggedSentence]) -> Split:
            rows = windows(sentences)
            in_file = name in splits.test and bool(sentences[0].lines)
            source, column = sentences[0].file, config.task.label
            # Read now, because the file may change before the tags are predicted.
            text, layout = (tagged_text(source), tag_layout(source, column)) if in_file else ("", CONLL)

            def tags(logits: np.ndarray) -> list[list[str]]:
                return decode_tags(rows, logits, labels, otherwise)

            def measure(logits: np.ndarray) -> Figures:
                return tag_figures(task.metrics, sentences, tags(logits))

            def judge(logits: np.ndarray) -> list[Judged]:
                shares = np.ones(sum(len(sentence.words) for sentence in sentences))
                first = rows.word >= 0
                shares[rows.word[first]] = softmax(logits[first].astype(np.float64), -1).max(-1)
                return judge_tags(sentences, tags(logits), shares)

            def write(folder: Path, logits: np.ndarray) -> list[Path]:
                path = folder / f"{name}.{'conllu' if layout.conllu else 'conll'}"
                if in_file:
                    write_tags(source, text, path, layout, tags(logits))
                else:
                    write_words(path, sentences, tags(logits))
                return [path]

            if any(sentence.tags is None for sentence in sentences):
                return Split(rows.rows, write)
            return Split(rows.rows, write, measure, constant_tag_figures(task.metrics, sentences), judge)

        weights = label_weights(config.task, labels, lambda: tag_numbers(splits.train, labels))
        train = windows(splits.train, weights).rows
        dev = {name: split(name, sentences) for name, sentences in splits.dev.items()}
        test = {name: split(name, sentences) for name, sentences in splits.test.items()}
        return TaskContent(self, labels, train, dev, test, task.metrics, (*splits.notes, *counts.notices(length)))

    def labels_in(self, train: Sequence[TaggedSentence]) -> tuple[str, ...]:
        return tags_in(train)

    def example_labels(self, example: TaggedSentence) -> tuple[str, ...]:
        return example.tags or ()

    def load_measures(
        self, task: Task, name: str, examples: Sequence[TaggedSentence], folder: AnyPath
    ) -> dict[str, Measure]:
        path = folder / f"{name}.conll"
        sentences = [part.split("\n") for part in read_run_file(path).removesuffix("\n\n").split("\n\n")]
        lines = [[line.rpartition("\t") for line in sentence] for sentence in sentences]
        expected = [[word.translate(WITHOUT_TABS) for word in one.words] for one in examples]
        if [[word for word, _, _ in one] for one in lines] != expected:
            raise mismatch_error(path)
        both = [([tag for _, _, tag in line], one.tags or ()) for line, one in zip(lines, examples, strict=True)]
        words = np.array([len(gold) for _, gold in both])
        right = np.array([sum(map(str.__eq__, tags, gold)) for tags, gold in both])
        figures: dict[str, Measure] = {"accuracy": lambda drawn: right[drawn].sum() / words[drawn].sum()}
        if not figures.keys() >= {*task.metrics}:
            counts = np.array([astuple(entity_figures([tags], [gold])) for tags, gold in both])
            figures |= {
                metric: lambda drawn, metric=metric: getattr(EntityFigures(*counts[drawn].sum(axis=0)), metric)
                for metric in _ENTITY_METRICS
            }
        return {metric: figures[metric] for metric in task.metrics}

    def tag_task(self, columns: TagColumns, labels: tuple[str, ...] = (), *, entities: bool = False) -> Task:
        """Make a task of files with tagged words; `entities`: tags are O or like B-PER."""
        metrics = _ENTITY_METRICS if entities else self.metrics
        return Task("own", self, metrics, Recipe(5e-5), partial(read_tags, columns, entities), labels)

    def own(self, config: TaskConfig) -> Task:
        return replace(self.configured(self.tag_task(TagColumns(), config.labels), config), name=config.name)

    def set_task(self, name: str, layout: EntitySet, paper: Mapping[str, float]) -> Task:
        """Make the task of a published set of named entities."""
        read = partial(read_entity_set, layout)
        return Task(
            name, self, _ENTITY_METRICS, Recipe(5e-5), read, tuple(sorted(layout.tags)), paper=paper, fixed_columns=True
        )

    def configured(self, task: Task, config: TaskConfig) -> Task:
        if task.fixed_columns:
            return super().configured(task, config)
        columns = self.columns(config)
        if not (config.label or config.text or config.labels):
            return task
        tag_task = self.tag_task(columns, config.labels, entities=task.metrics == _ENTITY_METRICS)
        return replace(tag_task, name=config.name)

    def predict_words(self, model: Inference, sentences: Sequence[TaggedSentence], counts: TagCounts) -> list[Any]:
        windows = tag_windows(sentences, model.labels, model.tokenizer, model.max_length, counts)
        shares = softmax(model.outputs(windows.rows).astype(np.float64), -1)
        tags: list[tuple[str | None, float]] = [(None, 0.0)] * sum(len(one.words) for one in sentences)
        for token in np.flatnonzero(windows.word >= 0):
            best = int(shares[token].argmax())
            tags[windows.word[token]] = model.labels[best], float(shares[token, best])
        in_order = iter(tags)
        return [[Tag(word, *next(in_order)) for word in one.words] for one in sentences]

    def lines(self, prediction: list[Tag]) -> list[str]:
        return [f"{tag.tag or '-':12} {tag.word}" for tag in prediction]


TOKENS = TokenKind()


def tag_figures(
    metrics: Sequence[str], sentences: Sequence[TaggedSentence], predicted: Sequence[Sequence[str]]
) -> Figures:
    """Compute metrics of predicted tags: `accuracy` over words; `f1`, `precision`, `recall` of entities."""
    labels = [sentence.tags or () for sentence in sentences]
    flat = [np.array([*itertools.chain(*tags)]) for tags in (predicted, labels)]
    figures = {"accuracy": accuracy(*flat)} if "accuracy" in metrics else {}
    if figures.keys() != {*metrics}:
        overall = entity_figures(predicted, labels)
        figures |= {"f1": overall.f1, "precision": overall.precision, "recall": overall.recall}
    return {name: figures[name] for name in metrics}


def judge_tags(
    sentences: Sequence[TaggedSentence], predicted: Sequence[Sequence[str]], shares: np.ndarray
) -> list[Judged]:
    """Compare the tag of each word with the right one. Texts are the words with `_REACH` words on both sides.

    `shares` are the probabilities of the predicted tags, float64 [words].
    """
    judged, share = [], iter(shares.tolist())
    for sentence, tags in zip(sentences, predicted, strict=True):
        for number, (answer, tag) in enumerate(zip(sentence.tags or (), tags, strict=True)):
            start, end = max(0, number - _REACH), number + _REACH + 1
            before, after = sentence.words[start:number], sentence.words[number + 1 : end]
            text = " ".join((*before, f"[{sentence.words[number]}]", *after))
            judged.append(Judged((text,), answer, tag, answer == tag, next(share)))
    return judged


def constant_tag_figures(metrics: Sequence[str], sentences: Sequence[TaggedSentence]) -> Figures:
    """Compute metrics of a constant tag: the better of the two most frequent ones."""
    counts = Counter(tag for sentence in sentences for tag in sentence.tags or ())
    tags = [tag for tag, _ in counts.most_common(2)]  # at least one of them is not O
    each = [tag_figures(metrics, sentences, [(tag,) * len(one.words) for one in sentences]) for tag in tags]
    return {metric: max(figures[metric] for figures in each) for metric in metrics}
