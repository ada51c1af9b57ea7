"""BigBird's block-sparse attention (arXiv 2007.14062, section 2; its internal transformer construction).

A row is cut into n blocks. The first and the last block see everything and are seen by everything; a block u between
them sees u - 1, u, u + 1 and a few random blocks. Every key counts once. Time and memory grow with the length.
"""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import jax
import jax.numpy as jnp
import numpy as np

from bertjax.config import ModelConfig
from bertjax.model.attention.kernels import JOINED_HEADS
from bertjax.model.attention.windows import (
    NOWHERE,
    Keys,
    Scoring,
    attend_blocks,
    block_positions,
    heads_first,
    in_blocks,
    joined,
)


def is_sparse(length: int, block: int, random: int) -> bool:
    """Whether rows of `length` tokens have more blocks than the full square pays for; else attention is full."""
    return length > longest_full(block, random)


def longest_full(block: int, random: int) -> int:
    """Tokens of the longest rows in which attention is full, as in BigBird's class in transformers."""
    return (5 + 2 * random) * block


def sees_blocks(model: ModelConfig, length: int) -> bool:
    """Whether tokens of rows of `length` tokens see chosen blocks, and not all of their sequence."""
    return model.attention_block > 0 and is_sparse(length, model.attention_block, model.random_blocks)


def for_sequences(model: ModelConfig, longest: int) -> ModelConfig:
    """The model for sequences of at most `longest` tokens, of which a row may have several.

    It has no blocks where attention is full in each sequence alone: so it is in a long row of several too.
    """
    return model if sees_blocks(model, longest) else replace(model, attention_block=0, random_blocks=0)


