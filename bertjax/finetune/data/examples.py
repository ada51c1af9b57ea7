"""Examples of tasks. `where` is an example's location in messages: `FILE:LINE` or `FILE: record N`."""

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
    """A text, a pair of texts, or for multiple choice the common start and its ends."""

    where: str
    id: str  # as in submission files
    texts: tuple[str, ...]
    label: str | float | None  # a name; a number for regression; the right end's index, from 0, for choices

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arguments of `bertjax predict` for this example."""
        return self.texts


@dataclass(frozen=True)
class TaggedSentence:
    """The words of a sentence and their tags, if there are any."""

    where: str
    id: str
    words: tuple[str, ...]
    tags: tuple[str, ...] | None
    lines: tuple[int, ...] = ()  # line of each word in the file; empty where one record holds all words

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arguments of `bertjax predict` for this example."""
        return (" ".join(self.words),)

    @property
    def file(self) -> Path:
        """The source file."""
        return Path(self.where.rpartition(":")[0])

    def locate_word(self, word: int) -> str:
        """Return `FILE:LINE` of word number `word`, from 0, for messages."""
        return f"{self.file}:{self.lines[word]}" if self.lines else self.where


@dataclass(frozen=True)
class Question:
    """A question about a text, with its answers: (text, index of its first character in the context)."""

    where: str
    id: str
    question: str
    context: str
    answers: tuple[tuple[str, int], ...]
    impossible: bool  # the text does not answer it
    article: str = ""  # the article that contains the text

    @property
    def inputs(self) -> tuple[str, ...]:
        """The arguments of `bertjax predict` for this example."""
        return self.question, self.context


# File names by split, in folders of the user's own data.
SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}


class MissingSplitError(ValueError):
    """A split of a task is missing."""


def split_file(folder: Path, names: Sequence[str], suffixes: Sequence[str]) -> Path | None:
    """Find the file with one of `names` and one of `suffixes`, compressed or not; None if there is none.

    Raises ValueError if there are several.
    """
    ends = [suffix + packed for suffix in suffixes for packed in ("", *COMPRESSED)]
    paths = [path for name in names for end in ends if (path := folder / f"{name}{end}").is_file()]
    if len(paths) > 1:
        raise ValueError(f"{folder}: {' and '.join(path.name for path in paths)} both match; keep one of them there")
    return paths[0] if paths else None


def missing(folder: Path, split: str, files: Sequence[str]) -> MissingSplitError:
    """Make the error for a folder without any of `files`."""
    if not folder.exists():
        return MissingSplitError(f"{folder}: no {split} set: no such file or folder; correct the path")
    what = f"none of {', '.join(files)} is there" if folder.is_dir() else "a file, not a folder"
    return MissingSplitError(f"{folder}: no {split} set: {what}; name the folder that holds it as --data")


def whole_text(path: Path) -> str:
    """Read a UTF-8 file, decompressed according to its suffix (.gz .bz2 .xz .zst).

    Raises ValueError naming a missing file, or the line that is not UTF-8.
    """
    if not path.is_file():
        raise ValueError(f"{path}: no such file")
    content = whole_content(str(path))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(f"{path}:{line}: not UTF-8 at byte {error.start}; convert the file (iconv -t utf-8)") from None


def label_set(examples: Sequence[TextExample]) -> tuple[str, ...]:
    """List the sorted labels of a training set. Raises ValueError naming the first example for fewer than two."""
    labels = tuple(sorted({str(example.label) for example in examples if example.label is not None}))
    if len(labels) < 2:
        where = examples[0].where if examples else "no examples"
        what = f"all labels from here on are {labels[0]!r}" if labels else "no labels from here on"
        raise ValueError(f"{where}: {what}, but a task needs two or more; is it the right column?")
    return labels


def label_numbers(examples: Sequence[TextExample], labels: Sequence[str]) -> np.ndarray:
    """Map each example's label to its index in `labels`: int32 [n], -1 without a label.

    Raises ValueError naming the line of the first unknown label.
    """
    numbers: dict[str | float | None, int] = {None: -1}
    numbers |= {label: number for number, label in enumerate(labels)}
    for example in examples:
        if example.label not in numbers:
            raise ValueError(f"{example.where}: label {example.label!r} is not one of {', '.join(labels)}; correct it")
    return np.array([numbers[example.label] for example in examples], np.int32)


def parse_number(where: str, label: str) -> float:
    """Parse a regression label. Raises ValueError naming the line if it is not a finite number."""
    try:
        number = float(label)
    except ValueError:
        number = math.nan
    if not math.isfinite(number):
        raise ValueError(f"{where}: label {label!r} is not a finite number, which regression needs; correct it")
    return number


def label_weights(task: TaskConfig, labels: Sequence[str], numbers: Callable[[], np.ndarray]) -> Sequence[float] | None:
    """Compute the weight of each label in the loss, from `class_weights` or balanced; None if all are 1.

    `numbers` returns the index in `labels` of each training example's label. Raises ValueError for a task without
    labels, and if the number of weights is wrong.
    """
    weights, balanced = task.class_weights, task.balanced
    if not weights and not balanced:
        return None
    if weights and balanced:
        raise ValueError(f"task.class_weights={weights} and task.balanced=True: give one of them")
    if not labels:
        raise ValueError(
            f"{task.name}: task.class_weights and task.balanced (--balanced) are for tasks with labels; leave them out"
        )
    if balanced:
        counts = np.bincount(numbers(), minlength=len(labels))
        return (counts.sum() / (len(labels) * np.maximum(counts, 1))).tolist()
    if len(weights) != len(labels) or min(weights) < 0:
        raise ValueError(f"task.class_weights={weights}: give one, 0 or more, for each label: {', '.join(labels)}")
    return weights
