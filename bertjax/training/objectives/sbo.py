"""The span boundary objective (Joshi et al. 2020, section 3.2), beside masked language modelling of the same tokens."""

from __future__ import annotations

from bertjax.training.objectives.objective import Batch, Forward, Keys, Measure, Objective, Sums


def _sums(forward: Forward, batch: Batch, keys: Keys) -> Sums:
    left, right = batch["sbo_left"], batch["sbo_right"]
    places = batch["mlm_positions"] - left - 1
    sums = forward.model.sbo_sums(forward(batch), left, right, places, batch["mlm_labels"], batch["sbo_weights"])
    return {"loss": sums.loss, "accuracy": sums.hits}


SBO = Objective(
    name="sbo",
    weight_key="sbo_weights",
    sums=_sums,
    epsilon=1.0,  # facebookresearch/SpanBERT, span_bert_loss.py: sum / (number of pairs + 1)
    heads=("sbo_head",),
    about="the tokens of a span from those beside it (SBO)",
    measures=(
        Measure(
            figure="loss",
            name="SBO loss",
            unit="nats",
            baseline="unigram_loss",
            baseline_name="unigram",
            meaning="the held-out text's word frequencies",
            clause="the loss of hidden spans told from the tokens beside them is {value}, {gain} what word frequencies "
            "alone give",
        ),
    ),
    baselines=lambda facts: {"unigram_loss": facts.unigram_loss},
)
