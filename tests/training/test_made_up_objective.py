"""An objective is two objects and a line in each registry: a made-up one trains, packs, reports and resumes."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from generated_corpus import write_corpus
from tiny_runs import checkpoints, finish, write_recipe

from bertjax.run.telemetry import curves, read_metrics

# Is a sequence longer than half of a row? It is asked of the vector at its [CLS], packed or not, twice over: the second
# time of the same row without its second half, which the encoder then sees as another input.
OBJECTIVE = """
import sys

import numpy as np

from bertjax.input.packing import BatchKey
from bertjax.input.targets.registry import TARGETS
from bertjax.training.objectives import OBJECTIVES, Measure, Objective, classified


class LengthTarget:
    pairing = None
    of_records = None

    def keys(self, data):
        slots = data.pair_slots
        return {
            "cls_positions": BatchKey("sequence", slots, np.int32, is_position=True),
            "length_labels": BatchKey("sequence", slots, np.int32),
            "length_weights": BatchKey("sequence", slots, np.float32),
        }

    def prepare(self, data, vocabulary, split):
        def make(rows):
            tokens = (rows.encoder["sequence_ids"] > 0).sum(axis=1, keepdims=True)
            return {
                "cls_positions": np.zeros(tokens.shape, np.int32),
                "length_labels": (tokens > data.sequence_length // 2).astype(np.int32),
                "length_weights": np.ones(tokens.shape, np.float32),
            }
        return make


def sums(forward, batch, keys):
    ids = batch["input_ids"]
    halved = batch | {"input_ids": ids.at[:, ids.shape[1] // 2 :].set(0)}
    both = [
        classified(forward.model.nsp_logits(forward(one), batch["cls_positions"]), batch["length_labels"],
                   batch["length_weights"])
        for one in (batch, halved)
    ]
    return {name: (both[0][name] + both[1][name]) / 2 for name in both[0]}


TARGETS["length"] = LengthTarget()
OBJECTIVES["length"] = Objective(
    name="length",
    weight_key="length_weights",
    sums=sums,
    scale=0.5,
    heads=("pooler", "nsp_head"),
    measures=(
        Measure(
            figure="accuracy",
            name="Length accuracy",
            unit="",
            baseline="length_majority",
            baseline_name="majority",
            meaning="always the more frequent length",
            clause="{value} of the lengths are told",
            brief="length",
        ),
    ),
    baselines=lambda facts: {"length_majority": facts.majority("length_labels", "length_weights")},
)

from bertjax.__main__ import main

sys.exit(main(sys.argv[1:]))
"""


@pytest.mark.parametrize("packing", [pytest.param("none", marks=pytest.mark.long), "pairs"])
def test_a_made_up_objective_trains_with_masked_tokens(packing: str, tmp_path: Path) -> None:
    program = tmp_path / "length.py"
    program.write_text(OBJECTIVE)
    corpus, run = write_corpus(tmp_path / "corpus.txt", 300), tmp_path / "run"
    arguments = [
        *(sys.executable, str(program), "pretrain", str(write_recipe(tmp_path)), "--run-dir", str(run)),
        *("--data.sources", f"lines:{corpus}", "--data.root", str(tmp_path / "data"), "--data.packing", packing),
        *("--training.objectives", "mlm", "length", "--training.eval-every", "20", "--training.checkpoint-every", "20"),
    ]
    for steps in ("20", "40"):  # the second continues from the first
        finish([*arguments, "--training.steps", steps], tmp_path / steps)
    printed = (tmp_path / "40").read_text()
    assert "resuming" in printed and "Length accuracy" in printed
    found = curves(read_metrics(run / "metrics.jsonl"))
    assert found["eval/length_accuracy"][0] == [20, 40]
    total, mlm, length = (found[f"train/{name}"][1] for name in ("loss", "mlm_loss", "length_loss"))
    assert total == pytest.approx([a + b / 2 for a, b in zip(mlm, length, strict=True)], rel=1e-5)
    assert length[-1] < length[0]
    assert 0.5 <= found["baseline/length_majority"][1][0] <= 1
    assert "of the lengths are told" in (run / "report.html").read_text(encoding="utf-8")
    assert checkpoints(run)
