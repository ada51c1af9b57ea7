"""DeBERTa v3's embedding sharing: the model learns the difference between its word table and its generator's."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from exported_models import wordpiece
from numpy_deberta import Deberta
from pair_corpora import MemorySplit, Specials, random_documents
from small_training import Training

from bertjax.config import Config, DataConfig, ExecutionConfig, MeshConfig, ModelConfig, OptimizerConfig, TrainingConfig
from bertjax.convert.adapt import adapt
from bertjax.convert.foreign import ForeignModel
from bertjax.convert.huggingface.names import to_huggingface_tensors
from bertjax.families.networks import abstract_network
from bertjax.families.registry import FAMILIES, generator_config
from bertjax.input.batches import RowBatches
from bertjax.model.network import Params, bind
from bertjax.model.shared_tables import own_words, with_own_words
from bertjax.run.run_directory import extract_generator
from bertjax.training.objectives import choose
from bertjax.training.objectives.objective import Forward
from bertjax.training.objectives.registry import make_objectives
from bertjax.training.objectives.rtd import replaced
from bertjax.training.optimizer import clip_factors
from bertjax.training.step import averages, batch_weights, objective_sums

VOCABULARY = 60
MODEL = replace(
    FAMILIES["deberta-v3"].presets["base"],
    vocab_size=VOCABULARY,
    hidden_size=12,
    num_hidden_layers=4,
    num_attention_heads=3,
    intermediate_size=20,
    max_position_embeddings=24,
    relative_max=9,
    relative_buckets=6,
    mlm_decoder="enhanced",
    generator_width=1.0,
    generator_layers=2,
    embedding_sharing="gdes",
)
DATA = DataConfig(sequence_length=24, max_predictions=4, packing="pairs", keep_share=0.0, random_share=0.0)
NAMES, WEIGHTS = ("mlm", "rtd"), (1.0, 10.0)
OBJECTIVES = make_objectives(Config(training=TrainingConfig(objectives=NAMES, objective_weights=WEIGHTS)))
SPLIT = MemorySplit(random_documents(30, seed=3, sentences=5, tokens=6), vocab_size=VOCABULARY)


def draw_params(config: ModelConfig) -> Params:
    """Draw every parameter, the difference too; the rows that pad the vocabulary are 0."""
    draw = np.random.default_rng(1)
    _, shapes, axes = abstract_network(config)

    def fill(path: tuple, leaf: jax.ShapeDtypeStruct, names: tuple[str, ...]) -> np.ndarray:
        array = draw.normal(1.0 if path[-1].key == "scale" else 0.0, 0.3, leaf.shape).astype(np.float32)
        if "vocab" in names:
            array[config.vocab_size :] = 0
        return array

    return jax.tree_util.tree_map_with_path(fill, shapes, axes)


@pytest.fixture(scope="module")
def params() -> Params:
    return draw_params(MODEL)


@pytest.fixture(scope="module")
def batch() -> dict[str, jax.Array]:
    arrays = RowBatches(SPLIT, Specials(vocab_size=VOCABULARY), DATA, 5, objectives=NAMES).batch(0, 8)
    return jax.tree.map(jnp.asarray, arrays)


def make_forward(params: Params) -> Forward:
    model = bind(abstract_network(MODEL, ExecutionConfig(logits_chunk=16))[0], params)
    return Forward({"model": model, **model.companions()}, None, packed=True, trained=("model", "generator"))


def sequences(batch: dict[str, np.ndarray]) -> list[tuple[int, np.ndarray]]:
    """(row, mask of its tokens) for every sequence."""
    rows = enumerate(batch["sequence_ids"])
    return [(row, numbers == number) for row, numbers in rows for number in range(1, numbers.max() + 1)]


def test_figures_equal_numpy(params: Params, batch: dict[str, np.ndarray]) -> None:
    """An encoder, a decoder and a head written a second time in NumPy, on packed rows."""

    @jax.jit
    def compute(params: Params, values: dict[str, jax.Array]) -> tuple:
        forward = make_forward(params)
        sums = objective_sums(forward, values, None, OBJECTIVES)
        return *replaced(forward, values), averages(sums, batch_weights(values, OBJECTIVES), OBJECTIVES)

    ids, is_replaced, figures = jax.device_get(compute(params, batch))
    batch = jax.device_get(batch)
    assert batch["sequence_ids"].max() > 1 and is_replaced.sum() > 0
    generator, model = Deberta(*extract_generator(MODEL, params)), Deberta(MODEL, params)
    mlm_logits = np.zeros((*ids.shape, VOCABULARY))
    bce, real = [], batch["sequence_ids"] > 0
    for row, inside in sequences(batch):
        mlm_logits[row, inside] = generator.mlm_logits(batch["input_ids"][row, inside])
        z, y = model.rtd_logits(ids[row, inside]), is_replaced[row, inside]
        bce += [*np.where(y, np.log1p(np.exp(-z)), np.log1p(np.exp(z)))]
    rows, slots = np.nonzero(batch["mlm_weights"])
    logits, labels = mlm_logits[rows, batch["mlm_positions"][rows, slots]], batch["mlm_labels"][rows, slots]
    nll = np.log(np.exp(logits).sum(-1)) - logits[np.arange(len(labels)), labels]
    assert figures["mlm_loss"] == pytest.approx(nll.sum() / (len(labels) + 1e-5), rel=1e-5)
    assert figures["rtd_loss"] == pytest.approx(sum(bce) / (real.sum() + 1e-6), rel=1e-5)
    assert figures["loss"] == pytest.approx(figures["mlm_loss"] + 10 * figures["rtd_loss"], rel=1e-6)


@pytest.mark.long  # the suite has the figures of NumPy
def test_no_parameter_has_gradients_from_both_losses(params: Params, batch: dict[str, np.ndarray]) -> None:
    def moved(name: str) -> set[str]:
        (objective,) = choose((name,))

        def loss(params: Params) -> jax.Array:
            return objective.sums(make_forward(params), batch, None)["loss"]

        gradients = jax.tree_util.tree_leaves_with_path(jax.jit(jax.grad(loss))(params))
        return {jax.tree_util.keystr(path, simple=True, separator="/") for path, x in gradients if np.abs(x).max() > 0}

    by_mlm, by_rtd = moved("mlm"), moved("rtd")
    assert not by_mlm & by_rtd
    every = jax.tree_util.tree_leaves_with_path(params)
    names = {jax.tree_util.keystr(path, simple=True, separator="/") for path, _ in every}
    assert by_mlm == {name for name in names if name.startswith("generator/")} | {"encoder/embeddings/word"}
    assert by_rtd == names - by_mlm and "encoder/embeddings/word_difference" in by_rtd
    assert {"generator/mask_decoder/position", "generator/encoder/embeddings/norm/scale"} < by_mlm


def test_each_network_is_clipped_by_its_own_norm(params: Params) -> None:
    draw = np.random.default_rng(2)
    grads = jax.tree.map(lambda x: draw.normal(size=x.shape).astype(np.float32), params)
    grads["generator"] = jax.tree.map(lambda x: x * 1e-4, grads["generator"])
    grads["encoder"]["embeddings"]["word"] *= 1e-4
    word, own = grads["encoder"]["embeddings"]["word"], with_own_words(grads)
    own["encoder"]["embeddings"]["word"] = grads["encoder"]["embeddings"]["word_difference"]

    def norm(*trees) -> float:
        return float(np.sqrt(sum(np.square(x, dtype=np.float64).sum() for x in jax.tree.leaves(trees))))

    model_norm = norm({name: part for name, part in own.items() if name != "generator"})
    assert norm(grads["generator"], word) < 0.5 < model_norm
    factors = clip_factors(grads, jnp.float32(norm(grads)), 0.5)
    assert {float(x) for x in jax.tree.leaves(factors["generator"])} == {1.0}
    assert float(factors["encoder"]["embeddings"]["word"]) == 1.0
    for leaf in (factors["encoder"]["embeddings"]["word_difference"], factors["rtd_head"]["dense"]["kernel"]):
        assert float(leaf) == pytest.approx(0.5 / model_norm, rel=1e-5)
    alone = clip_factors(own, jnp.float32(norm(own)), 0.5)
    (whole,) = {float(x) for x in jax.tree.leaves(alone)}
    assert whole == pytest.approx(0.5 / norm(own), rel=1e-5)


def test_export_and_import_sum_both_word_tables(params: Params) -> None:
    table = own_words(params["encoder"]["embeddings"])
    tensors = to_huggingface_tensors(params, MODEL)
    np.testing.assert_array_equal(tensors["deberta.embeddings.word_embeddings.weight"], table[:VOCABULARY])
    assert not [name for name in tensors if "generator" in name or "mask_predictions" in name]
    tokenizer = wordpiece()
    apart = replace(MODEL, vocab_size=tokenizer.vocab_size)
    plain = replace(apart, embedding_sharing="tied", generator_width=0.0, generator_layers=0)

    def started(source: ModelConfig, values: Params, target: ModelConfig) -> Params:
        return adapt(ForeignModel("here", source, tokenizer, values, (), ()), target, tokenizer)[0]

    before = draw_params(apart)
    table = own_words(before["encoder"]["embeddings"])
    alone = started(apart, before, plain)
    np.testing.assert_array_equal(alone["encoder"]["embeddings"]["word"], table)
    assert "word_difference" not in alone["encoder"]["embeddings"]
    again = started(plain, alone, apart)
    assert jax.tree.map(np.shape, again) == jax.tree.map(np.shape, before)
    np.testing.assert_array_equal(own_words(again["encoder"]["embeddings"]), table)
    jax.tree.map(np.testing.assert_array_equal, started(apart, before, apart), before)


def test_longer_positions_lengthen_the_generators_tables() -> None:
    tokenizer = wordpiece()
    was = replace(MODEL, vocab_size=tokenizer.vocab_size)
    longer, before = replace(was, max_position_embeddings=2 * was.max_position_embeddings), draw_params(was)
    params, notes = adapt(ForeignModel("here", was, tokenizer, before, (), ()), longer, tokenizer)
    assert len(notes) == 1 and "repeated from the start" in notes[0]
    old = np.asarray(before["generator"]["mask_decoder"]["position"])
    np.testing.assert_array_equal(params["generator"]["mask_decoder"]["position"], np.concatenate([old, old]))


def test_generator_is_half_as_deep_and_shares_only_words(params: Params) -> None:
    config = generator_config(MODEL)
    assert (config.family, config.num_hidden_layers, config.hidden_size) == ("deberta-v2", 2, 12)
    assert config.mlm_decoder == "enhanced" and config.embedding_sharing == "tied"
    assert set(params["generator"]["encoder"]["embeddings"]) == {"norm"}
    _, alone = extract_generator(MODEL, params)
    assert jax.tree.map(np.shape, alone) == jax.tree.map(np.shape, abstract_network(config)[1])


@pytest.mark.long  # the suite has tied tables
def test_step_is_equal_on_a_mesh_and_in_microbatches() -> None:
    batches = RowBatches(SPLIT, Specials(vocab_size=VOCABULARY), DATA, 5, objectives=NAMES)
    heads = replace(MODEL, hidden_size=16, num_attention_heads=4, num_hidden_layers=2, generator_layers=1)
    settings = {"dropout_seed": 3, "objectives": OBJECTIVES, "packed": True}
    optimizer = OptimizerConfig(learning_rate=5e-3, warmup_steps=2)
    alone = Training(MeshConfig(1, 1, 1), heads, optimizer, **settings)
    shared = Training(MeshConfig(2, 2, 2), heads, optimizer, accumulate=2, **settings)
    single, split = ([run.step(batches.batch(n, 16)) for n in range(3)] for run in (alone, shared))
    for name in ("loss", "mlm_loss", "rtd_loss", "rtd_replaced", "grad_norm"):
        np.testing.assert_allclose([step[name] for step in split], [step[name] for step in single], rtol=1e-5)
