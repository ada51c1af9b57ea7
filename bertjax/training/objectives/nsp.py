"""Next sentence prediction (Devlin et al. 2018, section 3.1): label 0 = B follows A, 1 = B is random."""

from __future__ import annotations

from bertjax.training.objectives.objective import Batch, Forward, Keys, Measure, Objective, Sums, classified


def _sums(forward: Forward, batch: Batch, keys: Keys) -> Sums:
    logits = forward.model.nsp_logits(forward(batch), batch["cls_positions"])
    return classified(logits, batch["pair_labels"], batch["pair_weights"])


NSP = Objective(
    name="nsp",
    weight_key="pair_weights",
    sums=_sums,
    heads=("pooler", "nsp_head"),
    about="the next sentence (NSP)",
    measures=(
        Measure(
            figure="accuracy",
            name="NSP accuracy",
            unit="",
            baseline="majority_accuracy",
            baseline_name="majority",
            meaning="always the more frequent label",
            clause="{value} of the sentence pairs are told apart",
            brief="nsp",
        ),
    ),
    baselines=lambda facts: {"majority_accuracy": facts.majority("pair_labels", "pair_weights")},
)
