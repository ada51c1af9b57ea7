"""What a model is fine-tuned to do: the losses of the kinds of tasks, those of transformers' classes for them.

Like those of pretraining every figure is a sum over weighted predictions until the one division over the global batch.
The batch keys are those of `bertjax.finetune.rows.TaskRows`; of the kinds that can be packed a row may have several
examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax

from bertjax.parallel.mesh import BATCH_AXES
from bertjax.training.objectives import Batch, Forward, Keys, Objective, Sums, classified

Outputs = Callable[[Any, jax.Array, Batch], jax.Array]


def sequence_logits(model: Any, hidden: jax.Array, batch: Batch, keys: Keys = None) -> jax.Array:
    """[B, labels]: of each row's first sequence, its only one where someone asks."""
    return model.sequence_logits(hidden, batch["cls_positions"], keys)[:, 0]


def choice_logits(model: Any, hidden: jax.Array, batch: Batch, keys: Keys = None) -> jax.Array:
    """[B, choices]."""
    return model.choice_logits(hidden, batch["cls_positions"], keys)


def token_logits(model: Any, hidden: jax.Array, batch: Batch, keys: Keys = None) -> jax.Array:
    """[B, L, labels]."""
    return model.token_logits(hidden, batch["sequence_ids"], keys)


def span_logits(model: Any, hidden: jax.Array, batch: Batch, keys: Keys = None) -> jax.Array:
    """[B, L, 2]: of a start and an end; padding has the lowest finite float, so that no probability goes there."""
    real = (batch["sequence_ids"] > 0)[:, :, None]
    return jnp.where(real, model.span_logits(hidden), jnp.finfo(jnp.float32).min)


def text_vectors(model: Any, hidden: jax.Array, batch: Batch, keys: Keys = None) -> jax.Array:
    """[B, 2, D]: the vectors, of length 1, of the two texts in each row."""
    return model.vectors(hidden, batch["sequence_ids"], batch["cls_positions"].shape[1])


def _numbers(model: Any, hidden: jax.Array, batch: Batch, keys: Keys) -> jax.Array:
    """[B, S]: the one number for each sequence of a row."""
    return model.sequence_logits(hidden, batch["cls_positions"], keys)[:, :, 0]


def _classification(forward: Forward, batch: Batch, keys: Keys) -> Sums:
    model, hidden = forward.model, forward(batch)
    logits = model.sequence_logits(hidden, batch["cls_positions"], keys)
    return classified(logits, batch["labels"], batch["label_weights"])


def _regression(forward: Forward, batch: Batch, keys: Keys) -> Sums:
    model, hidden = forward.model, forward(batch)
    error = _numbers(model, hidden, batch, keys) - batch["labels"]
    return {"loss": jnp.sum(jnp.square(error) * batch["label_weights"])}


def _relevance(forward: Forward, batch: Batch, keys: Keys) -> Sums:
    model, hidden = forward.model, forward(batch)
    logits, weights = _numbers(model, hidden, batch, keys), batch["label_weights"]
    hits = ((logits > 0) == (batch["labels"] > 0.5)).astype(jnp.float32)
    nll = optax.sigmoid_binary_cross_entropy(logits, batch["labels"])
    return {"loss": jnp.sum(nll * weights), "accuracy": jnp.sum(hits * weights)}


def _choice(forward: Forward, batch: Batch, keys: Keys) -> Sums:
    model, hidden = forward.model, forward(batch)
    return classified(choice_logits(model, hidden, batch, keys), batch["labels"], batch["label_weights"])


def _tagging(forward: Forward, batch: Batch, keys: Keys) -> Sums:
    model, hidden = forward.model, forward(batch)
    return classified(token_logits(model, hidden, batch, keys), batch["labels"], batch["label_weights"])


def _span(forward: Forward, batch: Batch, keys: Keys) -> Sums:
    model, hidden = forward.model, forward(batch)
    logits, weights = model.span_logits(hidden), batch["label_weights"]
    # Of a row's tokens each of its sequences, [B, S, L], chooses among its own.
    own = batch["sequence_ids"][:, None] == jnp.arange(1, weights.shape[1] + 1)[:, None]
    masked = jnp.where(own[..., None], logits[:, None], jnp.finfo(jnp.float32).min)
    ends = [classified(masked[..., n], batch[name], weights) for n, name in enumerate(("starts", "ends"))]
    return {name: (ends[0][name] + ends[1][name]) / 2 for name in ends[0]}


def contrastive(temperature: float) -> Objective:
    """Each first text is to find its second among those of the whole batch, all of its devices' (InfoNCE).

    Similarities are cosines over `temperature`; a row of weight 0 is no one's other, nor is one that shares a text.
    """

    def sums(forward: Forward, batch: Batch, keys: Keys) -> Sums:
        model, hidden = forward.model, forward(batch)
        vectors, weights = text_vectors(model, hidden, batch, keys), batch["label_weights"]
        # In the order of the mesh's axes, which is that of the rows.
        everyone = (vectors[:, 1], batch["texts"], weights)
        seconds, texts, there = jax.lax.all_gather(everyone, BATCH_AXES, tiled=True)
        own = jax.lax.axis_index(BATCH_AXES) * len(weights) + jnp.arange(len(weights))
        # A query's other answers, and another query's copy of the answer, are no wrong ones.
        shared = (batch["texts"][:, None, :, None] == texts[:, None]).any((2, 3))
        told_apart = (there > 0) & (~shared | (own[:, None] == jnp.arange(len(texts))))
        logits = jnp.where(told_apart, vectors[:, 0] @ seconds.T / temperature, jnp.finfo(jnp.float32).min)
        return classified(logits, own, weights)

    return Objective("vector", "label_weights", sums, epsilon=0.0)


# By kind of task; that of vectors has a setting.
_OBJECTIVES = {
    "sequence": Objective("sequence", "label_weights", _classification, epsilon=0.0),
    "regression": Objective("regression", "label_weights", _regression, epsilon=0.0, figures=("loss",)),
    "relevance": Objective("relevance", "label_weights", _relevance, epsilon=0.0),
    "choice": Objective("choice", "label_weights", _choice, epsilon=0.0),
    "tokens": Objective("tokens", "label_weights", _tagging, epsilon=0.0),
    "span": Objective("span", "label_weights", _span, epsilon=0.0),
}

# What a network of each kind says of a batch; of tokens and spans it is per token.
OUTPUTS: dict[str, Outputs] = {
    "sequence": sequence_logits,
    "regression": sequence_logits,
    "relevance": sequence_logits,
    "choice": choice_logits,
    "tokens": token_logits,
    "span": span_logits,
    "vector": text_vectors,
}
PER_TOKEN = ("tokens", "span")


def objective_of(kind: str, temperature: float) -> Objective:
    """The objective of a kind of task; `temperature` is for that of vectors."""
    return contrastive(temperature) if kind == "vector" else _OBJECTIVES[kind]
