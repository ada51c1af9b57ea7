"""A small model learns a generated corpus as fast as recorded."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
from generated_corpus import write_corpus
from tiny_runs import command, finish, write_recipe

from bertjax.run.telemetry import curves, read_metrics

OVERRIDES = [
    *("--model.hidden-size", "64", "--model.num-attention-heads", "2", "--model.intermediate-size", "256"),
    *("--training.steps", "600", "--training.global-batch-size", "32", "--training.checkpoint-every", "600"),
    *("--training.eval-every", "150", "--training.eval-rows", "512", "--optimizer.warmup-steps", "60"),
]
# Recorded held-out MLM loss by step, and how far above it a loss may be.
MLM_LOSS = {150: 4.11, 300: 3.67, 450: 3.23, 600: 3.12}
MARGIN = 0.15


pytestmark = pytest.mark.long


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> dict:
    folder = tmp_path_factory.mktemp("learning")
    source = write_corpus(folder / "corpus.txt", 1500)
    finish(command(write_recipe(folder), source, folder / "run", *OVERRIDES), folder / "log")
    return curves(read_metrics(Path(folder / "run" / "metrics.jsonl")))


def test_mlm_loss_falls_as_fast_as_recorded(learned: dict) -> None:
    steps, losses = learned["eval/mlm_loss"]
    curve = dict(zip(steps, losses, strict=True))
    assert all(curve[step] <= loss + MARGIN for step, loss in MLM_LOSS.items()), curve
    assert curve[600] < learned["baseline/no_context_loss"][1][-1] - 0.9


def test_next_sentence_accuracy_beats_the_majority(learned: dict) -> None:
    share = learned["baseline/majority_accuracy"][1][-1]
    entropy = -share * math.log(share) - (1 - share) * math.log(1 - share)
    assert learned["eval/nsp_loss"][1][-1] < entropy - 0.01
