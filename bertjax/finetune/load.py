"""Load the data of a task: read its files, choose its splits, encode its examples."""

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
from bertjax.finetune.kinds.kind import Kind, Split, Splits, Task, TaskContent
from bertjax.finetune.tasks import make_task
from bertjax.input.randomness import derive_key, permute
from bertjax.tokenization.tokenizer import Tokenizer

_CANDIDATES = 100  # development examples from which the shortest is printed as an example
_LONGEST_SHOWN = 500  # characters of that example
_HELD_OUT_PERIOD = 10  # one in ten training examples is held out if there is no development set


def load_task(config: FinetuneConfig, tokenizer: Tokenizer) -> TaskContent:
    """Load the data of the config's task. Raises ValueError naming file and line of an error in it."""
    task = make_task(config.task)
    splits = read_splits(task, config)
    task = replace(task, labels=task_labels(task, splits.train))
    content = task.kind.load(task, config, tokenizer, replace(splits, train=_draw_examples(splits.train, config)))
    _refuse_patience(config.task, next(iter(content.dev.values())))
    # An example for the commands that are printed at the end, unless all are too long.
    candidates = [one.inputs for one in next(iter(splits.dev.values()))[:_CANDIDATES]]
    example = min(candidates, key=lambda texts: sum(map(len, texts)), default=())
    return replace(
        content,
        example=example if sum(map(len, example)) <= _LONGEST_SHOWN else (),
        averaged=task.averaged,
        measured_by=measured_by(config.task, splits),
    )


def _refuse_patience(task: TaskConfig, dev: Split) -> None:
    """Raise ValueError for patience if all numbers of the development set are equal: no correlation is defined."""
    numbers = dev.numbers
    if task.patience and numbers is not None and (numbers == numbers[0]).all():
        raise ValueError(
            f"task.patience={task.patience}: all {len(numbers):,} numbers of the development set are {numbers[0]:g}, "
            "so that no correlation is defined; name another set (--dev), or leave --patience out"
        )


def task_labels(task: Task, train: Sequence[Any]) -> tuple[str, ...]:
    """List the labels of a task in the order of the network's outputs: its fixed ones, or the training set's.

    Numbers, vectors and spans have none; labels of choices are their indices. Raises ValueError for too few labels.
    """
    return task.labels or task.kind.labels_in(train)


def read_split(task: Task, data: Path, split: str, notify: Notify = print, *, named: bool = False) -> list[Any] | None:
    """Read a split: `train`, one of the task's `dev_splits`, or a test split; None for a missing test split.

    A test split must exist if its file was `named`. `notify` receives notices about the files. Raises ValueError naming
    the folder if the split is missing or empty, and file and line of an error in it, such as an unknown label.
    """
    optional = split.startswith("test") and not named
    try:
        examples = task.read(data, split, notify)
    except MissingSplitError:
        if not optional:
            raise
        examples = []
    if not examples:
        if optional:
            return None
        raise ValueError(f"{data}: its {split} set is empty; name another file as --{split.partition('_')[0]}")
    task.kind.check_examples(examples, task.labels)
    return examples


def read_dev(task: Task, data: Path, notify: Notify = print) -> dict[str, list[Any]]:
    """Read the development sets by split: one, two for MNLI, or `dev` in a subset of the data.

    Raises ValueError as `read_split` does if there is none.
    """
    sets: dict[str, list[Any]] = {}
    missing = None
    for split in dict.fromkeys((*task.dev_splits, "dev")):
        try:
            if (examples := read_split(task, data, split, notify)) is not None:
                sets[split] = examples
        except MissingSplitError as error:
            missing = missing or error
    if missing and not sets:
        raise missing
    return sets


