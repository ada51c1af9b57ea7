"""Next sentence prediction (Devlin et al. 2018, section 3.1): label 0 = B follows A, 1 = B is random."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

from bertjax.training.objectives.objective import Batch, Forward, Keys, Measure, Objective, Sums, classified

# (network, hidden states [B, L, D], positions of [CLS] [B, S], keys) -> float32 [B, S, 2]
PairLogits = Callable[[Any, jax.Array, jax.Array, Keys], jax.Array]


def pair_objective(name: str, logits: PairLogits, *, about: str, clause: str, baseline: str) -> Objective:
    """Make an objective that classifies sentence pairs at their [CLS] into two classes, with `<name>_head`."""

    def sums(forward: Forward, batch: Batch, keys: Keys) -> Sums:
        pair_logits = logits(forward.model, forward(batch), batch["cls_positions"], keys)
        return classified(pair_logits, batch["pair_labels"], batch["pair_weights"])

    return Objective(
        name=name,
        weight_key="pair_weights",
        sums=sums,
        heads=("pooler", f"{name}_head"),
        about=about,
        measures=(
            Measure(
                figure="accuracy",
                name=f"{name.upper()} accuracy",
                unit="",
                baseline=baseline,
                baseline_name="majority",
                meaning="always the more frequent label",
                clause=clause,
                brief=name,
            ),
        ),
        baselines=lambda facts: {baseline: facts.majority("pair_labels", "pair_weights")},
    )


NSP = pair_objective(
    "nsp",
    lambda network, hidden_BLD, cls_positions_BS, keys: network.nsp_logits(hidden_BLD, cls_positions_BS),
    about="the next sentence (NSP)",
    clause="{value} of the sentence pairs are classified correctly",
    baseline="majority_accuracy",
)
