"""Examples, as readers return them and encoders take them: their files, their texts, their labels.

`where` names an example in messages: `FILE:LINE`, or `FILE: record N` where there are no lines.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bertjax.config import TaskConfig
from bertjax.storage.lines import COMPRESSED, whole_content


@dataclass(frozen=True)
class TextExample:
    """One text, a pair, or for multiple choice the common start and its ends; label None where there is none."""

    where: str
    id: str  # as the submission format names it
    texts: tuple[str, ...]
    label: str | float | None  # a name; a number for regression; the index of the right end, from 0, for choices

    @property
    def inputs(self) -> tuple[str, ...]:
        """What a command line gives to be predicted."""
        return self.texts


@dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence, each with its tag; None where there are none."""

    where: str
    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    lines: tuple[int, ...] = ()  # line of each word in the file; empty where one record holds all words

    @property
    def inputs(self) -> tuple[str, ...]:
        """What a command line gives to be predicted."""
        return (" ".join(self.words),)

    @property
    def file(self) -> Path:
        """The file that it was read from."""
        return Path(self.where.rpartition(":")[0])

    def where_of(self, word: int) -> str:
        """The line of a word, by its index from 0, for messages."""
        return f"{self.file}:{self.lines[word]}" if self.lines else self.where


@dataclass(frozen=True)
class Question:
    """A question about a text, and its answers: each with the character of the text where it begins."""

    where: str
    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    impossible: bool  # the text does not answer it
    article: str = ""  # the article that the text is part of

    @property
    def inputs(self) -> tuple[str, ...]:
        """What a command line gives to be predicted."""
        return self.question, self.context


# By split: the names that files of a user's own may have.
SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}


class MissingSplitError(ValueError):
    """A split of a task is missing."""


def split_file(folder: Path, names: Sequence[str], suffixes: Sequence[str]) -> Path | None:
    """The file with one of `names` and one of `suffixes`, compressed or not; None if there is none.

    Raises ValueError if there are several.
    """
    ends = [suffix + packed for suffix in suffixes for packed in ("", *COMPRESSED)]
    found = [path for name in names for end in ends if (path := folder / f"{name}{end}").is_file()]
    if len(found) > 1:
        raise ValueError(f"{folder}: {' and '.join(path.name for path in found)} could both be meant; keep one there")
    return found[0] if found else None


def missing(folder: Path, split: str, files: Sequence[str]) -> MissingSplitError:
    """The error for a folder that holds none of `files`."""
    if not folder.exists():
        return MissingSplitError(f"{folder}: no {split} set: no such file or folder; correct the path")
    what = f"none of {', '.join(files)} is there" if folder.is_dir() else "a file, not a folder"
    return MissingSplitError(f"{folder}: no {split} set: {what}; name the folder that holds it as --data")


_MOST_BYTES = 128 << 20


def whole_text(path: Path, most: int = _MOST_BYTES) -> str:
    """The text of a UTF-8 file, decompressed by suffix (.gz .bz2 .xz .zst).

    Raises ValueError naming the file if it is not there or has over `most` bytes, and the line where it is not UTF-8.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    content = whole_content(str(path), most, "split it into files of their own")
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: not UTF-8 at byte {error.start}; convert the file (iconv -t utf-8)") from None


def label_set(examples: Sequence[TextExample]) -> tuple[str, ...]:
    """The labels of a training set, sorted. Raises ValueError, naming the first example, if there are not two."""
    labels = tuple(sorted({str(example.label) for example in examples if example.label is not None}))
    if len(labels) < 2:
        where = examples[0].where if examples else "no examples"
        what = f"all labels from here on are {labels[0]!r}" if labels else "no labels from here on"
        raise ValueError(f"{where}: {what}; a task needs two or more: is it the right column?")
    return labels


def label_numbers(examples: Sequence[TextExample], labels: Sequence[str]) -> np.ndarray:
    """The index of each example's label in `labels`: int32 [n], -1 where it has none.

    Raises ValueError naming the line of the first label that is not among them.
    """
    numbers: dict[str | float | None, int] = {None: -1}
    numbers |= {label: number for number, label in enumerate(labels)}
    for example in examples:
        if example.label not in numbers:
            raise ValueError(f"{example.where}: label {example.label!r} is not one of {', '.join(labels)}; correct it")
    return np.array([numbers[example.label] for example in examples], np.int32)


def require_judgements(examples: Sequence[TextExample]) -> None:
    """Raise ValueError naming the line of the first label that is neither 0 nor 1: whether a passage is relevant."""
    for example in examples:
        if example.label not in (0, 1, None):
            raise ValueError(
                f"{example.where}: label {example.label!r} is neither 0 nor 1 (is the passage relevant?); correct it"
            )


def number_of(where: str, label: str) -> float:
    """The label of an example of regression. Raises ValueError naming the line if it is not a finite number."""
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{where}: label {label!r} is not a finite number, which regression needs; correct it")
    return number


def label_weights(task: TaskConfig, labels: Sequence[str], numbers: Callable[[], np.ndarray]) -> Sequence[float] | None:
    """The weight of each label in the loss: the config's, or such that every label counts the same; None if all are 1.

    `numbers` returns the index of every training label in `labels`. Raises ValueError where there are no labels, or not
    one weight for each.
    """
    given, balanced = task.class_weights, task.balanced
    if not given and not balanced:
        return None
    if given and balanced:
        raise ValueError(f"task.class_weights={given} and task.balanced=True: give one of them")
    if not labels:
        raise ValueError(
            f"{task.name}: task.class_weights and task.balanced (--balanced) are for tasks with labels; leave them out"
        )
    if balanced:
        counts = np.bincount(numbers(), minlength=len(labels))
        return (counts.sum() / (len(labels) * np.maximum(counts, 1))).tolist()
    if len(given) != len(labels) or min(given) < 0:
        raise ValueError(f"task.class_weights={given}: give one, 0 or more, for each label: {', '.join(labels)}")
    return given
