"""Soft targets: a frozen teacher's probabilities of the masked tokens (Sanh et al. 2019, section 2)."""

from __future__ import annotations

from typing import Any

import jax

from bertjax.model.heads import gather_positions
from bertjax.model.soft_targets import Vocabulary, soft_cross_entropy
from bertjax.training.objectives.objective import TEACHER, Batch, Forward, Keys, Objective, Sums, TeacherRequirements


def _vocabulary(network: Any, hidden_BLD: jax.Array, positions_BP: jax.Array) -> Vocabulary:
    """The inputs of a network's logits, with the predictions of all rows in one dim."""
    h_BPE = network.mlm_head.transformed(gather_positions(hidden_BLD, positions_BP))
    table_VE = network.mlm_head.table(network.encoder.embeddings.word[...])
    return Vocabulary(h_BPE.reshape(-1, h_BPE.shape[-1]), table_VE, network.mlm_head.vocabulary_bias())


def _sums(forward: Forward, batch: Batch, keys: Keys, *, temperature: float = 2.0) -> Sums:
    (name, student), teacher = forward.with_head("mlm_head"), forward.network(TEACHER)
    positions = batch["mlm_positions"]
    sums = soft_cross_entropy(
        _vocabulary(student, forward(batch, name, for_mlm=True), positions),
        _vocabulary(teacher, forward(batch, TEACHER, for_mlm=True), positions),
        batch["mlm_weights"].reshape(-1),
        vocab_size=student.mlm_head.vocab_size,
        temperature=temperature,
        chunk=student.logits_chunk,
    )
    return {"loss": sums.loss, "agreement": sums.agreement}


DISTIL_MLM = Objective(
    name="distil_mlm",
    weight_key="mlm_weights",
    sums=_sums,
    options=lambda config: {"temperature": config.distillation.temperature},
    epsilon=1e-5,  # as MLM, whose predictions these are
    figures=("loss", "agreement"),
    heads=("mlm_head",),
    teacher=TeacherRequirements(heads=("mlm_head",)),
)
