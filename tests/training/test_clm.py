"""Next-token prediction in a separate stage: arrays and loss against NumPy, and a run that ends with masking."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import jax
import numpy as np
import pytest
from generated_corpus import write_corpus
from numpy_encoder import Reference
from pair_corpora import MemorySplit, Specials, random_documents
from tiny_runs import SIX_STEPS, write_recipe

import bertjax
from bertjax.config import Config, DataConfig, ModelConfig, StageConfig, TrainingConfig
from bertjax.families.networks import abstract_network, init_params
from bertjax.input.batches import RowBatches
from bertjax.model.network import bind
from bertjax.run.averaging import average
from bertjax.run.checks import preflight
from bertjax.run.run_directory import load_run
from bertjax.run.telemetry import curves, read_metrics
from bertjax.training.objectives import Forward, choose
from bertjax.training.stages import as_of_stage, make_stages

pytestmark = pytest.mark.usefixtures("one_device")

MODEL = ModelConfig(
    vocab_size=400, hidden_size=12, num_hidden_layers=2, num_attention_heads=3, intermediate_size=20,
    max_position_embeddings=32, causal=True, initializer_range=0.2,
)  # fmt: skip
DATA = DataConfig(sequence_length=32, rows="doc_sentences", packing="pairs", pairs_per_row=4, predict="next")


@pytest.fixture(scope="module")
def batch() -> dict[str, np.ndarray]:
    split = MemorySplit(random_documents(60, seed=1, sentences=4, tokens=6), vocab_size=400)
    return RowBatches(split, Specials(vocab_size=400), DATA, 0, objectives=("clm",)).batch(1, 8)


def next_tokens(batch: dict[str, np.ndarray]) -> dict[tuple[int, int], int]:
    """Map (row, position) to the next token of the same sequence, one by one."""
    ids, sequences = batch["input_ids"], batch["sequence_ids"]
    rows, length = ids.shape
    return {
        (row, place): int(ids[row, place + 1])
        for row in range(rows)
        for place in range(length - 1)
        if sequences[row, place] and sequences[row, place] == sequences[row, place + 1]
    }


def test_clm_labels_are_the_next_tokens(batch: dict[str, np.ndarray]) -> None:
    used = np.argwhere(batch["clm_weights"] > 0)
    actual = {
        (int(row), int(batch["clm_positions"][row, slot])): int(batch["clm_labels"][row, slot]) for row, slot in used
    }
    assert batch["sequence_ids"].max() > 1, "packed"
    assert actual == next_tokens(batch) and len(used) == len(actual) > 100
    assert set(batch) == {"input_ids", "token_type_ids", "sequence_ids", "clm_positions", "clm_labels", "clm_weights"}


def test_clm_loss_equals_numpy(batch: dict[str, np.ndarray]) -> None:
    """Each sequence alone, in float64, with causal attention."""
    params = jax.jit(init_params, static_argnums=0)(MODEL, jax.random.key(0))
    (clm,) = choose(("clm",))
    network = bind(abstract_network(MODEL)[0], params)
    sums = jax.jit(lambda batch: clm.sums(Forward({"model": network}, None, packed=True), batch, None))(batch)

    reference, loss, hits, expected = Reference(MODEL, params), 0.0, 0, next_tokens(batch)
    for row, ids in enumerate(batch["input_ids"]):
        for number in range(1, batch["sequence_ids"][row].max() + 1):
            (places,) = np.nonzero(batch["sequence_ids"][row] == number)
            _, logits = reference(ids[places], batch["token_type_ids"][row][places])
            for place, scores in zip(places[:-1], logits, strict=False):
                label = expected[row, int(place)]
                loss += np.log(np.exp(scores - scores.max()).sum()) + scores.max() - scores[label]
                hits += scores.argmax() == label
    assert float(sums["loss"]) == pytest.approx(loss, rel=1e-5)
    assert int(sums["accuracy"]) == hits


def test_stage_objectives_decide_causality() -> None:
    config = Config(
        data=DataConfig(sequence_length=32),
        training=TrainingConfig(steps=900_000, objectives=("clm",)),
        stages=(StageConfig(start=500_000, objectives=("mlm", "nsp")), StageConfig(start=600_000, max_predictions=4)),
    )
    stages = make_stages(config)
    assert [stage.training.objectives for stage in stages] == [("clm",), ("mlm", "nsp"), ("mlm", "nsp")]
    assert [stage.model.causal for stage in stages] == [True, False, False]
    assert [stage.data.predict for stage in stages] == ["next", "masked", "masked"]
    assert preflight(config) == config
    for step, causal in ((500_000, True), (500_001, False)):
        at = as_of_stage(config, step)
        assert at.model.causal is causal and make_stages(at)[-1].training.objectives == ("mlm", "nsp")
    mixed = replace(config, training=replace(config.training, objectives=("clm", "nsp")))
    with pytest.raises(ValueError, match=r"training\.objectives=\('clm', 'nsp'\): clm reads from left to right"):
        make_stages(mixed)
    later = replace(config, stages=(StageConfig(start=500_000, objectives=("mlm", "clm")),))
    with pytest.raises(ValueError, match=r"stages\.0\.objectives=\('mlm', 'clm'\): clm reads from left to right"):
        make_stages(later)


@pytest.mark.long  # a separate run; the suite has the loss
@pytest.mark.run
def test_run_begins_causal_and_ends_masked(tmp_path: Path) -> None:
    corpus = write_corpus(tmp_path / "corpus.txt", 60)
    keys = SIX_STEPS | {"data.sources": (f"lines:{corpus}",), "data.root": str(tmp_path / "data")}
    keys |= {"training.objectives": ("clm",), "training.checkpoint_every": 3, "run_dir": str(tmp_path / "run")}
    config = bertjax.recipe(write_recipe(tmp_path), keys)
    result = bertjax.pretrain(replace(config, stages=(StageConfig(start=3, objectives=("mlm", "nsp")),)))
    logs = curves(read_metrics(tmp_path / "run" / "metrics.jsonl"))
    assert logs["eval/clm_loss"][0] == [3] and logs["eval/mlm_loss"][0] == [6]
    assert max(logs["train/clm_loss"][0]) == 3 < min(logs["train/mlm_loss"][0])
    assert logs["baseline/next_unigram_loss"][1][0] > logs["eval/clm_loss"][1][0] - 5 > 0
    assert result.figures.keys() >= {"eval/mlm_loss", "eval/nsp_accuracy"}
    first, last = (load_run(tmp_path / "run" / "checkpoints" / str(step)) for step in (3, 6))
    assert (first.config.model.causal, last.config.model.causal) == (True, False)
    assert "nsp_head" in first.untrained and not last.untrained
    assert bertjax.evaluate(tmp_path / "run/checkpoints/3").figures["eval/clm_loss"] == pytest.approx(
        logs["eval/clm_loss"][1][0], rel=1e-5
    )
    assert bertjax.load(tmp_path / "run").fill_mask("the [MASK] .")
    with pytest.raises(ValueError, match="were trained with causal=True and False"):
        average(tmp_path / "run", 2)
