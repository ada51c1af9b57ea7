"""Files of predictions in official and our own formats, and the metrics of predictions."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from bertjax.finetune.kinds.regression import REGRESSION
from bertjax.finetune.kinds.sequence import SEQUENCE
from bertjax.finetune.kinds.texts import TextKind, write_submission
from bertjax.finetune.metrics.classification import compute_metrics, macro_f1
from bertjax.finetune.tasks import TASKS, find_task

OFFICIAL = {
    "CoLA.tsv", "SST-2.tsv", "MRPC.tsv", "STS-B.tsv", "QQP.tsv", "MNLI-m.tsv", "MNLI-mm.tsv", "QNLI.tsv", "RTE.tsv",
    "WNLI.tsv", "AX.tsv",
}  # fmt: skip


def test_glue_submissions_have_official_format(tmp_path: Path) -> None:
    names = {name for task in TASKS.values() for name in task.submissions.values() if name.endswith(".tsv")}
    assert names == OFFICIAL
    logits = np.array([[0, 1, 2], [3, 1, 2], [1, 2, 1.5]], np.float32)
    path = write_submission(tmp_path, find_task("mnli"), "test_mismatched", ["0", "1", "9"], logits)
    assert path.name == "MNLI-mm.tsv"
    assert path.read_text() == "index\tprediction\n0\tneutral\n1\tcontradiction\n9\tentailment\n"
    path = write_submission(tmp_path, find_task("rte"), "test", ["0", "1"], logits[:2, :2])
    assert path.read_text() == "index\tprediction\n0\tnot_entailment\n1\tentailment\n"
    path = write_submission(tmp_path, find_task("cola"), "test", ["0", "1"], logits[:2, :2])
    assert path.read_text() == "index\tprediction\n0\t1\n1\t0\n"


def test_stsb_submission_clips_scores(tmp_path: Path) -> None:
    logits = np.array([[-0.25], [5.5], [2.12345]], np.float32)
    path = write_submission(tmp_path, find_task("stsb"), "test", ["0", "1", "2"], logits)
    assert path.name == "STS-B.tsv" and path.read_text() == "index\tprediction\n0\t0.000\n1\t5.000\n2\t2.123\n"


def test_swag_submission_has_official_format(tmp_path: Path) -> None:
    logits = np.array([[0, 1, 2, 0], [3, 1, 2, 0]], np.float32)
    path = write_submission(tmp_path, find_task("swag"), "test", ["0", "1"], logits)
    assert path.read_text() == ",pred\n0,2\n1,0\n"


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


def test_macro_f1_matches_scikit_learn() -> None:
    sklearn = pytest.importorskip("sklearn.metrics")
    labels, predicted = np.random.default_rng(1).integers(0, 5, (2, 80))
    expected = sklearn.f1_score(labels, predicted, average="macro")
    assert macro_f1(predicted, labels) == pytest.approx(expected, abs=1e-12)
    assert macro_f1(predicted[:3], labels[:3]) == pytest.approx(
        sklearn.f1_score(labels[:3], predicted[:3], average="macro"), abs=1e-12
    )
