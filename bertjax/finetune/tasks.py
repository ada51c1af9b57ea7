"""Named tasks with their files, metrics, recipes and published figures, and tasks of the user's own files.

Recipes are the paper's, which chose GLUE's learning rates on the development sets; the default is the rate in the
commands of google-research/bert.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from pathlib import Path

from bertjax.config import TaskConfig
from bertjax.finetune.data.choices import read_codah, read_swag
from bertjax.finetune.data.glue import DIAGNOSTICS, TFDS, GlueLayout, has_split, read_glue
from bertjax.finetune.data.questions import read_squad
from bertjax.finetune.data.tags import LENER_BR, TagColumns, biobert_set
from bertjax.finetune.data.xnli import LABELS as XNLI_LABELS
from bertjax.finetune.data.xnli import LANGUAGES, read_xnli
from bertjax.finetune.kinds import KINDS
from bertjax.finetune.kinds.choice import CHOICE
from bertjax.finetune.kinds.kind import OPTIONS, Kind, Recipe, Task
from bertjax.finetune.kinds.regression import REGRESSION
from bertjax.finetune.kinds.sequence import SEQUENCE
from bertjax.finetune.kinds.span import SPAN
from bertjax.finetune.kinds.texts import TextKind
from bertjax.finetune.kinds.tokens import TOKENS

_CHOICES = ("0", "1", "2", "3")

# Published figures in per cent, of the task's first metric unless another is named: the paper's tables 1 to 5, with
# GLUE's test sets measured by its server. The paper has BERT Base on GLUE's development sets only in its ablation
# (table 5), so that Hugging Face's figures (DistilBERT's read-me) are listed too.
BASE_TEST, LARGE_TEST = "BERT Base, test", "BERT Large, test"
BASE_DEV, LARGE_DEV = "BERT Base, dev", "BERT Large, dev"
OTHERS_DEV = "BERT Base, dev, by Hugging Face"
MULTILINGUAL = "multilingual BERT Base, test"

_PUBLISHED: dict[str, dict[str, float]] = {
    "cola": {BASE_TEST: 52.1, LARGE_TEST: 60.5, OTHERS_DEV: 56.3},
    "sst2": {BASE_TEST: 93.5, LARGE_TEST: 94.9, BASE_DEV: 92.7, OTHERS_DEV: 92.7},
    "mrpc": {BASE_TEST: 88.9, LARGE_TEST: 89.3, f"{BASE_DEV} (accuracy)": 86.7, OTHERS_DEV: 88.6},
    "stsb": {BASE_TEST: 85.8, LARGE_TEST: 86.5, OTHERS_DEV: 89.0},
    "qqp": {BASE_TEST: 71.2, LARGE_TEST: 72.1, OTHERS_DEV: 89.6},
    "mnli": {
        BASE_TEST: 84.6,
        f"{BASE_TEST} (mismatched)": 83.4,
        LARGE_TEST: 86.7,
        f"{LARGE_TEST} (mismatched)": 85.9,
        BASE_DEV: 84.4,
        OTHERS_DEV: 84.7,
    },
    "qnli": {BASE_TEST: 90.5, LARGE_TEST: 92.7, BASE_DEV: 88.4, OTHERS_DEV: 91.8},
    "rte": {BASE_TEST: 66.4, LARGE_TEST: 70.1, OTHERS_DEV: 69.3},
    "wnli": {OTHERS_DEV: 53.5},  # the paper leaves it out
    "swag": {BASE_DEV: 81.6, LARGE_DEV: 86.6, LARGE_TEST: 86.3},
    "squad": {
        BASE_DEV: 88.5,
        f"{BASE_DEV} (exact match)": 80.8,
        LARGE_DEV: 90.9,
        f"{LARGE_DEV} (exact match)": 84.1,
    },
    "squad2": {
        LARGE_DEV: 81.9,
        f"{LARGE_DEV} (exact match)": 78.7,
        LARGE_TEST: 83.1,
        f"{LARGE_TEST} (exact match)": 80.0,
    },
    "ner": {
        BASE_DEV: 96.4,
        BASE_TEST: 92.4,
        LARGE_DEV: 96.6,
        LARGE_TEST: 92.8,
        f"{BASE_DEV} (feature-based, last four layers)": 96.1,
    },
    # google-research/bert, multilingual.md; BERT Base multilingual cased, trained on the translations of each language
    "xnli": {
        f"{MULTILINGUAL} ({language})": figure
        for language, figure in {"en": 81.9, "zh": 76.6, "es": 77.8, "de": 75.9, "ar": 70.7, "ur": 61.6}.items()
    },
    "lener-br": {"LSTM-CRF, test": 86.61},  # the read-me of the set
}

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


def find_task(name: str, others: Iterable[str] = ()) -> Task:
    """Find a task by name. Raises ValueError with the nearest names among the tasks and `others`."""
    if name not in TASKS:
        others = [*others]
        if near := difflib.get_close_matches(name.lower(), [*TASKS, *others], 3, 0.6):
            raise ValueError(f"task {name!r} is not known; did you mean {' or '.join(near)}?")
        own = f"for your own table give {', '.join(others[:-1])} or {others[-1]}; " if others else ""
        raise ValueError(f"task {name!r} is not known; {own}data sets with a task are {', '.join(TASKS)}")
    return TASKS[name]


def _own_tasks() -> dict[str, Kind]:
    """Kinds by the name of the task of the user's own files. Raises ValueError if a name has two tasks."""
    kinds: dict[str, Kind] = {}
    for name, kind in KINDS.items():
        if not kind.own_task:
            continue
        if kind.own_task in TASKS or kind.own_task in kinds:
            raise ValueError(f"kind of task {name!r}: own_task={kind.own_task!r} is another task; choose another name")
        kinds[kind.own_task] = kind
    return kinds


