"""Masked language modelling (Devlin et al. 2018, section 3.1), or next-token prediction in causal models."""

from __future__ import annotations

from bertjax.training.objectives.baselines import without_context
from bertjax.training.objectives.objective import Batch, Forward, Keys, Measure, Objective, Sums


def _sums(forward: Forward, batch: Batch, keys: Keys) -> Sums:
    name, network = forward.with_head("mlm_head")
    hidden_BLD = forward(batch, name, for_mlm=True)
    sums = network.mlm_sums(hidden_BLD, batch["mlm_positions"], batch["mlm_labels"], batch["mlm_weights"])
    return {"loss": sums.loss, "accuracy": sums.hits}


MLM = Objective(
    name="mlm",
    weight_key="mlm_weights",
    sums=_sums,
    epsilon=1e-5,  # run_pretraining.py: numerator / (sum of weights + 1e-5)
    heads=("mlm_head",),
    about="masked words (MLM)",
    measures=(
        Measure(
            figure="loss",
            name="MLM loss",
            unit="nats",
            baseline="no_context_loss",
            baseline_name="no context",
            meaning="word frequencies, and copies of the tokens that are shown",
            clause="the masked-token loss on held-out text is {value}, {gain} the best possible without context",
            brief="loss",
        ),
        Measure(
            figure="accuracy",
            name="MLM accuracy",
            unit="",
            baseline="no_context_accuracy",
            baseline_name="no context",
            meaning="the most frequent token, and copies of the tokens that are shown",
            clause="{value} of the masked tokens are predicted right",
            brief="mlm",
        ),
    ),
    baselines=without_context,
)
