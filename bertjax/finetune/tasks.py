"""The tasks that are known by name: how each is read, measured and trained, and what the paper reached.

Recipes are the paper's: of GLUE's learning rates, which it chose by the development set, the one that the commands of
google-research/bert use.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Literal

from bertjax.finetune.choice_files import read_codah, read_swag
from bertjax.finetune.examples import Question, TaggedSentence, TextExample
from bertjax.finetune.glue_files import GlueLayout, has_split, read_glue
from bertjax.finetune.labels import label_numbers, label_set
from bertjax.finetune.published import PUBLISHED
from bertjax.finetune.question_files import read_squad
from bertjax.finetune.split_files import MissingSplitError
from bertjax.finetune.table_files import Columns, read_split_of_table
from bertjax.finetune.table_rows import Tell
from bertjax.finetune.tag_files import tags_in
from bertjax.finetune.tag_sets import TagColumns, read_tags

Kind = Literal["sequence", "regression", "relevance", "choice", "tokens", "span", "vector"]
Examples = list[TextExample] | list[TaggedSentence] | list[Question]
Read = Callable[[Path, str, Tell], Examples]  # raises MissingSplitError where the split is not there

_RATES = (5e-5, 3e-5, 2e-5)
_GLUE_RATES = (5e-5, 4e-5, 3e-5, 2e-5)
_CHOICES = ("0", "1", "2", "3")
_METRICS: dict[str, tuple[str, ...]] = {
    "sequence": ("accuracy", "macro_f1"),
    "regression": ("spearman", "pearson"),
    "relevance": ("f1", "accuracy"),
    "choice": ("accuracy",),
    "vector": ("accuracy",),  # how often a text's nearest is its own second
}


@dataclass(frozen=True)
class Recipe:
    """How a task is trained unless the user says otherwise."""

    learning_rate: float
    batch_size: int = 32
    epochs: int = 3
    max_length: int = 128  # tokens of a sequence, special ones included
    warmup: float = 0.1  # share of the steps
    learning_rates: tuple[float, ...] = _RATES  # to choose from by the development set


@dataclass(frozen=True)
class Task:
    """A task; of all metrics more is better."""

    name: str
    kind: Kind
    metrics: tuple[str, ...]  # models are chosen by the first
    recipe: Recipe
    read: Read
    labels: tuple[str, ...] = ()  # as the files have them; none: those of the training set
    meanings: tuple[str, ...] = ()  # what people call them, where the labels do not say
    dev_splits: tuple[str, ...] = ("dev",)
    submissions: Mapping[str, str] = field(default_factory=dict)  # test split -> the official file of its predictions
    paper: Mapping[str, float] = field(default_factory=dict)  # system -> per cent, as `published` has them


def task_of(name: str, others: Iterable[str] = ()) -> Task:
    """The task of this name. Raises ValueError with the nearest names, of the `others` too, if there is none."""
    if name not in TASKS:
        names = [*TASKS, *others]
        near = difflib.get_close_matches(name, names, 3, 0.4) or names
        raise ValueError(f"task {name!r} is not known; did you mean {' or '.join(near)}?")
    return TASKS[name]


def table_task(kind: Kind, columns: Columns, labels: tuple[str, ...] = ()) -> Task:
    """A task of the user's own, out of table files: any kind but `tokens` and `span`.

    Labels that are not given are those of the training set.
    """
    read = partial(read_split_of_table, columns, regression=kind in ("regression", "relevance"))
    return Task("own", kind, _METRICS[kind], Recipe(2e-5), read, labels)


def tag_task(columns: TagColumns, labels: tuple[str, ...] = (), *, entities: bool = False) -> Task:
    """A task of the user's own, out of files of tagged words; of `entities` if tags are O or such as B-PER."""
    metrics = ("f1", "precision", "recall") if entities else ("accuracy",)
    return Task("own", "tokens", metrics, Recipe(5e-5), partial(read_tags, columns, entities), labels)


def labels_of(task: Task, train: Sequence[TextExample] | Sequence[TaggedSentence]) -> tuple[str, ...]:
    """The labels of a task by number: its own, or those of its training set; none for numbers, vectors and spans.

    Of choices they are their places, "0" and on. Raises ValueError as `label_set` does.
    """
    if task.labels or task.kind in ("regression", "relevance", "vector", "span"):
        return task.labels
    if task.kind == "tokens":
        return tags_in(train)
    if task.kind == "choice":
        return tuple(str(place) for place in range(len(train[0].texts) - 1))
    return label_set(train)


def read_split(task: Task, data: Path, split: str, tell: Tell = print) -> Examples | None:
    """The examples of a split: `train`, one of the task's `dev_splits`, or a test split, which may be missing: None.

    `tell` is given what is to be said of the files. Raises ValueError naming the folder if there is no such training or
    development set, and file and line of what is wrong in it, a label outside `task.labels` too.
    """
    try:
        examples = task.read(data, split, tell)
    except MissingSplitError:
        if split.startswith("test"):
            return None
        raise
    if task.labels and task.kind in ("sequence", "choice"):
        label_numbers(examples, task.labels)
    return examples


