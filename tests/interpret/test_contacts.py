"""Contacts equal those of transformers' EsmContactPredictionHead, and the regression equals scikit-learn's."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_models import small_esm

from bertjax.__main__ import main
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.interpret.contacts import (
    KnownContacts,
    Regression,
    fit_regression,
    measure_contacts,
    predict_contacts,
    read_contacts,
)
from bertjax.run.run_directory import TrainedModel

SEQUENCES = ("MKTAYIAKQRQISFVKSHFSRQ", "GSHMAYIAKQR")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return small_esm(tmp_path_factory.mktemp("run"))


def test_probabilities_equal_transformers(model: TrainedModel, tmp_path: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    export_huggingface(model, tmp_path / "hf")
    network = transformers.EsmForMaskedLM.from_pretrained(tmp_path / "hf", attn_implementation="eager").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    config = model.config.model
    weights = np.random.default_rng(0).normal(size=config.num_hidden_layers * config.num_attention_heads)
    with torch.no_grad():
        layer = network.esm.contact_head.regression
        layer.weight.copy_(torch.tensor(weights[None]))
        layer.bias.fill_(-1.5)
    predictions = predict_contacts(model, Regression(weights, -1.5), SEQUENCES)
    for sequence, probabilities in zip(SEQUENCES, predictions, strict=True):
        ids = tokenizer(sequence, return_tensors="pt").input_ids
        with torch.no_grad():
            expected = network.esm.predict_contacts(ids, torch.ones_like(ids))[0].numpy()
        assert probabilities.shape == (len(sequence),) * 2
        np.testing.assert_allclose(probabilities, expected, rtol=0, atol=1e-5)


def test_regression_equals_scikit_learn() -> None:
    linear_model = pytest.importorskip("sklearn.linear_model")
    draw = np.random.default_rng(1)
    features = draw.normal(size=(150, 6)) * [1, 0.3, 1, 0.1, 2, 1]
    labels = draw.random(150) < 1 / (1 + np.exp(2 - features @ [2.0, 0, 0, 1, 0, -1]))
    predictions = fit_regression(features, labels, penalty=4.0)
    theirs = linear_model.LogisticRegression(C=0.25, l1_ratio=1, solver="saga", tol=1e-7, max_iter=20_000)
    theirs.fit(features, labels)
    np.testing.assert_allclose(
        [*predictions.weights, predictions.bias], [*theirs.coef_[0], theirs.intercept_[0]], atol=1e-4
    )
    assert (np.abs(predictions.weights) < 1e-9).sum() == (theirs.coef_ == 0).sum() > 0


def test_precision_counts_the_likeliest_pairs() -> None:
    sequence, known = "A" * 10, np.array([[0, 6], [1, 9], [2, 3]])  # the last is too close to count
    predicted = np.zeros((10, 10))
    predicted[0, 6], predicted[0, 7], predicted[2, 3] = 0.9, 0.8, 1.0
    (predictions,) = measure_contacts([KnownContacts(sequence, known)], [predicted])
    assert predictions == (6, 1, 2 / 10, 1 / 2, 2 / 10)  # 10 pairs are 6 or more apart: all of them are the top 10


def test_verb_fits_measures_and_predicts(
    model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from bertjax.convert import sources

    monkeypatch.setattr(sources, "open_source", lambda _: (model, None))
    table, output = tmp_path / "known.csv", tmp_path / "contacts.jsonl"
    table.write_text(f"sequence,contacts\n{SEQUENCES[0]},1-9 20-4\n{SEQUENCES[1]},2-11\n")
    assert [one.pairs.tolist() for one in read_contacts(table)] == [[[0, 8], [3, 19]], [[1, 10]]]
    assert main(["evaluate", "run", SEQUENCES[1], "--contacts", str(table), "--output", str(output)]) == 0
    printed = capsys.readouterr().out.splitlines()
    assert printed[0] == "fitted on the first 1 sequences, measured on the other 1"
    assert printed[1].endswith(f"{1 / 15:.1%} of all pairs touch")
    (record,) = (json.loads(line) for line in output.read_text().splitlines())
    assert record["sequence"] == SEQUENCES[1] and len(record["contacts"]) == 11
    first, second, probability = record["contacts"][0]
    assert printed[3].split() == [f"{probability:.3f}", f"{first}-{second}"]
    assert main(["evaluate", "run", "--contacts", str(table), "--output", str(output), "--overwrite"]) == 1


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("3:17", "known.csv:2: contacts '3:17': write pairs of places, as in 3-17 5-30"),
        ("3-12", "known.csv:2: contacts '3-12': the sequence has 11 letters"),
        ("3-3", "a contact joins two different ones"),
    ],
)
def test_invalid_contacts_are_refused(tmp_path: Path, written: str, reason: str) -> None:
    (tmp_path / "known.csv").write_text(f"sequence,contacts\n{SEQUENCES[1]},{written}\n")
    with pytest.raises(ValueError, match=reason):
        read_contacts(tmp_path / "known.csv")
