"""The protein recipe learns, its export computes the same, and harmful substitutions rank lower."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from planted_substitutions import area_under_curve, planted

import bertjax
from bertjax.run.telemetry import curves, read_metrics
from bertjax.text.sources.generated_proteins import families, member

pytestmark = pytest.mark.long

REPOSITORY = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run of the whole recipe; with half of its steps, the area under the curve is only 0.81."""
    return pretrain(tmp_path_factory.mktemp("proteins"))


def pretrain(folder: Path, **settings: object) -> Path:
    options = {"run-dir": folder / "run", "data.root": folder / "data"} | settings
    overrides = [str(part) for key, value in options.items() for part in (f"--{key}", value)]
    recipe = [sys.executable, "-m", "bertjax", "pretrain", str(REPOSITORY / "configs" / "protein_mini.py")]
    on_one_device = {name: value for name, value in os.environ.items() if name != "XLA_FLAGS"}
    subprocess.run([*recipe, *overrides], env=on_one_device, check=True, timeout=1200)
    return folder / "run"


def test_loss_falls_below_letter_frequencies(run: Path) -> None:
    figures = curves(read_metrics(run / "metrics.jsonl"))
    assert figures["eval/mlm_loss"][1][-1] < figures["baseline/no_context_loss"][1][-1] - 0.8


def test_loss_of_real_proteins_falls_below_no_context(tmp_path: Path) -> None:
    proteins = REPOSITORY / "tests" / "text" / "proteins"
    settings = {
        "data.sources": f"fasta:{proteins}/chaperones.fasta.gz",
        "data.groups": f"file:{proteins}/clusters.tsv",
        "data.held-out": 0.15,
    }
    figures = curves(read_metrics(pretrain(tmp_path, **settings) / "metrics.jsonl"))
    assert figures["eval/mlm_loss"][1][-1] < figures["baseline/no_context_loss"][1][-1] - 0.3


def test_harmful_substitutions_rank_below_neutral_ones(run: Path) -> None:
    harmful, neutral = planted(40)
    scores = bertjax.load(run).score_variants([*harmful, *neutral])
    assert area_under_curve(scores[: len(harmful)], scores[len(harmful) :]) > 0.9


def test_export_fills_masks_with_the_same_probabilities(run: Path) -> None:
    torch, transformers = pytest.importorskip("torch"), pytest.importorskip("transformers")
    network = transformers.EsmForMaskedLM.from_pretrained(run / "huggingface").eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(run / "huggingface")
    letters = member(10_000_000, families()).letters
    text = f"{letters[:9]}[MASK]{letters[10:20]}[MASK]{letters[21:]}"
    encoded = tokenizer(text.replace("[MASK]", "<mask>"), return_tensors="pt")
    with torch.no_grad():
        shares = torch.softmax(network(**encoded).logits[0].double(), -1)
    places = (encoded.input_ids[0] == tokenizer.mask_token_id).nonzero()[:, 0].tolist()
    (guesses,) = bertjax.load(run).fill_mask([text], top=5)
    assert len(places) == len(guesses) == 2
    for place, best in zip(places, guesses, strict=True):
        expected = [float(shares[place, tokenizer.convert_tokens_to_ids(token)]) for token, _ in best]
        assert [share for _, share in best] == pytest.approx(expected, rel=1e-4)
