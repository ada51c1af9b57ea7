"""Predictions as files: in the official formats of GLUE and SWAG, and with probabilities for tasks of one's own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from bertjax.finetune.scores import predictions_of, probabilities_of
from bertjax.finetune.tasks import Task
from bertjax.storage.files import replace_text

_LOWEST, _HIGHEST = 0.0, 5.0  # score of STS-B
_Row = tuple[str, str | float, list[float]]  # id, prediction, probability of each label
_SPACES = str.maketrans("\t\r\n", "   ")


def write_submission(folder: Path, task: Task, split: str, ids: Sequence[str], logits: np.ndarray) -> Path:
    """Write the predictions of a test split as its benchmark takes them, and give the file.

    GLUE: `index<TAB>prediction`, the label, or for STS-B the score within 0 to 5. SWAG: `,pred`, the right end's place.
    """
    path = folder / task.submissions[split]
    predicted = predictions_of(task.kind, logits)
    assert len(ids) == len(predicted), "a prediction for every example"
    if task.kind == "regression":
        shown = [f"{score:.3f}" for score in np.clip(predicted, _LOWEST, _HIGHEST)]
    else:
        shown = [task.labels[number] for number in predicted]
    tab, head = (",", ("", "pred")) if path.suffix == ".csv" else ("\t", ("index", "prediction"))
    lines = [head, *zip(ids, shown, strict=True)]
    replace_text(path, "".join(f"{tab.join(line)}\n" for line in lines))
    return path


def write_predictions(path: Path, kind: str, labels: Sequence[str], ids: Sequence[str], logits: np.ndarray) -> Path:
    """Write a .tsv or .jsonl with the id, the predicted label and the probability of each label, and give the file.

    Of `regression` and `relevance` it is the id and the number, of the latter a logit.
    Tabs and line ends in ids and labels are spaces in a .tsv.
    """
    numbers = kind in ("regression", "relevance")
    predicted = predictions_of("regression" if numbers else kind, logits)
    assert len(ids) == len(predicted), "a prediction for every example"
    if numbers:
        rows = [(name, number, []) for name, number in zip(ids, predicted.tolist(), strict=True)]
        labels = ()
    else:
        chances = probabilities_of(logits).tolist()
        rows = [(name, labels[n], chance) for name, n, chance in zip(ids, predicted, chances, strict=True)]
    replace_text(path, _json_lines(labels, rows) if path.suffix == ".jsonl" else _tsv(labels, rows))
    return path


def _json_lines(labels: Sequence[str], rows: Sequence[_Row]) -> str:
    records: list[dict[str, Any]] = []
    for name, prediction, chances in rows:
        records.append({"id": name, "prediction": prediction})
        if labels:
            records[-1]["probabilities"] = dict(zip(labels, chances, strict=True))
    return "".join(json.dumps(record, ensure_ascii=False) + "\n" for record in records)


def _tsv(labels: Sequence[str], rows: Sequence[_Row]) -> str:
    lines = [["id", "prediction", *labels], *([name, prediction, *chances] for name, prediction, chances in rows)]
    return "".join("\t".join(map(_field, line)) + "\n" for line in lines)


def _field(value: str | float) -> str:
    return value.translate(_SPACES) if isinstance(value, str) else f"{value:.6g}"
