"""The figures of an epoch do not depend on packing: objectives with a teacher, and MacBERT."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
import test_similar_words as similar
from pair_corpora import MemorySplit, Specials, random_documents

from bertjax.config import DataConfig, ModelConfig, load_recipe
from bertjax.families.networks import abstract_network, init_params
from bertjax.input.batches import RowBatches
from bertjax.model.network import bind
from bertjax.training.objectives import TEACHER, Forward, choose
from bertjax.training.step import averages, batch_weights, objective_sums

# The suite has BERT's figures, in tests/model/test_network.py, and the packing of each objective's targets.
pytestmark = pytest.mark.long

LENGTH = 48
SMALL = ModelConfig(
    vocab_size=similar.SIZE,
    hidden_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=32,
    max_position_embeddings=LENGTH,
    initializer_range=0.2,
)
TAUGHT = ("mlm", "distil_mlm", "distil_cosine", "distil_layers")
PADDED = DataConfig(sequence_length=LENGTH, max_predictions=8, short_sequence_probability=0.5)


def epoch_figures(models: dict[str, ModelConfig], batches: RowBatches, objectives: tuple[str, ...]) -> dict[str, float]:
    """The figures of a whole epoch as one batch."""
    networks = {
        name: (abstract_network(config)[0], jax.jit(init_params, static_argnums=0)(config, jax.random.key(seed)))
        for seed, (name, config) in enumerate(models.items())
    }
    batch, chosen = batches.rows(np.arange(batches.rows_per_epoch)), choose(objectives)

    def compute(batch: dict) -> dict:
        forward = Forward({name: bind(*network) for name, network in networks.items()}, None, packed=True)
        weights = batch_weights(batch, chosen)
        return averages(objective_sums(forward, batch, None, chosen), weights, chosen) | weights

    return {name: float(value) for name, value in jax.jit(compute)(batch).items()} | {"rows": len(batch["input_ids"])}


def require_equal(single: dict[str, float], packed: dict[str, float]) -> None:
    assert packed.pop("rows") < 0.9 * single.pop("rows"), "rows are shared"
    assert min(single.values()) > 0
    assert packed == pytest.approx(single, rel=1e-5)


def test_student_losses_do_not_depend_on_packing() -> None:
    """All objectives with a teacher, and MLM."""
    models = {"model": replace(SMALL, teacher_width=16), TEACHER: replace(SMALL, num_hidden_layers=4)}
    split = MemorySplit(random_documents(30, seed=3, sentences=6, tokens=8), vocab_size=similar.SIZE)

    def of(packing: str) -> dict[str, float]:
        data = replace(PADDED, packing=packing)
        batches = RowBatches(split, Specials(vocab_size=similar.SIZE), data, 5, objectives=TAUGHT)
        return epoch_figures(models, batches, TAUGHT)

    require_equal(of("none"), of("pairs"))


def test_macbert_losses_do_not_depend_on_packing(tmp_path: Path) -> None:
    """Similar words instead of [MASK], n-grams, and sentence order."""
    table = similar.write_table(tmp_path / "similar.tsv", similar.SIMILAR)
    recipe = replace(load_recipe("configs/macbert.py").data, sources=(), segmenter="none", similar_words=table)
    sizes = {name: getattr(PADDED, name) for name in ("sequence_length", "max_predictions")}
    split = MemorySplit(random_documents(30, seed=3, sentences=6, tokens=8), vocab_size=similar.SIZE)

    def of(packing: str) -> dict[str, float]:
        data = replace(recipe, packing=packing, short_sequence_probability=0.5, **sizes)
        batches = RowBatches(split, similar.WORDPIECE, data, 5, objectives=("mlm", "sop"))
        return epoch_figures({"model": replace(SMALL, family="macbert")}, batches, ("mlm", "sop"))

    require_equal(of("none"), of("pairs"))
