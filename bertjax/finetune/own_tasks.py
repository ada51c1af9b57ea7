"""Tasks of one's own: a kind, files, and which of their columns are what."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from bertjax.config import TaskConfig
from bertjax.finetune.table_files import Columns
from bertjax.finetune.tag_sets import TagColumns
from bertjax.finetune.tasks import Kind, Task, table_task, tag_task, task_of

# What they are called on the command line.
OWN_TABLES: dict[str, Kind] = {
    "classification": "sequence",
    "regression": "regression",
    "choice": "choice",
    "pairs": "vector",
    "relevance": "relevance",
}
_TAGS = ("ner", "pos")
_UNLABELLED: tuple[Kind, ...] = ("regression", "relevance", "vector")  # kinds without classes


def task_for(config: TaskConfig) -> Task:
    """The task that a config is about.

    Raises ValueError for a name that there is not, a column that it lacks, and what the task has no use for.
    """
    if config.name in _TAGS:
        return _tags_for(config)
    if config.name not in OWN_TABLES:
        task = task_of(config.name, OWN_TABLES)
        known = config.labels in (task.labels, task.meanings)  # as a run of it has them
        keys = ("text", "label", "id") if known else ("text", "label", "id", "labels")
        _refuse(config, keys, "is read as its own files are")
        return task
    kind = OWN_TABLES[config.name]
    if kind in _UNLABELLED:
        _refuse(config, ("labels",), "has no classes")
    if kind == "vector":
        _refuse(config, ("label",), "has no labels")
    text, *more = config.text or (("text",) if kind in ("sequence", "regression") else ("text", "text_b"))
    most = {"sequence": 1, "regression": 1, "vector": 1, "relevance": 1}.get(kind, len(more))
    least = {"sequence": 0, "regression": 0}.get(kind, 1)
    if not least <= len(more) <= most:
        raise ValueError(
            f"task.text={config.text}: {config.name} has {_columns_of(kind)}; name each with --text COLUMN COLUMN"
        )
    label = config.label or ("" if kind == "vector" else "label")
    if kind == "choice":
        columns = Columns(text=text, label=label, id=config.id, ends=tuple(more))
    else:
        columns = Columns(text=text, text_b="".join(more), label=label, id=config.id)
    return table_task(kind, columns, config.labels)


def _tags_for(config: TaskConfig) -> Task:
    _refuse(config, ("id",), "calls sentences by their number")
    if len(config.text) > 1:
        raise ValueError(f"task.text={config.text}: {config.name} has one column of words; name that alone (--text)")
    task = task_of(config.name)
    if not (config.label or config.text or config.labels):
        return task
    columns = TagColumns(config.label, "".join(config.text))
    return replace(tag_task(columns, config.labels, entities=config.name == "ner"), name=config.name)


def _refuse(config: TaskConfig, keys: Sequence[str], why: str) -> None:
    """Raise ValueError for the first of these keys that is given."""
    for key in keys:
        if given := getattr(config, key):
            raise ValueError(f"task.{key}={given!r}: {config.name} {why}; leave it out (--{key})")


def _columns_of(kind: Kind) -> str:
    return {
        "sequence": "a text, or two",
        "regression": "a text, or two",
        "vector": "two texts",
        "relevance": "a query and a passage",
    }.get(kind, "a start, and its ends in a column each or in one that holds a list")
