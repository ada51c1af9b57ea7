"""What layers see in addition to windows of a batch's rows: global tokens (Longformer), chosen blocks (BigBird)."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp

from bertjax.config import ModelConfig
from bertjax.model.attention.block_sparse import block_layout, sees_blocks
from bertjax.model.attention.windows import GlobalTokens

GLOBAL_PROJECTIONS = {"query_global": "query", "key_global": "key", "value_global": "value"}  # -> the ordinary ones


class Pattern(NamedTuple):
    """One of the two is there. Layers with a pattern are computed in XLA, whatever back end the others have."""

    tokens: GlobalTokens | None = None
    blocks: jax.Array | None = None  # int32 [layers, H, n - 2, random]; for one layer without the first dim

    def for_layer(self, number: jax.Array) -> Pattern:
        """The pattern of one layer, by its number, int []."""
        return self if self.blocks is None else Pattern(blocks=self.blocks[number])


def pattern_of(
    config: ModelConfig, sequence_ids: jax.Array, packed: bool, global_positions: jax.Array | None
) -> Pattern | None:
    """The pattern for rows whose `sequence_ids` are int32 [B, L]; None where attention is full or in windows.

    `global_positions`, int32 [B, G], ascending, are each row's global tokens; one that is not above all
    before it is an unused slot. Without them no token is global, or with `global_tokens` first the first of each row,
    which then must be one sequence. In packed rows a token is global to its own sequence only.

    Blocks are those of a row, and attention is full in rows that `is_sparse` calls short. Raises ValueError for packed
    rows that are longer, or whose sequences have their first token global: nothing says where those begin.
    """
    length = sequence_ids.shape[1]
    if config.attention_block:
        if not sees_blocks(config, length):
            return None
        if packed:
            raise ValueError(
                f"model.attention_block={config.attention_block} in packed rows of {length} tokens: blocks are those "
                "of a row, so a sequence would see other tokens packed than alone; set data.packing='none'"
            )
        return Pattern(blocks=jnp.asarray(block_layout(config, -(-length // config.attention_block))))
    if config.global_tokens == "none":
        return None
    if global_positions is None and config.global_tokens == "first":
        if packed:
            raise ValueError(
                "model.global_tokens='first' in packed rows: nothing says where their sequences begin; set "
                "data.packing='none'"
            )
        global_positions = jnp.zeros((len(sequence_ids), 1), jnp.int32)
    return None if global_positions is None else Pattern(tokens=tokens_at(global_positions, length))


def tokens_at(positions: jax.Array, length: int) -> GlobalTokens:
    """The global tokens at the positions that `pattern_of` takes, in rows of `length` tokens."""
    before = jnp.pad(jax.lax.cummax(positions, axis=1)[:, :-1], ((0, 0), (1, 0)), constant_values=-1)
    known = jnp.where(positions > before, positions, length)
    marked = jnp.zeros((len(known), length), bool).at[jnp.arange(len(known))[:, None], known].set(True, mode="drop")
    return GlobalTokens(known, marked)


def with_copied_projections(attention: dict[str, Any]) -> dict[str, Any]:
    """The parameters of attention with projections of global tokens that are copies of the ordinary ones.

    So Longformer's authors start from RoBERTa, and again after pretraining, in which no token is global.
    """
    return attention | {name: dict(attention[role]) for name, role in GLOBAL_PROJECTIONS.items()}
