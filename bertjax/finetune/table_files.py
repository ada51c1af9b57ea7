"""Any classification, pair, regression or multiple-choice task from table files and what their columns are."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from bertjax.finetune.examples import TextExample
from bertjax.finetune.labels import number_of
from bertjax.finetune.split_files import missing, split_file
from bertjax.finetune.table_rows import ROW_KEY, TABLE_SUFFIXES, Row, Tell, Wanted, read_rows

SPLIT_NAMES = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}


@dataclass(frozen=True)
class Columns:
    """Which column of a table is what."""

    text: str = "text"  # of multiple choice: the common start
    text_b: str = ""  # the second text of a pair
    label: str = "label"  # without one, no example has a label, as for training on pairs alone
    id: str = ""  # without one, examples are called by their number from 0, or by their keys in a JSON object
    ends: tuple[str, ...] = field(default=())  # of multiple choice: each end's, or the one that holds a list of them

    @property
    def texts(self) -> tuple[str, ...]:
        """All that hold text."""
        return tuple(filter(None, (self.text, self.text_b, *self.ends)))


def read_split_of_table(
    columns: Columns, files: Mapping[str, Path], data: Path, split: str, tell: Tell, *, regression: bool = False
) -> list[TextExample]:
    """The examples of the split's file: the one in `files`, else that of its name, in any format, in the folder `data`.

    Raises ValueError as `read_table` does, MissingSplitError if there is no such file.
    """
    names = SPLIT_NAMES.get(split, (split,))
    path = files.get(split) or split_file(data, names, TABLE_SUFFIXES)
    if path is None:
        raise missing(data, split, [f"{names[0]}{suffix}" for suffix in TABLE_SUFFIXES])
    return read_table(path, columns, tell, regression=regression, labelled=split != "test")


def read_table(
    path: Path, columns: Columns, tell: Tell, *, regression: bool = False, labelled: bool = True
) -> list[TextExample]:
    """The examples of a table, in order; where they need not be `labelled`, a label that is missing is None.

    Raises ValueError naming file and line as `read_rows` does, and for a text that is none, a missing label, a wrong
    number of choices, or with `regression` a label that is no number.
    """
    label = (columns.label,) if columns.label else ()
    wanted = Wanted(
        columns.texts + (label if labelled else ()) + ((columns.id,) if columns.id else ()),
        (ROW_KEY,) if labelled else (ROW_KEY, *label),
    )
    return list(examples_of(read_rows(path, wanted, tell), columns, regression=regression, labelled=labelled))


def examples_of(
    rows: Iterator[Row], columns: Columns, *, regression: bool = False, labelled: bool = True
) -> Iterator[TextExample]:
    """The example of each row. Raises ValueError as `read_table` does."""
    choices = len(columns.ends) if len(columns.ends) > 1 else 0
    for number, (where, values) in enumerate(rows):
        texts = _texts(where, values, columns)
        choices = choices or len(texts) - 1
        if columns.ends and (len(texts) != 1 + choices or choices < 2 or not all(texts[1:])):
            there = sum(1 for text in texts[1:] if text)
            raise ValueError(
                f"{where}: {there} choices, and there must be {max(choices, 2)} for every example; mend it"
            )
        name = _cell(where, values, columns.id) if columns.id else values.get(ROW_KEY, str(number))
        label: str | float | None = _cell(where, values, columns.label)
        if label == "":
            if labelled and columns.label:
                raise ValueError(f"{where}: no label in column {columns.label!r}; every example needs one")
            label = None
        elif regression:
            label = number_of(where, label)
        yield TextExample(where, name, texts, label)


def _texts(where: str, values: dict[str, Any], columns: Columns) -> tuple[str, ...]:
    found: list[str] = []
    for name in columns.texts:
        value = values[name]
        parts = value if isinstance(value, list) and columns.ends == (name,) else [value]
        for part in parts:
            if part is None and name in columns.ends:
                part = ""  # no choice there, which is refused with their number
            if not isinstance(part, str):
                raise ValueError(f"{where}: column {name!r} is {json_kind(part)}, not a text; name another column")
            found.append(part)
    return tuple(found)


def _cell(where: str, values: dict[str, Any], name: str) -> str:
    """A label or id as text, stripped; nothing where there is none."""
    value = values.get(name)
    if value is None:
        return ""
    if isinstance(value, bool | int | float):
        return json.dumps(value)
    if not isinstance(value, str):
        raise ValueError(f"{where}: column {name!r} is {json_kind(value)}, not a text or number; name another column")
    return value.strip()


def json_kind(value: object) -> str:
    """What a value is, in messages."""
    return "missing" if value is None else f"a {type(value).__name__}"
