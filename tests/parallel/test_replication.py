"""Too much that lies whole on every device is named."""

from __future__ import annotations

import jax
import pytest

from bertjax.config import MeshConfig, ModelConfig, OptimizerConfig
from bertjax.families.networks import abstract_network
from bertjax.parallel import sharding
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import RULES, Replicated, is_names, replicated
from bertjax.training.optimizer import make_optimizer
from bertjax.training.state import draw_blueprint

MODEL = ModelConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512)


def looked_at(mesh: MeshConfig) -> Replicated:
    made = make_mesh(mesh)
    return replicated(draw_blueprint(MODEL, make_optimizer(OptimizerConfig()), made).state.params, made)


def test_nothing_is_said_where_weights_are_meant_to_be_whole() -> None:
    assert looked_at(MeshConfig(8)) == Replicated(0.0, ())


@pytest.mark.parametrize("mesh", [MeshConfig(1, 8), MeshConfig(2, 2, 2)])
def test_the_rules_leave_only_vectors_whole(mesh: MeshConfig) -> None:
    assert not looked_at(mesh).is_much


def test_what_the_rules_lose_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sharding.RULES, "vocab", None)
    monkeypatch.setitem(sharding.RULES, "embed", None)
    found = looked_at(MeshConfig(1, 8))
    assert found.is_much
    assert found.largest[0][0] == "encoder.embeddings.word"
    assert "encoder.embeddings.word (15.7 MB)" in str(found)


def test_what_one_of_two_axes_splits_has_copies_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sharding.RULES, "embed", None)
    found = looked_at(MeshConfig(1, 4, 2))
    assert found.is_much
    assert found.largest[0][0] == "encoder.embeddings.word"  # split over tensor, and four times there


def test_every_parameter_dim_has_a_name_in_the_rules() -> None:
    _, shapes, axes = abstract_network(MODEL)
    names = jax.tree.leaves(axes, is_leaf=is_names)
    for leaf, logical in zip(jax.tree.leaves(shapes), names, strict=True):
        assert len(logical) == leaf.ndim, logical
        assert set(logical) <= set(RULES)
