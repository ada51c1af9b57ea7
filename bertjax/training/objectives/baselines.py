"""Baselines of held-out figures: the best predictions without context."""

from __future__ import annotations

import collections
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class HeldOutFacts:
    """The input of baselines: token frequencies of the held-out text, and the evaluated batches."""

    unigram_loss: float  # entropy of the text's own token frequencies, nats
    unigram_accuracy: float  # share of its most frequent token
    mask_id: int
    batches: Callable[[], Iterator[dict[str, np.ndarray]]]

    def majority(self, labels: str, weights: str) -> float:
        """Share of the most frequent label in the held-out batches, by weight; 1 if there is no label.

        `labels` and `weights` are batch keys whose arrays have the same shape; labels are any integers.
        """
        sums: dict[int, float] = collections.defaultdict(float)
        for batch in self.batches():
            values, places = np.unique(batch[labels], return_inverse=True)
            weighted = np.bincount(places.ravel(), weights=batch[weights].ravel())
            for value, weight in zip(values.tolist(), weighted.tolist(), strict=True):
                sums[value] += weight
        total = sum(sums.values())
        return max(sums.values()) / total if total else 1.0


def without_context(facts: HeldOutFacts) -> dict[str, float]:
    """Loss in nats and accuracy of the best prediction from token frequencies and the visible token alone.

    For a [MASK], the loss is the entropy H of the frequencies, and the prediction the most frequent token. Any other
    visible token is the label in a share q of the cases (half of them with the paper's masks); copying it with this
    probability costs -q log q + (1 - q) (H - log(1 - q)). With the paper's masks, 20 % of the predictions have a
    visible token, so that even a loss far below H does not prove that a model uses the context; one below this does.
    """
    total = visible = copied = 0.0
    for batch in facts.batches():
        input_tokens = np.take_along_axis(batch["input_ids"], batch["mlm_positions"], axis=1)
        weights, is_visible = batch["mlm_weights"].astype(np.float64), input_tokens != facts.mask_id
        total += float(weights.sum())
        visible += float(weights[is_visible].sum())
        copied += float(weights[is_visible & (input_tokens == batch["mlm_labels"])].sum())
    visible_share, copy_share = visible / max(total, 1.0), copied / max(visible, 1.0)
    cases = (copy_share, 0.0), (1 - copy_share, facts.unigram_loss)
    copy_loss = sum(share * (entropy - math.log(share)) for share, entropy in cases if share)
    loss, accuracy = min(copy_loss, facts.unigram_loss), max(copy_share, facts.unigram_accuracy)  # of visible tokens
    return {
        "no_context_loss": (1 - visible_share) * facts.unigram_loss + visible_share * loss,
        "no_context_accuracy": (1 - visible_share) * facts.unigram_accuracy + visible_share * accuracy,
    }
