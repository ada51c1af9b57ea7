"""Global tokens and random blocks in a step: the same losses on every mesh, and every parameter is trained."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import jax
import numpy as np
import pytest
from small_training import Training
from test_step import IN_CHUNKS, MODEL, OPTIMIZER, batches

from bertjax.config import MeshConfig, ModelConfig
from bertjax.training.objectives import choose

STEPS = 4
ROBERTA = replace(MODEL, num_attention_heads=2, type_vocab_size=1, pooler="none", window=3, global_every=0)
MEMBERS: dict[str, ModelConfig] = {
    "marked": replace(ROBERTA, family="longformer", global_tokens="marked", global_projections=True),
    "first": replace(ROBERTA, family="longformer", global_tokens="first", global_projections=True),
    "shared": replace(ROBERTA, family="longformer", global_tokens="first"),
    "blocks": replace(MODEL, family="bigbird", attention_block=2, random_blocks=2, embedding_norm="dropout_norm"),
}


def member_batches(name: str) -> Iterator[dict[str, np.ndarray]]:
    """Yield random batches, for a model with marked global tokens with up to three in each row."""
    draw = np.random.default_rng(5)
    for batch in batches(STEPS):
        batch["token_type_ids"] = batch["token_type_ids"].clip(max=MEMBERS[name].type_vocab_size - 1)
        if MEMBERS[name].global_tokens == "marked":
            places = np.sort(draw.choice(9, (len(batch["input_ids"]), 3)), axis=1).astype(np.int32)
            batch["global_positions"] = places  # a repeated position is an unused slot
        yield batch


def member_training(name: str, mesh: MeshConfig, **settings) -> Training:
    return Training(mesh, MEMBERS[name], OPTIMIZER, execution=IN_CHUNKS, objectives=choose(("mlm",)), **settings)


@pytest.mark.long  # the suite has the formula of each in tests/model, and other options on all axes
@pytest.mark.parametrize("name", MEMBERS)
def test_losses_do_not_depend_on_the_mesh(name: str) -> None:
    single = member_training(name, MeshConfig(1, 1, 1), dropout_seed=3)
    before = jax.device_get(single.state.params)
    losses = single.losses(member_batches(name))
    split = member_training(name, MeshConfig(2, 2, 2), dropout_seed=3, accumulate=2)
    np.testing.assert_allclose(split.losses(member_batches(name)), losses, rtol=1e-5)
    moved = jax.tree.map(lambda was, now: bool(np.any(was != now)), before["encoder"], single.state.params["encoder"])
    assert all(jax.tree.leaves(moved)), moved


def test_first_token_global_is_refused_in_packed_rows() -> None:
    training = member_training("first", MeshConfig(1, 1, 1), packed=True)
    with pytest.raises(ValueError, match="global_tokens='first' in packed rows: the starts of"):
        training.step(next(member_batches("first")))
