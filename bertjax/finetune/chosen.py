"""Which examples a run trains on and is measured by."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from bertjax.config import FinetuneConfig
from bertjax.finetune.examples import Question, TaggedSentence, TextExample
from bertjax.finetune.split_files import MissingSplitError
from bertjax.finetune.tasks import Task, read_dev, read_split
from bertjax.input.randomness import derive_key, permute

Example = TypeVar("Example")

_HELD_OUT = 10  # where there is no development set, one in so many training examples
_BY_FIRST_TEXT = ("vector", "relevance")  # kinds in which a query comes again with other passages


@dataclass(frozen=True)
class Examples:
    """A task's examples by set, as they were read."""

    train: Sequence[Any]
    dev: Mapping[str, Sequence[Any]]
    test: Mapping[str, Sequence[Any]]
    notes: tuple[str, ...]


def read_examples(task: Task, config: FinetuneConfig) -> Examples:
    """Read all sets of a task, those that are named by themselves and the others from the folder of its files.

    Without a development set, a tenth of the training set becomes it: which tenth is decided by the examples
    themselves, so that equal ones are on one side. Raises ValueError naming file and line of whatever is wrong.
    """
    given = config.task
    if given.data and Path(given.data).is_file():
        raise ValueError(f"task.data={given.data}: a file; name it as --train, and with --dev what measures the model")
    notes: list[str] = []
    if not given.data and not given.train:
        raise ValueError(
            f"{given.name}: no data; name the folder of its files (--data), or its training file (--train)"
        )

    def named(split: str) -> list[Any]:
        return list(read_split(task, Path(getattr(given, split)), split, notes.append, named=True) or ())

    place = Path(given.data)
    train = named("train") if given.train else list(read_split(task, place, "train", notes.append) or ())
    test = {"test": named("test")} if given.test else {}
    if given.data and not given.test:
        names = dict.fromkeys((*task.submissions, "test"))
        found = {split: read_split(task, place, split, notes.append) for split in names}
        test = {split: list(examples) for split, examples in found.items() if examples}
    if given.dev:
        return Examples(train, {"dev": named("dev")}, test, tuple(notes))
    try:
        if not given.data:
            raise MissingSplitError(f"{given.train}: no development set")
        dev: Mapping[str, Sequence[Any]] = read_dev(task, place, notes.append)
    except MissingSplitError:
        train, held = _held_out(train, task)
        dev = {"dev": held}
        notes.append(f"no development set; {len(held):,} of the training examples are held out for it")
    return Examples(train, dev, test, tuple(notes))


def drawn(examples: Sequence[Example], config: FinetuneConfig) -> Sequence[Example]:
    """As many as `task.examples` says, drawn by the seed, in the order of the file; all of them for 0."""
    wanted, there = config.task.examples, len(examples)
    if wanted > there:
        raise ValueError(f"task.examples={wanted:,}: the training set has {there:,}; give fewer, or 0 for all")
    if not wanted:
        return examples
    key = derive_key(config.training.seed, "which examples")
    return [examples[place] for place in np.sort(permute(np.arange(wanted), there, key))]


def _held_out(examples: Sequence[Example], task: Task) -> tuple[list[Example], list[Example]]:
    """(those that stay, those held out), by a hash of what they are about, one of several hashes at least.

    A label is not held out wherever it is. Raises ValueError naming the first example if so none can be.
    """
    hashes = [_hash(repr(_about(example, task))) for example in examples]
    held = {number for number in hashes if number % _HELD_OUT == 0}
    both = list(zip(examples, hashes, strict=True))
    known = {label for example, number in both if number not in held for label in _labels(example)}
    held -= {number for example, number in both if not known.issuperset(_labels(example))}
    if not (held := held or _one_to_hold_out(both)):
        what = "article" if isinstance(examples[0], Question) else "text"
        raise ValueError(
            f"{examples[0].where}: no development set, and of the {len(examples):,} examples from here on none can be "
            f"held out for it: they are about one {what}, or each has a label of its own; give one (--dev)"
        )
    return [one for one, number in both if number not in held], [one for one, number in both if number in held]


def _one_to_hold_out(both: Sequence[tuple[Any, int]]) -> set[int]:
    """The lowest hash whose examples have no label that only they have; none of a single one."""
    labels: dict[int, set[str]] = {}
    for example, number in both:
        labels.setdefault(number, set()).update(_labels(example))
    holders = Counter(label for some in labels.values() for label in some)
    able = [number for number, some in labels.items() if all(holders[label] > 1 for label in some)]
    return {min(able)} if able and len(labels) > 1 else set()


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def _labels(example: Any) -> tuple[str, ...]:
    """What training must have seen before it can be asked for."""
    if isinstance(example, TaggedSentence):
        return example.tags or ()
    return (example.label,) if isinstance(example, TextExample) and isinstance(example.label, str) else ()


def _about(example: Any, task: Task) -> Any:
    """What two examples may share so that one gives the other away."""
    if task.kind in _BY_FIRST_TEXT:
        return example.texts[0]
    if isinstance(example, Question):
        return example.article or example.context
    return example.words if isinstance(example, TaggedSentence) else example.texts
