"""Sentence order prediction (Lan et al. 2019, section 3.1): label 0 = in order, 1 = exchanged, or B is random."""

from __future__ import annotations

from bertjax.training.objectives.objective import Batch, Forward, Keys, Measure, Objective, Sums, classified


def _sums(forward: Forward, batch: Batch, keys: Keys) -> Sums:
    logits = forward.model.sop_logits(forward(batch), batch["cls_positions"], keys)
    return classified(logits, batch["pair_labels"], batch["pair_weights"])


SOP = Objective(
    name="sop",
    weight_key="pair_weights",
    sums=_sums,
    heads=("pooler", "sop_head"),
    about="the order of sentences (SOP)",
    measures=(
        Measure(
            figure="accuracy",
            name="SOP accuracy",
            unit="",
            baseline="order_majority_accuracy",
            baseline_name="majority",
            meaning="always the more frequent label",
            clause="{value} of the sentence pairs are put in their order",
            brief="sop",
        ),
    ),
    baselines=lambda facts: {"order_majority_accuracy": facts.majority("pair_labels", "pair_weights")},
)
