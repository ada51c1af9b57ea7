"""Masked language modelling (Devlin et al. 2018, section 3.1), and prediction of the next token by causal models."""

from __future__ import annotations

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
            baseline="unigram_loss",
            baseline_name="unigram",
            meaning="the held-out text's word frequencies",
            clause="the masked-token loss on held-out text is {value}, {gain} what word frequencies alone give",
            brief="loss",
        ),
        Measure(
            figure="accuracy",
            name="MLM accuracy",
            unit="",
            baseline="unigram_accuracy",
            baseline_name="most frequent token",
            meaning="always the most frequent token",
            clause="{value} of the masked tokens are predicted right",
            brief="mlm",
        ),
    ),
    baselines=lambda facts: {"unigram_loss": facts.unigram_loss, "unigram_accuracy": facts.unigram_accuracy},
)