def length_of_text(model: ModelConfig, needed: int, padded: int) -> int:
    """Tokens of the row of a text that has `needed` tokens, and would be padded to `padded`.

    Blocks are those of the padded row: where there are any it is a whole number of them, unless `padded` ends within
    the last, as BigBird's class in transformers pads a text alone. So nothing else in a batch decides what it sees.
    """
    if not sees_blocks(model, padded):
        return padded
    return min(-(-needed // model.attention_block) * model.attention_block, padded)


def random_blocks(seed: int, layer: int, heads: int, blocks: int, random: int) -> np.ndarray:
    """The random blocks that block 1 to n - 2 of `blocks` see in each head of a layer: int32 [heads, n - 2, random].

    They differ from each other and from the blocks that it sees anyway. A function of its arguments alone, the same in
    training and evaluation as in google-research/bigbird; published models draw from the first 1,024 tokens only,
    this from the row.
    """
    assert blocks >= 5 + random, f"{blocks} blocks are too few for {random} random ones"
    draw = np.random.Generator(np.random.Philox(key=[seed, layer]))
    chosen = np.empty((heads, blocks - 2, random), np.int32)
    for u in range(1, blocks - 1):
        others = np.setdiff1d(np.arange(1, blocks - 1), [u - 1, u, u + 1])
        for head in range(heads):
            chosen[head, u - 1] = draw.choice(others, random, replace=False)
    return chosen


def keys_per_token(length: int, block: int, random: int) -> float:
    """The keys that a token of a row sees on average, for counting FLOPs: all of them in rows that are not sparse."""
    if not is_sparse(length, block, random):
        return length
    blocks = length / block
    # Two blocks see all; two see an end as their neighbour, and so one block less than the others.
    return block * (2 * blocks + (blocks - 2) * (5 + random) - 2) / blocks


def blocks_of_transformers_evaluation(heads: int, blocks: int, random: int) -> np.ndarray:
    """What replaces `random_blocks` in transformers' BigBird outside of training: block 0 every time.

    A key of block 0 then counts 1 + `random` times in blocks 1 to n - 2, as if its score had ln(1 + random) more. It is
    for comparing with that class; a model is trained with blocks that differ.
    """
    return np.zeros((heads, blocks - 2, random), np.int32)


def block_layout(config: ModelConfig, blocks: int) -> np.ndarray:
    """The random blocks of every layer in rows of `blocks` blocks: int32 [layers, heads, blocks - 2, random].

    They are those of `random_blocks` by `random_blocks_seed` and the layer, the same in training and evaluation, or for
    a seed of -1 those of `blocks_of_transformers_evaluation`.
    """
    heads, seed = config.num_attention_heads, config.random_blocks_seed
    return _layout(config.num_hidden_layers, heads, blocks, config.random_blocks, seed)


@cache
def _layout(layers: int, heads: int, blocks: int, random: int, seed: int) -> np.ndarray:
    if seed < 0:
        return np.stack([blocks_of_transformers_evaluation(heads, blocks, random)] * layers)
    return np.stack([random_blocks(seed, layer, heads, blocks, random) for layer in range(layers)])


def block_sparse_attention(
    q: jax.Array,
    k: jax.Array,
    v: jax.Array,
    sequence_ids: jax.Array,
    chosen: jax.Array,
    dropout_keys: jax.Array | None,
    dropout_rate: float,
    *,
    block: int,
    backend: str = "xla",
) -> jax.Array:
    """softmax(q k / sqrt(K)) v over the blocks that are seen, within a sequence: [B, L, H, K] -> [B, L, H, K].

    `sequence_ids` is int32 [B, L], `chosen` int32 [H, n - 2, random] as `random_blocks` makes it for n = ceil(L /
    block), at least 3. A block that it names twice, or that is seen anyway, counts as often. Seen by all are the first
    and last block of the row: in packed rows not those of each sequence. The backward pass keeps these inputs alone.
    """
    if backend in JOINED_HEADS:
        # Imported here because Pallas takes a quarter of a second that other runs do not need to spend.
        from bertjax.model.attention.mosaic import mosaic_attention
        from bertjax.model.attention.mosaic_blocks import Settings

        rate, interpret = 0.0 if dropout_keys is None else dropout_rate, backend == "mosaic_interpreted"
        settings = Settings(q.shape[-1], rate, block=block, random=chosen.shape[2], interpret=interpret)
        return mosaic_attention(q, k, v, sequence_ids, dropout_keys, (), settings, chosen=chosen)
    scoring = Scoring(q.shape[1], dropout_keys, dropout_rate)

    @jax.checkpoint
    def attended(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        q, k, v = (in_blocks(heads_first(x), block) for x in (q * (q.shape[-1] ** -0.5), k, v))
        ids = in_blocks(sequence_ids[:, None], block, NOWHERE)
        assert q.shape[2] == chosen.shape[1] + 2 > 2, "the random blocks are of rows with another number of blocks"
        ends, inner = _ends_see(q, k, v, ids, scoring), _inner_see(q, k, v, ids, chosen, scoring)
        out = jnp.concatenate([ends[:, :, :1], inner, ends[:, :, 1:]], axis=2)
        return heads_first(joined(out)[:, :, : scoring.length])

    return attended(q, k, v)


def _ends_see(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array, scoring: Scoring) -> jax.Array:
    """The first and the last block, which see the row: q, k, v [B, H, n, C, K], ids [B, 1, n, C] -> [B, H, 2, C, K]."""
    positions, row_ids = block_positions(q), ids.reshape(ids.shape[0], 1, 1, 1, -1)
    row = Keys(joined(k), joined(v), _ends(ids, 2)[..., None] == row_ids, positions.reshape(-1))
    return attend_blocks(_ends(q, 2), _ends(positions, 0), [row], scoring)


def _inner_see(
    q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array, chosen: jax.Array, scoring: Scoring
) -> jax.Array:
    """The blocks between, which see the ends, their neighbours and random blocks: -> [B, H, n - 2, C, K]."""
    positions, query_ids = block_positions(q)[..., 0], ids[:, :, 1:-1, :, None]
    end_ids = _ends(ids, 2).reshape(ids.shape[0], 1, 1, 1, -1)
    ends = Keys(joined(_ends(k, 2)), joined(_ends(v, 2)), query_ids == end_ids, _ends(positions, 0).reshape(-1))
    # An end that is a neighbour is no key there: it is one of the ends.
    near_ids = _neighbours(ids.at[:, :, jnp.asarray([0, -1])].set(NOWHERE))[..., None, :]
    near_positions = _neighbours(positions[None, None])[..., None, :]
    near = Keys(_neighbours(k), _neighbours(v), query_ids == near_ids, near_positions)
    far_ids = _chosen(jnp.broadcast_to(ids, q.shape[:-1]), chosen)[..., None, :]
    far_positions = _chosen(jnp.broadcast_to(positions, q.shape[1:-1])[None], chosen)[..., None, :]
    far = Keys(_chosen(k, chosen), _chosen(v, chosen), query_ids == far_ids, far_positions)
    return attend_blocks(q[:, :, 1:-1], positions[1:-1, :, None], [ends, near, far], scoring)


def _ends(x: jax.Array, dim: int) -> jax.Array:
    """The first and the last block."""
    return jnp.take(x, jnp.asarray([0, x.shape[dim] - 1]), axis=dim)


def _neighbours(x: jax.Array) -> jax.Array:
    """Each inner block with the one before and the one after: [B, H, n, C, ...] -> [B, H, n - 2, 3 C, ...]."""
    return jnp.concatenate([x[:, :, :-2], x[:, :, 1:-1], x[:, :, 2:]], axis=3)


def _chosen(x: jax.Array, chosen: jax.Array) -> jax.Array:
    """The chosen blocks side by side: [B, H, n, C, ...] by [H, n - 2, R] -> [B, H, n - 2, R C, ...]."""
    taken = jax.vmap(lambda head, blocks: head[:, blocks], in_axes=(1, 0), out_axes=1)(x, chosen)
    return taken.reshape(*taken.shape[:3], -1, *taken.shape[5:])
