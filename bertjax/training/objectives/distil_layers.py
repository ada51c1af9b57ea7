"""Layer distillation (Jiao et al. 2020, "TinyBERT", section 3.1): embeddings, hidden states and attention scores.

Layer m of M is trained towards layer g(m) = m N / M of the teacher's N, and the embeddings towards the teacher's:

    loss = MSE(P e_s, e_t) + sum over m of MSE(P h_s,m, h_t,g(m)) + MSE(a_s,m, a_t,g(m))

P is a dense layer, the same for the embeddings and all layers, as in huawei-noah's general_distill.py (the paper has
two); it is left out if `model.teacher_width` is 0. The scores a = q k / sqrt(K) are those before the softmax, as in the
paper and its code. Head n is compared with head n, so both networks need the same number of heads. Each token's scores
are averaged over the tokens of its sequence, and everything over tokens other than padding, so that packing changes no
figure. (Their code counts padding, with scores of 0.)

Attention backends return no scores, and fused ones never store them. The queries and keys of the compared layers are
kept instead and multiplied here, one layer at a time, and again in the backward pass. This takes 3 M B L D numbers per
network in the compute dtype (3 N B L D for the teacher), and two float32 arrays [B, H, L, L] for the current layer.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import jax
import jax.numpy as jnp

from bertjax.config import ModelConfig
from bertjax.model.attention.backends import visible
from bertjax.model.layer_states import LayerStates
from bertjax.model.products import attention_scores
from bertjax.training.objectives.objective import (
    MODEL,
    TEACHER,
    Batch,
    Forward,
    Keys,
    Objective,
    Sums,
    TeacherRequirements,
    Unfit,
)

Project = Callable[[jax.Array], jax.Array]  # [B, L, D] of the student -> [B, L, D] of the teacher


def _sums(forward: Forward, batch: Batch, keys: Keys) -> Sums:
    model = forward.model
    count = model.encoder.config.num_hidden_layers
    student, teacher = (forward.layer_states(batch, count, name) for name in (MODEL, TEACHER))
    project = model.teacher_projection if model.encoder.config.teacher_width else lambda x: x
    mask = visible(batch["sequence_ids"], model.encoder.config.causal)
    unroll = model.encoder.execution.unrolled_periods
    return layer_sums(student, teacher, project, mask, batch["distil_layers_weights"], unroll)


def layer_sums(
    student: LayerStates, teacher: LayerStates, project: Project, mask: jax.Array, weights: jax.Array, unroll: int = 1
) -> Sums:
    """The loss and its three parts, summed over the tokens by their weights, float32 [B, L].

    `mask`, bool [B, L, L], marks the pairs of tokens whose scores are compared; `unroll` is the number of layers in one
    iteration of the scan.
    """

    def hidden_sum(ours: jax.Array, theirs: jax.Array) -> jax.Array:
        error = project(ours).astype(jnp.float32) - theirs.astype(jnp.float32)
        return jnp.sum(jnp.mean(jnp.square(error), axis=-1) * weights)

    def score_sum(ours: tuple[jax.Array, jax.Array], theirs: tuple[jax.Array, jax.Array]) -> jax.Array:
        error = jnp.where(mask[:, None], attention_scores(*ours) - attention_scores(*theirs), 0.0)
        per_token = jnp.einsum("BHLM,BHLM->BL", error, error) / error.shape[1]
        return jnp.sum(per_token / jnp.sum(mask, axis=-1) * weights)

    # Only the compared arrays of a layer are kept for the backward pass.
    @partial(jax.checkpoint, prevent_cse=False)
    def compare(ours: LayerStates, theirs: LayerStates) -> tuple[jax.Array, jax.Array]:
        return hidden_sum(ours.hidden, theirs.hidden), score_sum(
            (ours.queries, ours.keys), (theirs.queries, theirs.keys)
        )

    def add(total: tuple[jax.Array, jax.Array], layer: tuple[LayerStates, LayerStates]) -> tuple[tuple, None]:
        return jax.tree.map(jnp.add, total, compare(*layer)), None

    zero = jnp.zeros((), jnp.float32)
    teacher = jax.lax.stop_gradient(teacher)
    stacked = student._replace(embeddings=None), teacher._replace(embeddings=None)
    (hidden, attention), _ = jax.lax.scan(add, (zero, zero), stacked, unroll=min(unroll, len(student.hidden)))
    embeddings = hidden_sum(student.embeddings, teacher.embeddings)
    parts = {"embeddings": embeddings, "hidden": hidden, "attention": attention}
    return {"loss": sum(parts.values(), zero)} | parts


def _unfit(student: ModelConfig, teacher: ModelConfig) -> Unfit | None:
    ours, theirs = student.num_attention_heads, teacher.num_attention_heads
    if ours != theirs:
        return Unfit(
            f"it has {theirs} attention heads and the model {ours}", f"set model.num_attention_heads to {theirs}"
        )
    ours, theirs = student.num_hidden_layers, teacher.num_hidden_layers
    if theirs % ours:
        return Unfit(
            f"its number of layers, {theirs}, is not a multiple of the model's {ours}",
            f"set model.num_hidden_layers to a number that divides {theirs}",
        )
    width, theirs = student.teacher_width or student.hidden_size, teacher.hidden_size
    if width != theirs:
        ours = f"projected to {width}" if student.teacher_width else f"{width}, without projection"
        return Unfit(f"its vectors are {theirs} wide and the model's {ours}", f"set model.teacher_width to {theirs}")
    if {"alibi", "relative"} & {student.position_embedding, teacher.position_embedding}:
        return Unfit(
            "attention scores with ALiBi or relative positions are not products of queries and keys alone",
            "name another teacher",
        )
    if student.score_bias_buckets or teacher.score_bias_buckets:
        return Unfit("attention scores with biases are not products of queries and keys alone", "name another teacher")
    if student.attention_block or teacher.attention_block:
        return Unfit("block-sparse attention does not compute the scores of all tokens", "name another teacher")
    if student.window or teacher.window:
        return Unfit(
            f"its model.window is {teacher.window} and the model's {student.window}",
            "name a teacher without windows" if teacher.window else "set model.window to 0",
        )
    return None


DISTIL_LAYERS = Objective(
    name="distil_layers",
    weight_key="distil_layers_weights",
    sums=_sums,
    figures=("loss", "embeddings", "hidden", "attention"),
    teacher=TeacherRequirements(projected=True, unfit=_unfit),
)