def make_task(config: TaskConfig) -> Task:
    """Make the task of a config: a named one, or one of the user's own files.

    Raises ValueError for an unknown name, and for options that the task lacks.
    """
    own = _own_tasks()
    task = None if config.name in own else find_task(config.name, own)
    kind = own[config.name] if task is None else task.kind
    for key in OPTIONS:
        if (value := getattr(config, key)) != getattr(TaskConfig(), key) and key not in kind.options:
            kinds = own | {name: task.kind for name, task in TASKS.items()}
            names = ", ".join(name for name, one in kinds.items() if key in one.options)
            raise ValueError(f"task.{key}={value!r}: not an option of {config.name}, only of {names}; leave it out")
    if len({*config.labels}) < len(config.labels):
        raise ValueError(f"task.labels={config.labels}: a label is repeated; give each once")
    if len(config.labels) == 1 and kind.classifies_texts:
        raise ValueError(f"task.labels={config.labels}: one label leaves nothing to learn; give two or more")
    return kind.own(config) if task is None else kind.configured(task, config)


def count_input_texts(config: TaskConfig) -> int:
    """Count the texts of an input: 1 or 2, or 0 if the kind decides or the task is unknown (an imported model)."""
    own = _own_tasks().get(config.name)
    if own is None:
        return TASKS[config.name].texts if config.name in TASKS else 0
    # The task of an imported model has the name of its kind, which may also be a task's name, but no data.
    if not isinstance(own, TextKind) or own.text_columns[1] is None or not (config.data or config.train):
        return 0
    return len(config.text or own.default_columns)


