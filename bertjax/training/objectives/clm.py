"""Left-to-right language modelling with the MLM head, for the first stage of a run (Gisserot-Boukhlef et al. 2025)."""

from __future__ import annotations

import collections

import numpy as np

from bertjax.training.objectives.baselines import HeldOutFacts
from bertjax.training.objectives.objective import Batch, Forward, Keys, Measure, Objective, Sums


def _sums(forward: Forward, batch: Batch, keys: Keys) -> Sums:
    name, network = forward.with_head("mlm_head")
    hidden_BLD = forward(batch, name, for_mlm=True)
    sums = network.mlm_sums(hidden_BLD, batch["clm_positions"], batch["clm_labels"], batch["clm_weights"])
    return {"loss": sums.loss, "accuracy": sums.hits}


def _frequencies(facts: HeldOutFacts) -> dict[str, float]:
    """Entropy of the predicted tokens in nats, and the share of the most frequent one."""
    counts: dict[int, float] = collections.defaultdict(float)
    for batch in facts.batches():
        ids, times = np.unique(batch["clm_labels"][batch["clm_weights"] > 0], return_counts=True)
        for token, count in zip(ids.tolist(), times.tolist(), strict=True):
            counts[token] += count
    shares = np.array([*counts.values()], np.float64) / max(sum(counts.values()), 1)
    return {
        "next_unigram_loss": float(-(shares * np.log(shares)).sum()),
        "next_unigram_accuracy": float(shares.max(initial=0)),
    }


CLM = Objective(
    name="clm",
    weight_key="clm_weights",
    sums=_sums,
    heads=("mlm_head",),
    causal=True,
    measures=(
        Measure(
            figure="loss",
            name="CLM loss",
            unit="nats",
            baseline="next_unigram_loss",
            baseline_name="unigram",
            meaning="the frequencies of the held-out text's tokens",
            clause="the next-token loss on held-out text is {value}, {gain} the tokens' frequencies",
            brief="clm loss",
        ),
        Measure(
            figure="accuracy",
            name="CLM accuracy",
            unit="",
            baseline="next_unigram_accuracy",
            baseline_name="unigram",
            meaning="always the most frequent token",
            clause="{value} of the next tokens are predicted right",
            brief="clm",
        ),
    ),
    baselines=_frequencies,
)
