"""Files of predictions in official and our own formats, and the metrics of predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bertjax.finetune.kinds.regression import REGRESSION
from bertjax.finetune.kinds.sequence import SEQUENCE
from bertjax.finetune.kinds.texts import TextKind, write_submission
from bertjax.finetune.metrics.classification import compute_metrics
from bertjax.finetune.tasks import TASKS, find_task

OFFICIAL = {
    "CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv", "RTE.tsv",
    "WNLI.tsv", "AX.tsv",
}  # fmt: skip


def test_glue_submissions_have_official_names() -> None:
    names = {name for task in TASKS.values() for name in task.submissions.values() if name.endswith(".tsv")}
    assert names == OFFICIAL


@pytest.mark.parametrize(
    ("name", "split", "file", "logits", "lines"),
    [
        (
            "mnli",
            "test_mismatched",
            "MNLI-mm.tsv",
            [[0, 1, 2], [3, 1, 2], [1, 2, 1.5]],
            ["neutral", "contradiction", "entailment"],
        ),
        ("rte", "test", "RTE.tsv", [[0, 1], [3, 1], [0, 1]], ["not_entailment", "entailment", "not_entailment"]),
        ("cola", "test", "CoLA.tsv", [[0, 1], [3, 1], [0, 1]], ["1", "0", "1"]),
        ("stsb", "test", "STS-B.tsv", [[-0.25], [5.5], [2.12345]], ["0.000", "5.000", "2.123"]),  # clipped
        ("swag", "test", "SWAG.csv", [[0, 1, 2, 0], [3, 1, 2, 0], [0, 0, 0, 1]], ["2", "0", "3"]),
    ],
)
def test_submissions_have_official_format(
    tmp_path: Path, name: str, split: str, file: str, logits: list[list[float]], lines: list[str]
) -> None:
    path = write_submission(tmp_path, find_task(name), split, ["0", "1", "9"], np.array(logits, np.float32))
    assert path.name == file
    head, tab = (",pred", ",") if file.endswith(".csv") else ("index\tprediction", "\t")
    expected = [head, *(f"{number}{tab}{line}" for number, line in zip((0, 1, 9), lines, strict=True))]
    assert path.read_text() == "".join(f"{line}\n" for line in expected)


def test_write_predictions_of_own_tasks(tmp_path: Path) -> None:
    logits = np.array([[0, np.log(3)], [1000, 0]])
    path = SEQUENCE.write_predictions(tmp_path / "predictions.tsv", ("id", "x\ty"), ["a\tb", "1"], logits)
    assert path.read_text() == "id\tprediction\tid\tx y\na b\tx y\t0.25\t0.75\n1\tid\t1\t0\n"
    path = SEQUENCE.write_predictions(tmp_path / "predictions.jsonl", ("no", "é"), ["a", "1"], logits)
    first, second = map(json.loads, path.read_text().splitlines())
    assert first == {
        "id": "a",
        "prediction": "é",
        "probabilities": {"no": pytest.approx(0.25), "é": pytest.approx(0.75)},
    }
    assert second["probabilities"] == {"no": 1.0, "é": 0.0}
    path = REGRESSION.write_predictions(tmp_path / "predictions.tsv", (), ["a"], np.array([[1.25]]))
    assert path.read_text() == "id\tprediction\na\t1.25\n"
    path = REGRESSION.write_predictions(tmp_path / "predictions.jsonl", (), ["a"], np.array([[1.25]]))
    assert json.loads(path.read_text()) == {"id": "a", "prediction": 1.25}


def test_nan_logits_are_rejected() -> None:
    with pytest.raises(ValueError, match="a logit is not finite; has the model diverged"):
        SEQUENCE.predictions(np.array([[0, np.nan]]))


def test_compute_metrics_supports_all_text_tasks() -> None:
    labels = np.array([0, 1, 1, 0, 1, 1])
    predicted = np.array([0, 1, 0, 0, 1, 0])
    for task in TASKS.values():
        if isinstance(task.kind, TextKind):
            figures = compute_metrics(task.metrics, predicted, labels)
            assert list(figures) == list(task.metrics) and all(0 < figure <= 1 for figure in figures.values())
