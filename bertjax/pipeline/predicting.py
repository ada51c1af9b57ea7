"""Predict for the rows of tables with a fine-tuned model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bertjax.convert.sources import open_source
from bertjax.finetune.predict import TaskModel
from bertjax.pipeline.table_parts import Annotated, Columns, annotate_tables

_AT_ONCE = 1024  # rows of similar length; a batch has as many as fit with the longest of them
_PREFIX = "predicted_"


def predict_tables(
    source: str, files: Sequence[str], columns: Sequence[str], folder: Path, null_threshold: float | None
) -> Annotated:
    """Write Parquet parts with the input's columns and the predictions, as `annotate_tables` does.

    The columns are the fields of a prediction with `predicted_` before them, such as `predicted_label` and
    `predicted_probability`; a number is `predicted_value`, tags of words `predicted_tags`.
    """
    model, _ = open_source(source)
    task = TaskModel(model)

    def annotate(rows: Sequence[tuple[str, ...]]) -> Columns:
        inputs = [task.kind.make_input(row) for row in rows]
        order = sorted(range(len(rows)), key=lambda number: sum(map(len, rows[number])))
        outputs: list[Any] = [None] * len(rows)
        for start in range(0, len(order), _AT_ONCE):
            numbers = order[start : start + _AT_ONCE]
            predictions = task.predict([inputs[number] for number in numbers], null_threshold)
            for number, output in zip(numbers, predictions, strict=True):
                outputs[number] = output
        return _columns(outputs)

    job = {"model": source, "step": model.step, "null_threshold": null_threshold}
    return annotate_tables(files, columns, folder, job, annotate, "predict")


def _columns(outputs: Sequence[Any]) -> Columns:
    """The fields of predictions as columns."""
    plain = [_plain(output) for output in outputs]
    if not plain:
        return {}
    if isinstance(plain[0], dict):
        return {f"{_PREFIX}{name}": [output[name] for output in plain] for name in plain[0]}
    return {f"{_PREFIX}{'tags' if isinstance(plain[0], list) else 'value'}": plain}


def _plain(output: Any) -> Any:
    """Named tuples as dicts, also in lists."""
    if hasattr(output, "_asdict"):
        return output._asdict()
    return [_plain(item) for item in output] if isinstance(output, list) else output
