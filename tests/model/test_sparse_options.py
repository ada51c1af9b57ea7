"""Patterns of global tokens and blocks, and the order of norm and dropout in the embeddings."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from test_options import PLAIN, draw_params

from bertjax.families.networks import abstract_network
from bertjax.model.attention.block_sparse import block_layout, random_blocks
from bertjax.model.attention.sparse import make_pattern, tokens_at
from bertjax.model.dropout import row_keys
from bertjax.model.network import bind

BLOCKS = replace(PLAIN, family="bigbird", attention_block=2, random_blocks=2, random_blocks_seed=4)
GLOBALS = replace(PLAIN, family="longformer", window=2, global_every=0, global_tokens="marked")


def test_tokens_at_skips_positions_that_do_not_ascend() -> None:
    actual = tokens_at(jnp.asarray([[0, 3, 0, 5, 0], [-1, 2, -1, -1, -1], [0, 0, 0, 0, 0]], jnp.int32), 6)
    assert actual.positions.tolist() == [[0, 3, 6, 5, 6], [6, 2, 6, 6, 6], [0, 6, 6, 6, 6]]
    assert [np.flatnonzero(row).tolist() for row in actual.marked] == [[0, 3, 5], [2], [0]]


def test_make_pattern_is_none_for_full_attention() -> None:
    rows = jnp.ones((2, 24), jnp.int32)
    assert make_pattern(GLOBALS, rows, False, None) is None
    first = make_pattern(replace(GLOBALS, global_tokens="first"), rows, False, None)
    assert first.tokens.positions.tolist() == [[0], [0]]
    assert all(make_pattern(BLOCKS, rows[:, :18], packed, None) is None for packed in (True, False))
    with pytest.raises(ValueError, match=r"model\.attention_block=.* in packed rows of 24 tokens: .*packing='none'"):
        make_pattern(BLOCKS, rows, True, None)
    assert make_pattern(BLOCKS, rows, False, None).blocks.shape == (8, 3, 10, 2)


@pytest.mark.parametrize("seed", [4, -1])
def test_block_layout_has_random_blocks_per_layer(seed: int) -> None:
    blocks = block_layout(replace(BLOCKS, random_blocks_seed=seed), 12)
    expected = [random_blocks(seed, layer, 3, 12, 2) if seed >= 0 else np.zeros((3, 10, 2)) for layer in range(8)]
    np.testing.assert_array_equal(blocks, expected)


def test_dropout_before_the_norm_leaves_normalised_vectors() -> None:
    ids = jnp.arange(20, dtype=jnp.int32)[None]
    keys = row_keys(3, jnp.int32(0), jnp.arange(1))

    def embedded(order: str) -> np.ndarray:
        config = replace(PLAIN, embedding_norm=order, hidden_dropout_prob=0.4)
        params = draw_params(config)
        norm = params["encoder"]["embeddings"]["norm"]
        norm |= {"scale": np.ones_like(norm["scale"]), "bias": np.zeros_like(norm["bias"])}
        tables = bind(abstract_network(config)[0], params).encoder.embeddings
        return np.asarray(tables(ids, ids * 0, ids * 0 + 1, keys, False))

    inside, behind = embedded("dropout_norm"), embedded("norm_dropout")
    np.testing.assert_allclose(inside.var(-1), 1, atol=1e-5)
    assert not (inside == 0).any() and (behind == 0).mean() == pytest.approx(0.4, abs=0.1)


def test_pattern_for_layer_selects_its_blocks() -> None:
    pattern = make_pattern(BLOCKS, jnp.ones((1, 24), jnp.int32), False, None)
    third_layer = jax.jit(pattern.for_layer)(jnp.uint32(2))
    np.testing.assert_array_equal(third_layer.blocks, random_blocks(4, 2, 3, 12, 2))