def glue_tasks_in(data: Path) -> tuple[str, ...]:
    """Find GLUE's tasks with training and development sets in a folder (or tfds:glue), in GLUE's order.

    Raises ValueError for the folder of a single task, because its files do not name the task.
    """
    names = tuple(
        name
        for name, layout in _GLUE.items()
        if has_split(layout, data, "train")
        and any(has_split(layout, data, split) for split in (*TASKS[name].dev_splits, "dev"))
    )
    in_folders = tuple(name for name in names if (data / _GLUE[name].folder).is_dir())
    if str(data).startswith(TFDS) or len(names) - len(in_folders) < 2:
        return names
    if in_folders:
        return in_folders
    folder = data.resolve().name.lower().replace("-", "")
    task = next((layout.folder for layout in _GLUE.values() if layout.folder.lower().replace("-", "") == folder), "")
    raise ValueError(
        f"finetune glue: {data} is the folder of {task or 'one task'}; name the folder above, {data.resolve().parent}, "
        "or fine-tune for that task alone"
    )


def _glue(name: str, metrics: tuple[str, ...], labels: tuple[str, ...]) -> Task:
    layout = _GLUE[name]
    return Task(
        name,
        REGRESSION if layout.regression else SEQUENCE,
        metrics,
        Recipe(2e-5, learning_rates=(5e-5, 4e-5, 3e-5, 2e-5)),
        partial(read_glue, layout),
        labels,
        layout.classes,
        texts=len(layout.texts),
        submissions={"test": f"{layout.folder}.tsv"},
        paper=_PUBLISHED[name],
    )


_ENTAILMENT = ("entailment", "not_entailment")
TASKS = {
    task.name: task
    for task in (
        _glue("cola", ("matthews", "accuracy"), _BINARY),
        _glue("sst2", ("accuracy",), _BINARY),
        _glue("mrpc", ("f1", "accuracy"), _BINARY),
        _glue("stsb", ("spearman", "pearson"), ()),
        _glue("qqp", ("f1", "accuracy"), _BINARY),
        replace(  # its model also predicts GLUE's diagnostics
            _glue("mnli", ("accuracy",), ("contradiction", "entailment", "neutral")),
            dev_splits=("dev_matched", "dev_mismatched"),
            submissions={"test_matched": "MNLI-m.tsv", "test_mismatched": "MNLI-mm.tsv", DIAGNOSTICS: "AX.tsv"},
        ),
        _glue("qnli", ("accuracy",), _ENTAILMENT),
        _glue("rte", ("accuracy",), _ENTAILMENT),
        _glue("wnli", ("accuracy",), _BINARY),
        Task("swag", CHOICE, ("accuracy",), Recipe(2e-5, 16), read_swag, _CHOICES,
             submissions={"test": "SWAG.csv"}, paper=_PUBLISHED["swag"]),
        Task("codah", CHOICE, ("accuracy",), Recipe(2e-5, 16), read_codah, _CHOICES),
        Task("squad", SPAN, ("f1", "exact_match"), Recipe(5e-5, max_length=384), partial(read_squad, False),
             paper=_PUBLISHED["squad"]),
        Task("squad2", SPAN, ("f1", "exact"), Recipe(5e-5, 48, 2, 384), partial(read_squad, True),
             paper=_PUBLISHED["squad2"]),
        replace(TOKENS.tag_task(TagColumns(), entities=True), name="ner", paper=_PUBLISHED["ner"]),
        replace(TOKENS.tag_task(TagColumns()), name="pos"),
        TOKENS.set_task("ncbi-disease", biobert_set("NCBI-disease"), {}),
        TOKENS.set_task("bc5cdr-disease", biobert_set("BC5CDR-disease"), {}),
        TOKENS.set_task("bc5cdr-chem", biobert_set("BC5CDR-chem"), {}),
        TOKENS.set_task("lener-br", LENER_BR, _PUBLISHED["lener-br"]),
        Task("xnli", SEQUENCE, ("accuracy",), Recipe(5e-5, epochs=2), read_xnli, XNLI_LABELS, texts=2,
             dev_splits=tuple(f"dev_{language}" for language in LANGUAGES),
             test_splits=tuple(f"test_{language}" for language in LANGUAGES),
             averaged=True, paper=_PUBLISHED["xnli"]),
    )
}  # fmt: skip
