"""The memory of a whole train step is linear in the length of rows, not quadratic."""

from dataclasses import replace

import jax
import pytest

from bertjax.config import DataConfig, MeshConfig, TrainingConfig, load_recipe
from bertjax.model.attention import backends
from bertjax.parallel.mesh import make_mesh
from bertjax.plan.compiling import compile_stage
from bertjax.training.stages import make_stages

LENGTHS = (4_096, 8_192)
# Many narrow heads, so that scores outweigh everything else in a step that stores them.
NARROW = {"vocab_size": 512, "hidden_size": 64, "num_attention_heads": 8, "intermediate_size": 64}


def activations(recipe: str, length: int) -> int:
    """Bytes that the step of one row needs besides its state and batch, by the compiler."""
    base = load_recipe(recipe)
    model = replace(base.model, **NARROW, num_hidden_layers=4, max_position_embeddings=length + 2)
    config = replace(
        base,
        model=model,
        execution=replace(base.execution, dtype="float32"),
        data=DataConfig(vocab_size=model.vocab_size, sequence_length=length, max_predictions=length // 8),
        training=TrainingConfig(global_batch_size=1, grad_accum_steps=1, objectives=("mlm",)),
        stages=(),
    )
    (stage,) = make_stages(config)
    return compile_stage(config, stage, make_mesh(MeshConfig(1, 1, 1), jax.devices()[:1]), "cpu").memory.temporaries


def growth(recipe: str) -> float:
    """The factor by which activations grow when the length doubles."""
    short, long = (activations(recipe, length) for length in LENGTHS)
    return long / short


pytestmark = pytest.mark.long  # tests/model measures each kind of attention alone


@pytest.mark.parametrize(
    "recipe", ["modernbert", "bigbird", "bert_base", "longformer", "mosaicbert", "neobert", "deberta"]
)
def test_step_memory_is_linear_in_the_length(recipe):
    assert growth(recipe) < 2.1


def test_whole_row_scores_are_quadratic_in_the_length(monkeypatch):
    monkeypatch.setattr(backends, "WHOLE_ROWS", max(LENGTHS))
    assert growth("bert_base") > 3, "this test would not notice quadratic growth"
