"""Predict for the rows of tables with a fine-tuned model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertjax.convert.sources import open_source
from bertjax.finetune.predict import TaskModel
from bertjax.pipeline.table_parts import Annotated, Columns, RowError, annotate_tables

_AT_ONCE = 1024  # rows of similar length; a batch has as many as fit with the longest of them
_PREFIX = "predicted_"


def predict_tables(
    source: str, files: Sequence[str], columns: Sequence[str], folder: Path, null_threshold: float | None
) -> Annotated:
    """Write Parquet parts with the input's columns and the predictions, as `annotate_tables` does.

    The columns are the fields of a prediction with `predicted_` before them, such as `predicted_label` and
    `predicted_probability`; a number is `predicted_value`, tags of words are `predicted_tags`, their numbers
    `predicted_numbers`. A row without text has no words, and "" as its answer. Raises ValueError naming file and row of
    an input that the task does not support.
    """
    model, _ = open_source(source)
    task = TaskModel(model)

    def annotate(rows: Sequence[tuple[str, ...]]) -> Columns:
        inputs = [_make_input(task, row, number) for number, row in enumerate(rows)]
        order = sorted(range(len(rows)), key=lambda number: sum(map(len, rows[number])))
        outputs: list[Any] = [None] * len(rows)
        for start in range(0, len(order), _AT_ONCE):
            numbers = order[start : start + _AT_ONCE]
            try:
                predictions = task.predict([inputs[number] for number in numbers], null_threshold)
            except ValueError as error:
                raise _first_error(task, inputs, sorted(numbers), null_threshold) or error from None
            for number, output in zip(numbers, predictions, strict=True):
                outputs[number] = output
        return _columns(outputs, task.kind.column)

    job = {"model": source, "step": model.step, "null_threshold": null_threshold}
    return annotate_tables(files, columns, folder, job, annotate, "predict")


def _make_input(task: TaskModel, row: tuple[str, ...], number: int) -> Any:
    try:
        return task.kind.make_input(row)
    except ValueError as error:
        raise RowError(number, str(error)) from None


def _first_error(
    task: TaskModel, inputs: Sequence[Any], numbers: Sequence[int], null_threshold: float | None
) -> RowError | None:
    """The error of the first invalid input among `numbers`."""
    for number in numbers:
        try:
            task.predict([inputs[number]], null_threshold)
        except ValueError as error:
            return RowError(number, str(error).removeprefix("input 1: "))
    return None


def _columns(outputs: Sequence[Any], name: str) -> Columns:
    """The fields of predictions as columns, or the predictions as a column of that name."""
    plain = [_plain(output) for output in outputs]
    if not plain:
        return {}
    if isinstance(plain[0], dict):
        return {f"{_PREFIX}{field}": [output[field] for output in plain] for field in plain[0]}
    return {f"{_PREFIX}{name}": plain}


def _plain(output: Any) -> Any:
    """Convert named tuples to dicts, also in lists."""
    if hasattr(output, "_asdict"):
        return output._asdict()
    return [_plain(item) for item in output] if isinstance(output, list) else output
