"""Layer decay scales the updates of each part of a network."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
from small_tasks import small_start
from their_families import SMALL, small

from bertjax.config import ModelConfig
from bertjax.families.networks import init_params
from bertjax.finetune.job import scale_by_depth
from bertjax.finetune.kinds.sequence import SEQUENCE
from bertjax.finetune.kinds.tokens import TOKENS


def scale_ones(model, decay: float) -> dict:
    """Scale updates of 1."""
    shapes = jax.eval_shape(lambda: init_params(model, jax.random.key(0)))
    ones = jax.tree.map(lambda leaf: np.ones(leaf.shape, np.float32), shapes)
    rule = scale_by_depth(model, decay)
    return rule.update(ones, rule.init(ones))[0]


def test_layer_decay_scales_each_layer(tmp_path: Path) -> None:
    model = SEQUENCE.headed(small_start(tmp_path).model, 3)
    updates = scale_ones(model, 0.5)
    layers = updates["encoder"]["layers"]["mlp"]["output"]["kernel"]
    np.testing.assert_allclose(layers[0], 0.25)
    np.testing.assert_allclose(layers[1], 0.5)
    assert all((np.asarray(leaf) == 0.125).all() for leaf in jax.tree.leaves(updates["encoder"]["embeddings"]))
    for part in ("pooler", "head"):
        assert all((np.asarray(leaf) == 1).all() for leaf in jax.tree.leaves(updates[part]))
    assert all((np.asarray(leaf) == 1).all() for leaf in jax.tree.leaves(scale_ones(model, 1.0)))


def test_layer_group_has_the_decay_of_its_last_layer() -> None:
    shared = ModelConfig(
        vocab_size=20, hidden_size=8, num_hidden_layers=6, layer_groups=2, num_attention_heads=2, intermediate_size=8
    )  # fmt: skip
    kernel = scale_ones(shared, 0.5)["encoder"]["layers"]["mlp"]["output"]["kernel"]
    assert kernel.shape == (2, 8, 8)
    np.testing.assert_allclose(kernel[0], 0.5**4)
    np.testing.assert_allclose(kernel[1], 0.5)


def test_separate_first_layer_counts_as_a_layer() -> None:
    """In ModernBERT the head follows the final norm, and the first layer is not in the stack."""
    model = replace(TOKENS.headed(small("modernbert", num_hidden_layers=3), 2), window=0, global_every=1)
    updates = scale_ones(model, 0.5)
    encoder = updates["encoder"]
    for part, power in (("final_norm", 1), ("first_layer", 3), ("embeddings", 4)):
        assert all((np.asarray(leaf) == 0.5**power).all() for leaf in jax.tree.leaves(encoder[part])), part
    for leaf in jax.tree.leaves(encoder["layers"]):
        np.testing.assert_allclose(leaf[0], 0.25)
        np.testing.assert_allclose(leaf[1], 0.5)
    assert all((np.asarray(leaf) == 1).all() for leaf in jax.tree.leaves([updates["pooler"], updates["head"]]))
    frozen = replace(model, features=(-2, -1))
    assert set(scale_ones(frozen, 1.0)) == {"encoder", "head"}


def test_convolutional_first_layer_counts_as_a_layer() -> None:
    """In DeBERTa v2 the first layer has a convolution and is not in the stack."""
    model = replace(SMALL["deberta-v2 with a convolution"], num_hidden_layers=3)
    encoder, depth = scale_ones(TOKENS.headed(model, 2), 0.5)["encoder"], 3
    assert all((np.asarray(leaf) == 0.5**depth).all() for leaf in jax.tree.leaves(encoder["first_layer"]))
    for leaf in jax.tree.leaves(encoder["layers"]):
        for number, part in enumerate(leaf, 1):
            np.testing.assert_allclose(part, 0.5 ** (depth - number))


def test_frozen_encoder_gets_zero_updates(tmp_path: Path) -> None:
    model = TOKENS.headed(replace(small_start(tmp_path).model, features=(-2, -1), lstm_size=8), 3)
    updates = scale_ones(model, 1.0)
    assert all((np.asarray(leaf) == 0).all() for leaf in jax.tree.leaves(updates["encoder"]))
    assert all((np.asarray(leaf) == 1).all() for leaf in jax.tree.leaves(updates["head"]))
