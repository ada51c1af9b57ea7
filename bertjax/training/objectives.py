"""What the model is trained to do. An objective owns its batch keys, its losses and its metrics.

Every figure is a pair (sum, weight) until the one division over the global batch, so that it is the same on any number
of devices and microbatches, however unevenly the masks fall.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from bertjax.model.bert import Bert

Batch = dict[str, jax.Array]
Sums = dict[str, jax.Array]


@dataclass(frozen=True)
class Objective:
    """A training objective.

    `weight_key` names the batch array whose sum is the weight of all its figures; `sums(model, hidden_BLD, batch)`
    returns float32 scalars `loss` and `accuracy`, summed over the weighted predictions. `epsilon` is added to the
    weight when dividing.
    """

    name: str
    weight_key: str
    sums: Callable[[Bert, jax.Array, Batch], Sums]
    epsilon: float


def _cross_entropy(logits: jax.Array, labels: jax.Array, weights: jax.Array) -> Sums:
    """Weighted sums of the negative log-likelihood and of hits; logits float32 [..., C], labels and weights [...]."""
    # A comparison with every class instead of a gather: it fuses, its gradient is no scatter, and it shards.
    chosen = jax.lax.broadcasted_iota(jnp.int32, logits.shape, logits.ndim - 1) == labels[..., None]
    picked = jnp.sum(jnp.where(chosen, logits, 0.0), axis=-1)
    nll = jax.nn.logsumexp(logits, axis=-1) - picked
    hits = (picked >= jax.lax.stop_gradient(logits.max(axis=-1))).astype(jnp.float32)
    return {"loss": jnp.sum(nll * weights), "accuracy": jnp.sum(hits * weights)}


def _mlm(model: Bert, hidden_BLD: jax.Array, batch: Batch) -> Sums:
    logits = model.mlm_logits(hidden_BLD, batch["mlm_positions"])
    return _cross_entropy(logits, batch["mlm_labels"], batch["mlm_weights"])


def _nsp(model: Bert, hidden_BLD: jax.Array, batch: Batch) -> Sums:
    logits = model.nsp_logits(hidden_BLD, batch["cls_positions"])
    return _cross_entropy(logits, batch["pair_labels"], batch["pair_weights"])


OBJECTIVES = {
    # The reference divides the masked loss by (sum of weights + 1e-5), the next-sentence loss by the number of pairs.
    "mlm": Objective("mlm", "mlm_weights", _mlm, epsilon=1e-5),
    "nsp": Objective("nsp", "pair_weights", _nsp, epsilon=0.0),
}


def choose(names: Sequence[str]) -> tuple[Objective, ...]:
    """Objectives by name.

    Raises ValueError for an unknown name or none at all, with the list of those that exist.
    """
    unknown = [name for name in names if name not in OBJECTIVES]
    if unknown or not names:
        raise ValueError(f"training.objectives={tuple(names)}: choose from {', '.join(OBJECTIVES)}")
    return tuple(OBJECTIVES[name] for name in names)
