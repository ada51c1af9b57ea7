"""The baselines of held-out figures: what is possible without context."""

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

        `labels` and `weights` are keys of a batch, of the same shape; any integers are labels.
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
    """Loss in nats and accuracy of the best prediction from the token that is shown and from frequencies.

    Of a [MASK] only the frequencies are known: their entropy H, and the most frequent token. Another token is the label
    itself in a share q of the cases, with the paper's masks in half of them; to copy it with that probability costs
    -q log q + (1 - q) (H - log(1 - q)). A model above this loss has not begun to use the context, though 20 % of the
    paper's predictions show a token and take it far below H.
    """
    total = visible = copied = 0.0
    for batch in facts.batches():
        input_tokens = np.take_along_axis(batch["input_ids"], batch["mlm_positions"], axis=1)
        weights, is_visible = batch["mlm_weights"].astype(np.float64), input_tokens != facts.mask_id
        total += float(weights.sum())
        visible += float(weights[is_visible].sum())
        copied += float(weights[is_visible & (input_tokens == batch["mlm_labels"])].sum())
    seen, right = visible / max(total, 1.0), copied / max(visible, 1.0)
    cases = (right, 0.0), (1 - right, facts.unigram_loss)
    of_visible = sum(share * (entropy - math.log(share)) for share, entropy in cases if share)
    return {
        "no_context_loss": (1 - seen) * facts.unigram_loss + seen * min(of_visible, facts.unigram_loss),
        "no_context_accuracy": (1 - seen) * facts.unigram_accuracy + seen * max(right, facts.unigram_accuracy),
    }
