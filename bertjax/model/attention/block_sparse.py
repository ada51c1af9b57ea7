"""BigBird's block-sparse attention (arXiv 2007.14062, section 2; its internal transformer construction).

A row is cut into n blocks. The first and the last block see everything and are seen by everything; a block u between
them sees u - 1, u, u + 1 and a few random blocks. Every key counts once. Time and memory are linear in the length.
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
    """Whether rows of `length` tokens are long enough for block-sparse attention; else attention is full."""
    return length > longest_full(block, random)


def longest_full(block: int, random: int) -> int:
    """The length of the longest rows with full attention, as in transformers' BigBird."""
    return (5 + 2 * random) * block


def sees_blocks(model: ModelConfig, length: int) -> bool:
    """Whether tokens in rows of `length` tokens see chosen blocks and not all of their sequence."""
    return model.attention_block > 0 and is_sparse(length, model.attention_block, model.random_blocks)


def for_sequences(model: ModelConfig, longest: int) -> ModelConfig:
    """The model for sequences of at most `longest` tokens, several of which may share a row.

    If attention is full in each sequence alone, it has no blocks, so that attention is full in longer shared rows too.
    """
    return model if sees_blocks(model, longest) else replace(model, attention_block=0, random_blocks=0)


def length_of_text(model: ModelConfig, needed: int, padded: int) -> int:
    """The row length for a text of `needed` tokens that would be padded to `padded`.

    Blocks divide the padded row, so with block-sparse attention a text is padded to whole blocks (but at most to
    `padded`), as transformers' BigBird pads a single text. What it sees then does not depend on the rest of the batch.
    """
    if not sees_blocks(model, padded):
        return padded
    return min(-(-needed // model.attention_block) * model.attention_block, padded)


def random_blocks(seed: int, layer: int, heads: int, blocks: int, random: int) -> np.ndarray:
    """Draw the random blocks that blocks 1 to n - 2 see in each head of a layer: int32 [heads, n - 2, random].

    n is `blocks`. A block's random blocks differ from each other and from those that it sees anyway. They depend on the
    arguments alone, and are the same in training and evaluation, as in google-research/bigbird. Published models draw
    from the first 1,024 tokens only, this function from the whole row.
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
    """The average number of keys that a token sees, for counting FLOPs: all keys in rows that are not sparse."""
    if not is_sparse(length, block, random):
        return length
    blocks = length / block
    # Two blocks see all; two have an end as their neighbour, and so see one block less than the others.
    return block * (2 * blocks + (blocks - 2) * (5 + random) - 2) / blocks


def blocks_of_transformers_evaluation(heads: int, blocks: int, random: int) -> np.ndarray:
    """The blocks that transformers' BigBird uses in place of random ones outside of training: always block 0.

    A key of block 0 then counts 1 + `random` times in blocks 1 to n - 2, as if ln(1 + random) were added to its score.
    Only for comparison with transformers: training uses distinct blocks.
    """
    return np.zeros((heads, blocks - 2, random), np.int32)


def block_layout(config: ModelConfig, blocks: int) -> np.ndarray:
    """The random blocks of every layer in rows of `blocks` blocks: int32 [layers, heads, blocks - 2, random].

    They come from `random_blocks` with `random_blocks_seed` and the layer, the same in training and evaluation. A seed
    of -1 selects `blocks_of_transformers_evaluation`.
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
    """Compute softmax(q k / sqrt(K)) v over visible blocks, within a sequence: [B, L, H, K] -> [B, L, H, K].

    `sequence_ids` is int32 [B, L], `chosen` int32 [H, n - 2, random] from `random_blocks` for n = ceil(L / block), at
    least 3. A block that occurs twice in it, or is visible anyway, counts repeatedly. The first and last block of the
    row, not of each packed sequence, are visible to all. The backward pass keeps only these inputs.
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
    def attention(q: jax.Array, k: jax.Array, v: jax.Array) -> jax.Array:
        q, k, v = (in_blocks(heads_first(x), block) for x in (q * (q.shape[-1] ** -0.5), k, v))
        ids = in_blocks(sequence_ids[:, None], block, NOWHERE)
        assert q.shape[2] == chosen.shape[1] + 2 > 2, "the random blocks were drawn for another number of blocks"
        ends, inner = _attend_from_ends(q, k, v, ids, scoring), _attend_from_inner(q, k, v, ids, chosen, scoring)
        out = jnp.concatenate([ends[:, :, :1], inner, ends[:, :, 1:]], axis=2)
        return heads_first(joined(out)[:, :, : scoring.length])

    return attention(q, k, v)


def _attend_from_ends(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array, scoring: Scoring) -> jax.Array:
    """Attend from the two ends to the whole row: q, k, v [B, H, n, C, K], ids [B, 1, n, C] -> [B, H, 2, C, K]."""
    positions, row_ids = block_positions(q), ids.reshape(ids.shape[0], 1, 1, 1, -1)
    row = Keys(joined(k), joined(v), _take_ends(ids, 2)[..., None] == row_ids, positions.reshape(-1))
    return attend_blocks(_take_ends(q, 2), _take_ends(positions, 0), [row], scoring)


def _attend_from_inner(
    q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array, chosen: jax.Array, scoring: Scoring
) -> jax.Array:
    """Attend from the inner blocks to the ends, their neighbours and random blocks: -> [B, H, n - 2, C, K]."""
    positions, query_ids = block_positions(q)[..., 0], ids[:, :, 1:-1, :, None]
    end_ids = _take_ends(ids, 2).reshape(ids.shape[0], 1, 1, 1, -1)
    ends = Keys(
        joined(_take_ends(k, 2)), joined(_take_ends(v, 2)), query_ids == end_ids, _take_ends(positions, 0).reshape(-1)
    )
    # An end block that is also a neighbour is masked there, because the ends have its keys already.
    near_ids = _join_neighbours(ids.at[:, :, jnp.asarray([0, -1])].set(NOWHERE))[..., None, :]
    near_positions = _join_neighbours(positions[None, None])[..., None, :]
    near = Keys(_join_neighbours(k), _join_neighbours(v), query_ids == near_ids, near_positions)
    far_ids = _take_chosen(jnp.broadcast_to(ids, q.shape[:-1]), chosen)[..., None, :]
    far_positions = _take_chosen(jnp.broadcast_to(positions, q.shape[1:-1])[None], chosen)[..., None, :]
    far = Keys(_take_chosen(k, chosen), _take_chosen(v, chosen), query_ids == far_ids, far_positions)
    return attend_blocks(q[:, :, 1:-1], positions[1:-1, :, None], [ends, near, far], scoring)


def _take_ends(x: jax.Array, dim: int) -> jax.Array:
    """Take the first and the last block."""
    return jnp.take(x, jnp.asarray([0, x.shape[dim] - 1]), axis=dim)


def _join_neighbours(x: jax.Array) -> jax.Array:
    """Join each inner block with the one before and the one after: [B, H, n, C, ...] -> [B, H, n - 2, 3 C, ...]."""
    return jnp.concatenate([x[:, :, :-2], x[:, :, 1:-1], x[:, :, 2:]], axis=3)


def _take_chosen(x: jax.Array, chosen: jax.Array) -> jax.Array:
    """Join the chosen blocks of each inner block: [B, H, n, C, ...], [H, n - 2, R] -> [B, H, n - 2, R C, ...]."""
    taken = jax.vmap(lambda head, blocks: head[:, blocks], in_axes=(1, 0), out_axes=1)(x, chosen)
    return taken.reshape(*taken.shape[:3], -1, *taken.shape[5:])
