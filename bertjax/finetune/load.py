"""From a config to a task's data: its files read, its splits chosen, its examples encoded."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.config import FinetuneConfig, TaskConfig
from bertjax.finetune.data.examples import MissingSplitError
from bertjax.finetune.data.tables import Notify
from bertjax.finetune.kinds.kind import Kind, Splits, Task, TaskContent, baselines_of_sets
from bertjax.finetune.tasks import task_for
from bertjax.input.randomness import derive_key, permute
from bertjax.tokenization.tokenizer import Tokenizer

_TO_SHOW, _LONGEST_SHOWN = 100, 500  # examples to choose one to show from, and its most characters
_HELD_OUT = 10  # without a development set, one in so many training examples is held out
# Keys of a task that decide which predictions are made of a network's outputs.
_OF_PREDICTIONS = ("name", "doc_stride", "max_query", "max_answer", "n_best", "null_threshold")


def load_task(config: FinetuneConfig, tokenizer: Tokenizer) -> TaskContent:
    """The data of the config's task. Raises ValueError naming file and line of what is wrong in them."""
    task = task_for(config.task)
    splits = read_splits(task, config)
    task = replace(task, labels=labels_of(task, splits.train))
    chosen = replace(splits, train=_drawn(splits.train, config))
    content = task.kind.load(task, config, tokenizer, chosen)
    return replace(
        content,
        example=_example(splits),
        averaged=task.averaged,
        measured_by=measured_by(config.task, splits),
        baselines=content.baselines | baselines_of_sets(content),
    )


def _example(splits: Splits) -> tuple[str, ...]:
    """The texts of the shortest of the first development examples, none if even they are long for a command."""
    first = next(iter(splits.dev.values()))[:_TO_SHOW]
    texts = min((one.inputs for one in first), key=lambda texts: sum(map(len, texts)), default=())
    return texts if sum(map(len, texts)) <= _LONGEST_SHOWN else ()


def labels_of(task: Task, train: Sequence[Any]) -> tuple[str, ...]:
    """The labels of a task in the order of their numbers: its own, or those of its training set.

    There are none for numbers, vectors and spans; those of choices are their indices. Raises ValueError if there are
    too few.
    """
    return task.labels or task.kind.labels_in(train)


def read_split(task: Task, data: Path, split: str, notify: Notify = print, *, named: bool = False) -> list[Any] | None:
    """The examples of a split: `train`, one of the task's `dev_splits`, or a test split; None if that is missing.

    A split whose file was `named` must not be missing. `notify` is called with notices about the files. Raises
    ValueError naming the folder if another split is missing or empty, and file and line of what is wrong in it, such
    as a label that is not one of `task.labels`.
    """
    may_be_missing = split.startswith("test") and not named
    try:
        examples = task.read(data, split, notify)
    except MissingSplitError:
        if may_be_missing:
            return None
        raise
    if not examples:
        if may_be_missing:
            return None
        raise ValueError(f"{data}: its {split} set is empty; name another file as --{split.partition('_')[0]}")
    task.kind.check_examples(examples, task.labels)
    return examples


def read_dev(task: Task, data: Path, notify: Notify = print) -> dict[str, list[Any]]:
    """The development sets by split: one, for MNLI two, or the `dev` of a subset.

    Raises ValueError as `read_split` does if there is none.
    """
    found: dict[str, list[Any]] = {}
    missing = None
    for split in dict.fromkeys((*task.dev_splits, "dev")):
        try:
            if (examples := read_split(task, data, split, notify)) is not None:
                found[split] = examples
        except MissingSplitError as error:
            missing = missing or error
    if missing and not found:
        raise missing
    return found


def read_splits(task: Task, config: FinetuneConfig) -> Splits:
    """Read all splits of a task: those with a file of their own from it, the others from the folder of its files.

    Without a development set, a tenth of the training set becomes it. A hash of the examples decides which tenth, so
    that equal examples stay together. Raises ValueError naming file and line of what is wrong.
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

    folder = Path(given.data)
    train = named("train") if given.train else list(read_split(task, folder, "train", notes.append) or ())
    test = {"test": named("test")} if given.test else {}
    if given.data and not given.test:
        names = dict.fromkeys((*task.submissions, *task.test_splits))
        found = {split: read_split(task, folder, split, notes.append) for split in names}
        test = {split: list(examples) for split, examples in found.items() if examples}
    if given.dev:
        return Splits(train, {"dev": named("dev")}, test, tuple(notes))
    try:
        if not given.data:
            raise MissingSplitError(f"{given.train}: no development set")
        dev: Mapping[str, Sequence[Any]] = read_dev(task, folder, notes.append)
    except MissingSplitError:
        train, held = _held_out(train, task.kind)
        dev = {"dev": held}
        notes.append(f"no development set; {len(held):,} of the training examples are held out for it")
    return Splits(train, dev, test, tuple(notes))


def _drawn(examples: Sequence[Any], config: FinetuneConfig) -> Sequence[Any]:
    """`task.examples` of the examples, drawn by the seed, in the order of the file; all of them for 0."""
    wanted, there = config.task.examples, len(examples)
    if wanted > there:
        raise ValueError(f"task.examples={wanted:,}: the training set has {there:,}; give fewer, or 0 for all")
    if not wanted:
        return examples
    key = derive_key(config.training.seed, "which examples")
    return [examples[index] for index in np.sort(permute(np.arange(wanted), there, key))]


def _held_out(examples: Sequence[Any], kind: Kind) -> tuple[list[Any], list[Any]]:
    """(those that stay, those held out), by a hash of their `shared_part`, of which at least one is held out.

    No label is held out everywhere. Raises ValueError naming the first example if none can be held out so.
    """
    hashes = [_hash(repr(kind.shared_part(example))) for example in examples]
    held = {number for number in hashes if number % _HELD_OUT == 0}
    both = list(zip(examples, hashes, strict=True))
    known = {label for example, number in both if number not in held for label in kind.labels_of(example)}
    held -= {number for example, number in both if not known.issuperset(kind.labels_of(example))}
    if not (held := held or _one_to_hold_out(both, kind)):
        raise ValueError(
            f"{examples[0].where}: too few examples to hold out a development set: the {len(examples):,} from here on "
            f"are about one {kind.unit}, or each is the only one with its label; pass --dev FILE"
        )
    return [one for one, number in both if number not in held], [one for one, number in both if number in held]


def _one_to_hold_out(both: Sequence[tuple[Any, int]], kind: Kind) -> set[int]:
    """The lowest hash whose examples have no label that only they have; none of a single one."""
    labels: dict[int, set[str]] = {}
    for example, number in both:
        labels.setdefault(number, set()).update(kind.labels_of(example))
    holders = Counter(label for some in labels.values() for label in some)
    able = [number for number, some in labels.items() if all(holders[label] > 1 for label in some)]
    return {min(able)} if able and len(labels) > 1 else set()


def _hash(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "big")


def measured_by(task: TaskConfig, splits: Splits) -> str:
    """SHA-256 (hex) over the examples of the development and test sets, and the settings of predictions."""
    found = hashlib.sha256(repr([getattr(task, key) for key in _OF_PREDICTIONS]).encode())
    for name, some in (*splits.dev.items(), *splits.test.items()):
        found.update(f"\n{name}: {len(some)}\n".encode())
        for example in some:
            found.update(repr(replace(example, where="")).encode())
    return found.hexdigest()
