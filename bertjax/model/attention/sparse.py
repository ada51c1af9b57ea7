"""Sparse attention patterns of a batch: global tokens (Longformer) and chosen blocks (BigBird)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bertjax.config import ModelConfig
from bertjax.model.attention.block_sparse import block_layout, sees_blocks
from bertjax.model.attention.windows import GlobalTokens

GLOBAL_PROJECTIONS = {"query_global": "query", "key_global": "key", "value_global": "value"}  # -> the ordinary ones


class Pattern(NamedTuple):
    """Either global tokens or blocks. Layers with global tokens use XLA, whatever the backend."""

    tokens: GlobalTokens | None = None
    blocks: jax.Array | None = None  # int32 [layers, H, n - 2, random]; for one layer without the first dim

    def for_layer(self, number: jax.Array) -> Pattern:
        """The pattern of one layer, by its number, int []."""
        return self if self.blocks is None else Pattern(blocks=self.blocks[number])


def make_pattern(
    config: ModelConfig, sequence_ids: jax.Array, packed: bool, global_positions: jax.Array | None
) -> Pattern | None:
    """The pattern for rows with `sequence_ids`, int32 [B, L]; None if attention is full or in windows.

    `global_positions`, int32 [B, G], ascending, are the global tokens of each row; one that is not greater than all
    before it is an unused slot. Without them no token is global, or with `global_tokens` first the first token of each
    row, which then must be one sequence. In packed rows a token is global to its own sequence only.

    Blocks divide the row, and attention is full in rows that are too short for `is_sparse`. Raises ValueError for
    longer packed rows, and for packed rows with `global_tokens` first, since the starts of sequences are unknown.
    """
    length = sequence_ids.shape[1]
    if config.attention_block:
        if not sees_blocks(config, length):
            return None
        if packed:
            raise ValueError(
                f"model.attention_block={config.attention_block} in packed rows of {length} tokens: blocks "
                "divide the row, so a packed sequence would see other tokens than alone; set data.packing='none'"
            )
        return Pattern(blocks=jnp.asarray(block_layout(config, -(-length // config.attention_block))))
    if config.global_tokens == "none":
        return None
    if global_positions is None and config.global_tokens == "first":
        if packed:
            raise ValueError(
                "model.global_tokens='first' in packed rows: the starts of their sequences are unknown; set "
                "data.packing='none'"
            )
        global_positions = jnp.zeros((len(sequence_ids), 1), jnp.int32)
    return None if global_positions is None else Pattern(tokens=tokens_at(global_positions, length))


def tokens_at(positions: jax.Array, length: int) -> GlobalTokens:
    """The global tokens at `global_positions` (see `make_pattern`), in rows of `length` tokens."""
    before = jnp.pad(jax.lax.cummax(positions, axis=1)[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    positions = jnp.where(positions > before, positions, length)
    rows = jnp.arange(len(positions))[:, None]
    marked = jnp.zeros((len(positions), length), bool).at[rows, positions].set(True, mode="drop")
    return GlobalTokens(positions, marked)


def with_copied_projections(attention: dict[str, Any]) -> dict[str, Any]:
    """Add projections of global tokens to attention's parameters, as copies of the ordinary ones.

    Longformer's authors do this to start from RoBERTa, and again after pretraining, in which no token is global.
    """
    return attention | {name: dict(attention[role]) for name, role in GLOBAL_PROJECTIONS.items()}
