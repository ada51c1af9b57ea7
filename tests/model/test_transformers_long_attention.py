"""Global tokens and sparse blocks match the attention modules of transformers' Longformer and BigBird."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from attention_sides import global_tokens

from bertjax.model.attention.block_sparse import (
    block_sparse_attention,
    blocks_of_transformers_evaluation,
    random_blocks,
)
from bertjax.model.attention.windows import global_attention, take_tokens

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")

HEADS, WIDTH = 2, 16


def randomise(module):
    """Set a module to evaluation, with random weights and biases."""
    torch.manual_seed(0)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.4)
    return module.eval()


def project(module, name: str, x: np.ndarray) -> jax.Array:
    """Apply one of a module's linear layers to x: [B, L, D] -> [B, L, H, K]."""
    with torch.no_grad():
        return jnp.asarray(getattr(module, name)(torch.from_numpy(x)).reshape(*x.shape[:2], HEADS, -1).numpy())


def draw_inputs(length: int) -> tuple[np.ndarray, np.ndarray]:
    """A full row and a padded one: x [2, L, D] and the mask of real tokens, bool [2, L]."""
    x = np.random.default_rng(0).normal(size=(2, length, WIDTH)).astype(np.float32)
    return x, np.arange(length) < np.array([[length], [length - 9]])


def assert_same(ours: jax.Array, theirs, real: np.ndarray) -> None:
    expected = theirs.detach().numpy().reshape(ours.shape)[real]
    np.testing.assert_allclose(np.asarray(ours)[real], expected, atol=2e-6 * np.abs(expected).max())


def test_global_attention_matches_longformer() -> None:
    from transformers import LongformerConfig
    from transformers.models.longformer.modeling_longformer import LongformerSelfAttention

    config = LongformerConfig(hidden_size=WIDTH, num_attention_heads=HEADS, attention_window=[8], num_hidden_layers=1)
    module, (x, real) = randomise(LongformerSelfAttention(config, 0)), draw_inputs(96)
    marked = np.zeros_like(real)
    # Some are neighbours, and some are within the windows of others; rows have different numbers of them.
    marked[0, [0, 1, 40]], marked[1, 0] = True, True
    masked, is_global = torch.from_numpy(~real), torch.from_numpy(marked)
    mask = torch.where(masked, -10_000.0, torch.where(is_global, 10_000.0, 0.0))
    (theirs,) = module(
        torch.from_numpy(x),
        attention_mask=mask,
        is_index_masked=masked,
        is_index_global_attn=is_global,
        is_global_attn=True,
    )[:1]

    @jax.jit
    def ours(ordinary, projected_globals) -> jax.Array:
        tokens = global_tokens(marked, 4)
        q, k, v = projected_globals
        ids = jnp.asarray(real, jnp.int32)
        return global_attention(ordinary, (take_tokens(q, tokens), k, v), ids, tokens, None, 0.0, window=4)

    ordinary, projected_globals = (
        [project(module, f"{name}{suffix}", x) for name in ("query", "key", "value")] for suffix in ("", "_global")
    )
    assert_same(ours(ordinary, projected_globals), theirs, real)


@pytest.mark.parametrize("training", [False, True])
def test_block_sparse_matches_big_bird(training: bool) -> None:
    from transformers import BigBirdConfig
    from transformers.models.big_bird.modeling_big_bird import BigBirdBlockSparseAttention, BigBirdModel

    config = BigBirdConfig(hidden_size=WIDTH, num_attention_heads=HEADS, block_size=4, num_random_blocks=2)
    module, (x, real) = randomise(BigBirdBlockSparseAttention(config, seed=0)), draw_inputs(64)
    blocks = random_blocks(0, 0, HEADS, 16, 2) if training else blocks_of_transformers_evaluation(HEADS, 16, 2)
    if training:  # use our random blocks in place of theirs
        module.train()
        module._bigbird_block_rand_mask_with_head = lambda **_: list(blocks)
    blocked, band, from_mask, to_mask = BigBirdModel.create_masks_for_block_sparse_attn(
        torch.from_numpy(real.astype(np.float32)), 4
    )
    (theirs,) = module(torch.from_numpy(x), band, from_mask, to_mask, blocked, blocked)[:1]

    @jax.jit
    def ours(q, k, v) -> jax.Array:
        return block_sparse_attention(q, k, v, jnp.asarray(real, jnp.int32), jnp.asarray(blocks), None, 0.0, block=4)

    assert_same(ours(*(project(module, name, x) for name in ("query", "key", "value"))), theirs, real)