def read_dev(task: Task, data: Path, tell: Tell = print) -> dict[str, Examples]:
    """The development sets that are there, by split: one, for MNLI two, or the `dev` of a subset.

    Raises ValueError as `read_split` does if there is none.
    """
    found: dict[str, Examples] = {}
    missing = None
    for split in dict.fromkeys((*task.dev_splits, "dev")):
        try:
            if (examples := read_split(task, data, split, tell)) is not None:
                found[split] = examples
        except MissingSplitError as error:
            missing = missing or error
    if missing and not found:
        raise missing
    return found


def glue_tasks_in(data: Path) -> tuple[str, ...]:
    """Which of GLUE's tasks a folder (or tfds:glue) has training and development sets of, in GLUE's order."""
    return tuple(
        name
        for name, layout in _GLUE.items()
        if has_split(layout, data, "train")
        and any(has_split(layout, data, split) for split in (*TASKS[name].dev_splits, "dev"))
    )


_SINGLE, _SENTENCES, _BINARY = ("sentence",), ("sentence1", "sentence2"), ("0", "1")
_GLUE = {
    "cola": GlueLayout("CoLA", "cola", _SINGLE, header=("source", "label", "mark", "sentence"),
                       classes=("unacceptable", "acceptable")),
    "sst2": GlueLayout("SST-2", "sst2", _SINGLE, classes=("negative", "positive")),
    "mrpc": GlueLayout("MRPC", "mrpc", ("#1 String", "#2 String"), "Quality", features=_SENTENCES,
                       classes=("not_equivalent", "equivalent"), microsoft=True),
    "stsb": GlueLayout("STS-B", "stsb", _SENTENCES, "score", regression=True),
    "qqp": GlueLayout("QQP", "qqp", ("question1", "question2"), "is_duplicate", "id", skips_short=True,
                      classes=("not_duplicate", "duplicate")),
    "mnli": GlueLayout("MNLI", "mnli", _SENTENCES, "gold_label", features=("premise", "hypothesis")),
    "qnli": GlueLayout("QNLI", "qnli", ("question", "sentence")),
    "rte": GlueLayout("RTE", "rte", _SENTENCES),
    "wnli": GlueLayout("WNLI", "wnli", _SENTENCES, classes=("not_entailment", "entailment")),
}  # fmt: skip


def _glue(name: str, metrics: tuple[str, ...], labels: tuple[str, ...]) -> Task:
    layout = _GLUE[name]
    recipe = Recipe(2e-5, learning_rates=_GLUE_RATES)
    submissions = {"test": f"{layout.folder}.tsv"}
    dev_splits: tuple[str, ...] = ("dev",)
    if name == "mnli":
        submissions = {"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv"}
        dev_splits = ("dev_matched", "dev_mismatched")
    kind: Kind = "regression" if layout.regression else "sequence"
    read = partial(read_glue, layout)
    return Task(name, kind, metrics, recipe, read, labels, layout.classes, dev_splits, submissions, PUBLISHED[name])


_ENTAILMENT = ("entailment", "not_entailment")
TASKS = {
    task.name: task
    for task in (
        _glue("cola", ("matthews", "accuracy"), _BINARY),
        _glue("sst2", ("accuracy",), _BINARY),
        _glue("mrpc", ("f1", "accuracy"), _BINARY),
        _glue("stsb", ("spearman", "pearson"), ()),
        _glue("qqp", ("f1", "accuracy"), _BINARY),
        _glue("mnli", ("accuracy",), ("contradiction", "entailment", "neutral")),
        _glue("qnli", ("accuracy",), _ENTAILMENT),
        _glue("rte", ("accuracy",), _ENTAILMENT),
        _glue("wnli", ("accuracy",), _BINARY),
        Task("swag", "choice", ("accuracy",), Recipe(2e-5, 16), read_swag, _CHOICES,
             submissions={"test": "SWAG.csv"}, paper=PUBLISHED["swag"]),
        Task("codah", "choice", ("accuracy",), Recipe(2e-5, 16), read_codah, _CHOICES),
        Task("squad", "span", ("f1", "exact_match"), Recipe(5e-5, max_length=384), partial(read_squad, False),
             paper=PUBLISHED["squad"]),
        Task("squad2", "span", ("f1", "exact"), Recipe(5e-5, 48, 2, 384), partial(read_squad, True),
             paper=PUBLISHED["squad2"]),
        replace(tag_task(TagColumns(), entities=True), name="ner", paper=PUBLISHED["ner"]),
        replace(tag_task(TagColumns()), name="pos"),
    )
}  # fmt: skip
