"""The data of tasks whose examples are sentences with a tag for each word."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from bertjax.config import FinetuneConfig
from bertjax.finetune.chosen import Examples, drawn
from bertjax.finetune.content import Figures, Split, TaskContent
from bertjax.finetune.examples import TaggedSentence
from bertjax.finetune.label_weights import label_weights
from bertjax.finetune.tag_files import TagLayout, tag_layout, tagged_text, tags_in, write_tags, write_words
from bertjax.finetune.tag_windows import (
    TagCounts,
    TagWindows,
    most_frequent_tag,
    tag_figures,
    tag_numbers,
    tag_windows,
    tags_of,
)
from bertjax.finetune.tasks import Task
from bertjax.tokenization.tokenizer import Tokenizer


def open_tags(task: Task, config: FinetuneConfig, tokenizer: Tokenizer, sets: Examples) -> TaskContent:
    """The content of a task of tags. Raises ValueError naming file and line of a tag that training does not have."""
    train, counts = drawn(sets.train, config), TagCounts()
    labels = task.labels or tags_in(sets.train)
    otherwise = most_frequent_tag(train)

    def windows(sentences: Sequence[TaggedSentence], weights: Sequence[float] | None = None) -> TagWindows:
        length, strict = config.data.sequence_length, config.task.strict_length
        return tag_windows(sentences, labels, tokenizer, length, counts, strict=strict, label_weights=weights)

    def split(name: str, sentences: Sequence[TaggedSentence]) -> Split:
        made = windows(sentences)
        tags = partial(tags_of, made, labels=labels, otherwise=otherwise)
        labelled = all(sentence.tags is not None for sentence in sentences)
        figures = partial(_figures, tags, sentences, task.metrics) if labelled else None
        write = _write
        if name in sets.test and sentences[0].lines:
            file = sentences[0].file
            # The text too: by the time that it is predicted the file may be another.
            write = partial(_write_into, file, tagged_text(file), tag_layout(file, config.task.label))
        return Split(made.rows, partial(write, tags, sentences, name), figures)

    rows = windows(train, label_weights(config.task, labels, lambda: tag_numbers(train, labels))).rows
    dev = {name: split(name, sentences) for name, sentences in sets.dev.items()}
    test = {name: split(name, sentences) for name, sentences in sets.test.items()}
    notes = (*sets.notes, *counts.told(config.data.sequence_length))
    share = _share_of(otherwise, next(iter(sets.dev.values())))
    return TaskContent(task.kind, labels, rows, dev, test, task.metrics, notes, {"baseline/majority_accuracy": share})


def _share_of(tag: str, sentences: Sequence[TaggedSentence]) -> float:
    tags = [found for sentence in sentences for found in sentence.tags or ()]
    return tags.count(tag) / len(tags)


def _figures(
    tags: partial[list[list[str]]], sentences: Sequence[TaggedSentence], metrics: Sequence[str], logits: np.ndarray
) -> Figures:
    return tag_figures(metrics, sentences, tags(logits=logits))


def _write(
    tags: partial[list[list[str]]], sentences: Sequence[TaggedSentence], name: str, folder: Path, logits: np.ndarray
) -> list[Path]:
    """A word and its tag a line."""
    path = folder / f"{name}.conll"
    write_words(path, sentences, tags(logits=logits))
    return [path]


def _write_into(
    source: Path,
    text: str,
    layout: TagLayout,
    tags: partial[list[list[str]]],
    sentences: Sequence[TaggedSentence],
    name: str,
    folder: Path,
    logits: np.ndarray,
) -> list[Path]:
    """The file of the sentences, with these tags instead."""
    path = folder / f"{name}.{'conllu' if layout.conllu else 'conll'}"
    write_tags(source, text, path, layout, tags(logits=logits))
    return [path]
