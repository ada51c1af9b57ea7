"""Sentence order prediction (Lan et al. 2019, section 3.1): label 0 = in order, 1 = exchanged, or B is random."""

from __future__ import annotations

from bertjax.training.objectives.nsp import pair_objective

SOP = pair_objective(
    "sop",
    lambda network, hidden_BLD, cls_positions_BS, keys: network.sop_logits(hidden_BLD, cls_positions_BS, keys),
    about="the order of sentences (SOP)",
    clause="{value} of the sentence pairs are put in their order",
    baseline="order_majority_accuracy",
)
