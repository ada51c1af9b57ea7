"""Replaced token detection (Clark et al. 2020, section 3.1), with masked language modelling by the generator."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from bertjax.model.family_heads import sampled_tokens
from bertjax.model.heads import gather_positions
from bertjax.training.objectives.baselines import HeldOutFacts
from bertjax.training.objectives.objective import Batch, Forward, Keys, Measure, Objective, Sums


def replaced(forward: Forward, batch: Batch) -> tuple[jax.Array, jax.Array]:
    """Sample the generator: (ids with its sample at every prediction, whether they differ from the original), [B, L].

    Predictions whose token is unchanged are replaced too, and a sample equal to the original token counts as original
    (google-research/electra, run_pretraining.py). No gradient flows through the samples.
    """
    name, network = forward.with_head("mlm_head")
    positions, labels = batch["mlm_positions"], batch["mlm_labels"]
    head, word = network.mlm_head, network.encoder.embeddings.word[...]
    h_BPE = head.transformed(gather_positions(forward(batch, name, for_mlm=True), positions))
    samples = sampled_tokens(
        h_BPE, word, head.vocabulary_bias(), batch["rtd_draws"], vocab_size=head.vocab_size, chunk=network.logits_chunk
    )
    rows = jnp.arange(len(positions))[:, None]
    # Unused slots get a position beyond the row, so that their samples are dropped.
    targets = jnp.where(batch["mlm_weights"] > 0, positions, batch["input_ids"].shape[1])
    ids = batch["input_ids"].at[rows, targets].set(samples, mode="drop")
    is_replaced = jnp.zeros(ids.shape, bool).at[rows, targets].set(samples != labels, mode="drop")
    return ids, is_replaced


def _sums(forward: Forward, batch: Batch, keys: Keys) -> Sums:
    ids, is_replaced = replaced(forward, batch)
    hidden_BLD = forward(batch | {"input_ids": ids})
    logits = forward.model.rtd_logits(hidden_BLD, sequence_ids=batch["sequence_ids"])[..., 0]
    weights = batch["rtd_weights"]
    # -log(sigmoid(logit)), or of the negative logit, as softplus, which does not overflow.
    nll = jax.nn.softplus(jnp.where(is_replaced, -logits, logits))
    called = logits > 0
    return {
        "loss": jnp.sum(nll * weights),
        "accuracy": jnp.sum((called == is_replaced) * weights),
        "replaced": jnp.sum(is_replaced * weights),
        "called": jnp.sum(called * weights),
        "found": jnp.sum((called & is_replaced) * weights),
    }


def _untouched(facts: HeldOutFacts) -> dict[str, float]:
    predictions = total = 0.0
    for batch in facts.batches():
        predictions += float(batch["mlm_weights"].sum())
        total += float(batch["rtd_weights"].sum())
    return {"untouched_share": 1 - predictions / total if total else 1.0}


RTD = Objective(
    name="rtd",
    weight_key="rtd_weights",
    sums=_sums,
    epsilon=1e-6,  # run_pretraining.py: numerator / (sum of weights + 1e-6)
    scale=50.0,  # of the paper (section 3.1)
    figures=("loss", "accuracy", "replaced", "called", "found"),
    ratios={"precision": ("found", "called"), "recall": ("found", "replaced")},
    heads=("rtd_head", "mlm_head"),
    about="replaced tokens (RTD)",
    measures=(
        Measure(
            figure="accuracy",
            name="RTD accuracy",
            unit="",
            baseline="untouched_share",
            baseline_name="untouched",
            meaning="the share of tokens that the generator did not predict",
            clause="{value} of all tokens are correctly classified as replaced or original",
            brief="rtd",
        ),
    ),
    baselines=_untouched,
)
