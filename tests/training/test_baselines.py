"""The MLM baseline against the optimal predictor with all probabilities but no context."""

from __future__ import annotations

import numpy as np
import pytest

from bertjax.training.objectives import HeldOutFacts
from bertjax.training.objectives.baselines import without_context

VOCABULARY, MASK, ROWS, SLOTS = 2_000, 2_000, 2_000, 100
SHARES = 1 / np.arange(10, VOCABULARY + 10)
SHARES /= SHARES.sum()
ENTROPY = float(-(SHARES * np.log(SHARES)).sum())


def draw_batch(masked: float, keep: float, random: float, unused: float = 0.0) -> dict[str, np.ndarray]:
    """Draw labels from `SHARES` without context; inputs are [MASK], the label itself or a random token."""
    draw = np.random.default_rng(0)
    labels = draw.choice(VOCABULARY, (ROWS, SLOTS), p=SHARES)
    others = draw.integers(0, VOCABULARY, labels.shape)
    kind = draw.choice(3, labels.shape, p=(masked, keep, random))
    inputs = np.choose(kind, [np.full_like(labels, MASK), labels, others])
    positions = np.broadcast_to(np.arange(SLOTS), labels.shape)
    weights = (draw.random(labels.shape) >= unused).astype(np.float32)
    return {"input_ids": inputs, "mlm_positions": positions, "mlm_labels": labels, "mlm_weights": weights}


def facts(*batches: dict[str, np.ndarray]) -> HeldOutFacts:
    return HeldOutFacts(ENTROPY, float(SHARES.max()), MASK, lambda: iter(batches))


def optimal_prediction(batch: dict[str, np.ndarray], keep: float, random: float) -> tuple[float, float]:
    """Loss and accuracy of Bayes' rule with the probabilities from which the batch was drawn."""
    inputs, labels = batch["input_ids"].ravel(), batch["mlm_labels"].ravel()
    losses, hits = -np.log(SHARES[labels]), labels == 0
    for place in np.flatnonzero(inputs != MASK):
        joint = random / VOCABULARY * SHARES
        joint[inputs[place]] += keep * SHARES[inputs[place]]
        losses[place] = -np.log(joint[labels[place]] / joint.sum())
        hits[place] = joint.argmax() == labels[place]
    return float(losses.mean()), float(hits.mean())


@pytest.mark.parametrize("shares", [(0.8, 0.1, 0.1), (0.85, 0.15, 0.0), (1.0, 0.0, 0.0), (0.0, 0.5, 0.5)])
def test_baseline_is_nearly_the_optimum_without_context(shares: tuple[float, float, float]) -> None:
    batch = draw_batch(*shares)
    loss, accuracy = optimal_prediction(batch, *shares[1:])
    baseline = without_context(facts(batch))
    # Bayes' rule also uses that a visible frequent token is more likely kept than drawn at random.
    assert -0.01 < baseline["no_context_loss"] - loss < 0.2
    assert baseline["no_context_accuracy"] == pytest.approx(accuracy, abs=0.05)
    assert baseline["no_context_loss"] <= ENTROPY + 1e-9


def test_baseline_with_masks_only_is_the_unigram_entropy() -> None:
    baseline = without_context(facts(draw_batch(1.0, 0.0, 0.0)))
    assert baseline == {"no_context_loss": ENTROPY, "no_context_accuracy": SHARES.max()}


def test_copy_baseline_is_half_a_nat_below_frequencies() -> None:
    baseline = without_context(facts(draw_batch(0.8, 0.1, 0.1)))
    assert baseline["no_context_loss"] == pytest.approx(0.9 * ENTROPY + 0.2 * np.log(2), rel=5e-3)
    assert baseline["no_context_accuracy"] == pytest.approx(0.8 * SHARES.max() + 0.1, rel=2e-2)


def test_baseline_ignores_unused_slots_and_batch_size() -> None:
    batch = draw_batch(0.8, 0.1, 0.1, unused=0.3)
    changed = {**batch, "input_ids": np.where(batch["mlm_weights"] > 0, batch["input_ids"], 7)}
    halves = [{name: np.split(array, 2)[half] for name, array in batch.items()} for half in (0, 1)]
    whole = without_context(facts(batch))
    assert without_context(facts(changed)) == pytest.approx(whole, rel=1e-12)
    assert without_context(facts(*halves)) == pytest.approx(whole, rel=1e-12)


def test_uninformative_tokens_do_not_raise_the_baseline() -> None:
    """As in a causal model, whose next token rarely equals the current one."""
    assert without_context(facts(draw_batch(0.0, 0.0, 1.0)))["no_context_loss"] == pytest.approx(ENTROPY, rel=1e-2)


@pytest.mark.parametrize(
    ("labels", "weights", "share"),
    [
        ([[0, 1, 1], [1, 0, 7]], [[1, 1, 1], [1, 1, 0]], 3 / 5),  # two labels; the last slot is unused
        ([[0, 1, 2], [2, 2, 0]], [[1, 1, 1], [1, 1, 1]], 1 / 2),  # three labels
        ([[-1, 3, 3], [-1, 5, 5]], [[0.5, 1, 1], [0.5, 0.25, 0.25]], 2 / 3.5),  # by weight
        ([[0, 1, 2], [0, 1, 2]], [[0, 0, 0], [0, 0, 0]], 1.0),  # no label
    ],
)
def test_majority_is_the_share_of_the_most_frequent_label(labels: list, weights: list, share: float) -> None:
    batches = [
        {"labels": np.array([row], np.int32), "weights": np.array([weight], np.float32)}
        for row, weight in zip(labels, weights, strict=True)
    ]
    assert facts(*batches).majority("labels", "weights") == pytest.approx(share)