def read_splits(task: Task, config: FinetuneConfig) -> Splits:
    """Read all splits of a task, each from its own file if one is named, else from the task's folder.

    Without a development set, a tenth of the training set is held out. A hash of the examples chooses it, so that equal
    examples stay together. Raises ValueError naming file and line of an error.
    """
    options = config.task
    if options.data and Path(options.data).is_file():
        raise ValueError(f"task.data={options.data}: a file, not a folder; give it as --train, and a --dev file")
    if not options.data and not options.train and task.read_train is None:
        raise ValueError(
            f"{options.name}: no data; name the folder of its files (--data), or its training file (--train)"
        )
    notes: list[str] = []
    folder = Path(options.data)

    def read(path: Path, split: str, *, named: bool = True) -> list[Any]:
        return list(read_split(task, path, split, notes.append, named=named) or ())

    if task.read_train is not None:
        train = task.read_train(notes.append)
    else:
        train = read(Path(options.train), "train") if options.train else read(folder, "train")
    test = {"test": read(Path(options.test), "test")} if options.test else {}
    if options.data and not options.test:
        names = dict.fromkeys((*task.submissions, *task.test_splits))
        sets = {split: read(folder, split, named=False) for split in names}
        test = {split: examples for split, examples in sets.items() if examples}
    if options.dev:
        return Splits(train, {"dev": read(Path(options.dev), "dev")}, test, tuple(notes))
    try:
        if not options.data:
            raise MissingSplitError(f"{options.train}: no development set")
        dev: Mapping[str, Sequence[Any]] = read_dev(task, folder, notes.append)
    except MissingSplitError:
        train, held_out = _hold_out(train, task.kind)
        dev = {"dev": held_out}
        notes.append(f"no development set; {len(held_out):,} of the training examples are held out for it")
    return Splits(train, dev, test, tuple(notes))


def _draw_examples(examples: Sequence[Any], config: FinetuneConfig) -> Sequence[Any]:
    """Draw `task.examples` examples by the seed, in the order of the file; 0 takes all."""
    count = config.task.examples
    if count > len(examples):
        raise ValueError(f"task.examples={count:,}: the training set has {len(examples):,}; give fewer, or 0 for all")
    if not count:
        return examples
    key = derive_key(config.training.seed, "which examples")
    return [examples[index] for index in np.sort(permute(np.arange(count), len(examples), key))]


def _hold_out(examples: Sequence[Any], kind: Kind) -> tuple[list[Any], list[Any]]:
    """Split examples into (training, held out) by a hash of their `shared_part`; at least one is held out.

    Training keeps an example of every label. Raises ValueError naming the first example if that is impossible.
    """
    parts = [repr(kind.shared_part(example)).encode() for example in examples]
    hashes = [int.from_bytes(hashlib.sha256(part).digest()[:8], "big") for part in parts]
    labels: dict[int, set[str]] = {}
    for example, number in zip(examples, hashes, strict=True):
        labels.setdefault(number, set()).update(kind.example_labels(example))

    period = max(_HELD_OUT_PERIOD, len(examples) // kind.most_held_out if kind.most_held_out else 0)
    held_out = {number for number in labels if number % period == 0}
    train_labels = {label for number, some in labels.items() if number not in held_out for label in some}
    held_out = {number for number in held_out if train_labels >= labels[number]}
    if not held_out and len(labels) > 1:
        holders = Counter(label for some in labels.values() for label in some)
        movable = [number for number, some in labels.items() if all(holders[label] > 1 for label in some)]
        held_out = {min(movable)} if movable else set()
    if not held_out:
        raise ValueError(
            f"{examples[0].where}: too few examples to hold out a development set: the {len(examples):,} from here on "
            f"share one {kind.unit}, or each is the only one with its label; pass --dev FILE"
        )
    train = [example for example, number in zip(examples, hashes, strict=True) if number not in held_out]
    return train, [example for example, number in zip(examples, hashes, strict=True) if number in held_out]


def measured_by(task: TaskConfig, splits: Splits) -> str:
    """Hash the development and test examples and the options that change predictions; SHA-256, hex."""
    options = [task.name, task.doc_stride, task.max_query, task.max_answer, task.n_best, task.null_threshold]
    digest = hashlib.sha256(repr(options).encode())
    for name, examples in (*splits.dev.items(), *splits.test.items()):
        digest.update(f"\n{name}: {len(examples)}\n".encode())
        for example in examples:
            digest.update(repr(replace(example, where="")).encode())
    return digest.hexdigest()
