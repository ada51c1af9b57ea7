"""Tasks of one's own: a kind, files, and which of their columns are what."""

from __future__ import annotations

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


def task_for(config: TaskConfig) -> Task:
    """The task that a config is about. Raises ValueError for a name that there is not, or a column that it lacks."""
    if config.name in _TAGS and (config.label or config.text or config.labels):
        columns = TagColumns(config.label, "".join(config.text))
        return replace(tag_task(columns, config.labels, entities=config.name == "ner"), name=config.name)
    if config.name not in OWN_TABLES:
        return task_of(config.name, OWN_TABLES)
    kind = OWN_TABLES[config.name]
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


def _columns_of(kind: Kind) -> str:
    return {
        "sequence": "a text, or two",
        "regression": "a text, or two",
        "vector": "two texts",
        "relevance": "a query and a passage",
    }.get(kind, "a start, and its ends in a column each or in one that holds a list")
