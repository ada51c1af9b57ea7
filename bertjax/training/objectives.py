"""What the model is trained to do. An objective owns its batch keys, its losses and its metrics.

Every figure is a pair (sum, weight) until the one division over the global batch, so that it is the same on any number
of devices and microbatches, however unevenly the masks fall.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bertjax.model.bert import Bert

Batch = dict[str, jax.Array]
Sums = dict[str, jax.Array]


@dataclass(frozen=True)
class Objective:
    """A training objective.

    `weight_key` names the batch array whose sum is the weight of all its figures; `sums(model, hidden_BLD, batch,
    dropout_keys)` returns its `figures` as float32 scalars, summed over the weighted predictions. `epsilon` is
    added to the weight when dividing.
    """

    name: str
    weight_key: str
    sums: Callable[[Any, jax.Array, Batch, jax.Array | None], Sums]  # of the network that has the head for it
    epsilon: float
    figures: tuple[str, ...] = ("loss", "accuracy")


def _mlm(model: Bert, hidden_BLD: jax.Array, batch: Batch, _: jax.Array | None) -> Sums:
    sums = model.mlm_sums(hidden_BLD, batch["mlm_positions"], batch["mlm_labels"], batch["mlm_weights"])
    return {"loss": sums.loss, "accuracy": sums.hits}


def _nsp(model: Bert, hidden_BLD: jax.Array, batch: Batch, _: jax.Array | None) -> Sums:
    logits, labels = model.nsp_logits(hidden_BLD, batch["cls_positions"]), batch["pair_labels"]
    nll = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
    hits = (logits.argmax(axis=-1) == labels).astype(jnp.float32)
    return {"loss": jnp.sum(nll * batch["pair_weights"]), "accuracy": jnp.sum(hits * batch["pair_weights"])}


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
