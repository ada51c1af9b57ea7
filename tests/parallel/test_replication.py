"""Parameters that are replicated on every device are found and named."""

from __future__ import annotations

import pytest

from bertjax.config import MeshConfig, ModelConfig, OptimizerConfig
from bertjax.parallel import sharding
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import Replicated, replicated
from bertjax.training.optimizer import make_optimizer
from bertjax.training.state import draw_blueprint

MODEL = ModelConfig(hidden_size=128, num_hidden_layers=2, num_attention_heads=4, intermediate_size=512)


def replicated_on(config: MeshConfig) -> Replicated:
    mesh = make_mesh(config)
    return replicated(draw_blueprint(MODEL, make_optimizer(OptimizerConfig()), mesh).state.params, mesh)


def test_replicated_ignores_copies_along_data() -> None:
    assert replicated_on(MeshConfig(8)) == Replicated(0.0, ())


@pytest.mark.parametrize("mesh", [MeshConfig(1, 8), MeshConfig(2, 2, 2)])
def test_rules_replicate_only_vectors(mesh: MeshConfig) -> None:
    assert not replicated_on(mesh).is_much


def test_replicated_names_unsharded_arrays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sharding.RULES, "vocab", None)
    monkeypatch.setitem(sharding.RULES, "embed", None)
    actual = replicated_on(MeshConfig(1, 8))
    assert actual.is_much
    assert actual.largest[0][0] == "encoder.embeddings.word"
    assert "encoder.embeddings.word (15.7 MB)" in str(actual)


def test_replicated_counts_arrays_split_by_one_of_two_axes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sharding.RULES, "embed", None)
    actual = replicated_on(MeshConfig(1, 4, 2))
    assert actual.is_much
    assert actual.largest[0][0] == "encoder.embeddings.word"  # split over tensor, and four times there
