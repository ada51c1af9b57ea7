"""Scores of protein variants equal those computed with transformers."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from small_models import small_esm

from bertjax.__main__ import main
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.interpret.substitutions import parse_variant, read_variants, score_variants
from bertjax.run.run_directory import TrainedModel

SEQUENCE = "MKTAYIAKQR"
VARIANTS = ("A4V", "K2R:R10G", "A4L", "Q9W")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> TrainedModel:
    return small_esm(tmp_path_factory.mktemp("run"))


@pytest.mark.parametrize("marginal", ["masked", "wild-type"])
def test_scores_equal_transformers(model: TrainedModel, tmp_path: Path, marginal: str) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    export_huggingface(model, tmp_path / "hf")
    network = transformers.EsmForMaskedLM.from_pretrained(tmp_path / "hf").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "hf")
    variants = [parse_variant(written, SEQUENCE) for written in VARIANTS]
    expected = []
    for variant in variants:
        ids = tokenizer(SEQUENCE, return_tensors="pt").input_ids
        assert ids.shape == (1, len(SEQUENCE) + 2)
        if marginal == "masked":
            ids[0, [one.place for one in variant.substitutions]] = tokenizer.mask_token_id
        with torch.no_grad():
            logs = torch.log_softmax(network(ids, torch.ones_like(ids)).logits[0].double(), -1)
        pairs = [(one.place, *tokenizer.convert_tokens_to_ids([one.new, one.old])) for one in variant.substitutions]
        expected.append(sum(float(logs[place, new] - logs[place, old]) for place, new, old in pairs))
    np.testing.assert_allclose(score_variants(model, variants, marginal), expected, rtol=1e-4, atol=1e-5)


def test_verb_reads_a_table_and_writes_scores(
    model: TrainedModel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    from bertjax import loaded

    monkeypatch.setattr(loaded, "open_model", lambda _: loaded.LoadedModel(model))
    table = tmp_path / "variants.csv"
    table.write_text(f"sequence,variant\n{SEQUENCE},A4V\n{SEQUENCE[:5]},A4L\n")
    output = tmp_path / "scores.jsonl"
    assert main(["evaluate", "run", "--substitutions", str(table), "--output", str(output)]) == 0
    records = [json.loads(line) for line in output.read_text().splitlines()]
    assert [record["variant"] for record in records] == ["A4V", "A4L"]
    expected = score_variants(model, read_variants(table))
    assert [record["score"] for record in records] == pytest.approx(expected)
    printed = capsys.readouterr().out.splitlines()[-2:]
    assert printed[0].split()[0] == f"{min(expected):.3f}"


@pytest.mark.parametrize(
    ("written", "reason"),
    [
        ("A4", "variant 'A4': write A23V"),
        ("A11V", "the sequence has 10 letters"),
        ("G4V", "letter 4 of the sequence is 'A', not 'G'"),
        ("A4V:A4L", "two substitutions of one place"),
    ],
)
def test_invalid_variant_is_refused(written: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        parse_variant(written, SEQUENCE)


def test_letter_outside_the_vocabulary_is_refused(model: TrainedModel) -> None:
    with pytest.raises(ValueError, match="its vocabulary has no token 'é'"):
        score_variants(model, [parse_variant("A4é", SEQUENCE)])
    with pytest.raises(ValueError, match="has 11 letters and 10 tokens"):
        score_variants(model, [parse_variant("A5V", "MKT AYIAKQR")])
