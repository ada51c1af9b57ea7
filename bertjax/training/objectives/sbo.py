"""The span boundary objective (Joshi et al. 2020, section 3.2), with masked language modelling of the same tokens."""

from __future__ import annotations

from bertjax.model.heads import gather_positions
from bertjax.training.objectives.objective import Batch, Forward, Keys, Measure, Objective, Sums


def _sums(forward: Forward, batch: Batch, keys: Keys) -> Sums:
    model, hidden_BLD, left = forward.model, forward(batch), batch["sbo_left"]
    boundaries = gather_positions(hidden_BLD, left), gather_positions(hidden_BLD, batch["sbo_right"])
    h_BPE = model.sbo_head.transformed(*boundaries, batch["mlm_positions"] - left - 1)
    word = model.encoder.embeddings.word[...]
    sums = model.sbo_head.sums(h_BPE, word, batch["mlm_labels"], batch["sbo_weights"], model.logits_chunk)
    return {"loss": sums.loss, "accuracy": sums.hits}


SBO = Objective(
    name="sbo",
    weight_key="sbo_weights",
    sums=_sums,
    epsilon=1.0,  # facebookresearch/SpanBERT, span_bert_loss.py: sum / (number of pairs + 1)
    heads=("sbo_head",),
    about="the tokens of a span from those at its boundaries (SBO)",
    measures=(
        Measure(
            figure="loss",
            name="SBO loss",
            unit="nats",
            baseline="unigram_loss",
            baseline_name="unigram",
            meaning="the held-out text's word frequencies",
            clause="the loss of hidden spans predicted from the tokens at their boundaries is {value}, {gain} what "
            "word frequencies alone give",
        ),
    ),
    baselines=lambda facts: {"unigram_loss": facts.unigram_loss},
)
