"""ELECTRA's objective: the generator's samples, the discriminator's loss, and what they must not depend on."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pair_corpora import MemorySplit, Specials, random_documents
from scipy import stats
from small_training import draw_params

from bertjax.config import Config, DataConfig, ExecutionConfig, MeshConfig, ModelConfig, TrainingConfig
from bertjax.families.networks import abstract_network
from bertjax.families.registry import generator_config
from bertjax.input.batches import RowBatches, batch_spec
from bertjax.model.family_heads import sampled_tokens
from bertjax.model.network import bind
from bertjax.run.checks import preflight
from bertjax.run.run_directory import extract_generator
from bertjax.training.objectives import choose
from bertjax.training.objectives.objective import Forward
from bertjax.training.objectives.rtd import replaced
from bertjax.training.step import averages, batch_weights, objective_sums

pytestmark = pytest.mark.run

MODEL = ModelConfig(
    family="electra",
    vocab_size=300,
    hidden_size=32,
    embedding_size=24,
    num_hidden_layers=2,
    num_attention_heads=4,
    intermediate_size=64,
    max_position_embeddings=48,
    pooler="gelu",
    generator_width=0.5,
    initializer_range=0.1,
)
IN_CHUNKS = ExecutionConfig(logits_chunk=16)
DATA = DataConfig(sequence_length=48, max_predictions=8, keep_share=0.15, random_share=0.0)
SPECIALS = Specials(vocab_size=300)
FEW = 24  # all ids of the text are below it, and the generator prefers these, so that it is often right by chance
SPLIT = MemorySplit(random_documents(80, seed=3, sentences=6, tokens=8), vocab_size=FEW)
NAMES = ("mlm", "rtd")
OBJECTIVES = choose(NAMES)


def make_batches(packing: str = "none") -> RowBatches:
    return RowBatches(SPLIT, SPECIALS, replace(DATA, packing=packing), 5, objectives=NAMES)


@pytest.fixture(scope="module")
def network() -> tuple:
    """Every parameter random: with zero biases, a test would not notice if two vectors were exchanged."""
    graphdef, _, _ = abstract_network(MODEL, IN_CHUNKS)
    params = jax.tree.map(jnp.asarray, draw_params(MODEL, noise=0.1))
    params["generator"]["mlm_head"]["bias"] += jnp.where(jnp.arange(384) < FEW, 4.0, 0.0)
    return graphdef, params


def make_forward(network: tuple, params=None, packed: bool = True) -> Forward:
    model = bind(network[0], network[1] if params is None else params)
    return Forward({"model": model, **model.companions()}, None, packed=packed, trained=("model", "generator"))


@pytest.fixture(scope="module")
def run_objectives(network: tuple):
    """(batch) -> (ids with samples, mask of replaced ids, all figures of both objectives)."""

    @jax.jit
    def compute(batch):
        forward = make_forward(network)
        sums = objective_sums(forward, batch, None, OBJECTIVES)
        return *replaced(forward, batch), averages(sums, batch_weights(batch, OBJECTIVES), OBJECTIVES)

    return lambda batch: jax.device_get(compute(batch))


def test_samples_follow_the_distribution_of_the_logits() -> None:
    vocabulary, width, count = 40, 8, 20_000
    draw = np.random.default_rng(0)
    table = np.pad(draw.normal(size=(vocabulary, width)), [(0, 24), (0, 0)]).astype(np.float32)
    bias = draw.normal(0, 2, len(table)).astype(np.float32)
    hidden = draw.normal(size=(2, width)).astype(np.float32)
    logits = hidden.astype(np.float64) @ table[:vocabulary].T + bias[:vocabulary]
    shares = np.exp(logits - logits.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    sample = jax.jit(partial(sampled_tokens, vocab_size=vocabulary, chunk=1_000))
    for kind, draws in (("successive", np.arange(2 * count)), ("random", draw.integers(0, 2**32, 2 * count))):
        draws = draws.astype(np.uint32)[None]
        samples = np.asarray(sample(np.repeat(hidden, count, axis=0)[None], table, bias, draws))[0]
        for tokens, share in zip(samples.reshape(2, count), shares, strict=True):
            counts = np.bincount(tokens, minlength=vocabulary)
            assert len(counts) == vocabulary, "no token of the padding"
            often = share * count > 5
            rest = counts[~often].sum(), share[~often].sum() * count
            seen, expected = np.append(counts[often], rest[0]), np.append(share[often] * count, rest[1])
            assert stats.chisquare(seen, expected * seen.sum() / expected.sum()).pvalue > 1e-3, kind
        # Neighbours are independent: they are equal as often as two independent draws.
        equal = np.mean(samples[: count - 1] == samples[1:count])
        assert abs(equal - (shares[0] ** 2).sum()) < 4.5 * (0.25 / count) ** 0.5


def test_chunks_change_no_sample() -> None:
    draw = np.random.default_rng(2)
    inputs = (draw.normal(size=(5, 10, 8)), draw.normal(size=(64, 8)), draw.normal(size=64))
    inputs = (*(x.astype(np.float32) for x in inputs), draw.integers(0, 2**32, (5, 10), dtype=np.uint32))
    samples = [np.asarray(sampled_tokens(*inputs, vocab_size=60, chunk=chunk)) for chunk in (1, 7, 50, 1000)]
    assert all((one == samples[0]).all() for one in samples)


@pytest.mark.parametrize("packing", ["none", "pairs"])
def test_only_predictions_get_samples(run_objectives, packing: str) -> None:
    batch = make_batches(packing).batch(0, 16)
    ids, is_replaced, figures = run_objectives(batch)
    chosen = np.zeros(ids.shape, bool)
    original = batch["input_ids"].copy()
    for row, slot in zip(*np.nonzero(batch["mlm_weights"]), strict=True):
        chosen[row, batch["mlm_positions"][row, slot]] = True
        original[row, batch["mlm_positions"][row, slot]] = batch["mlm_labels"][row, slot]
    assert (ids[~chosen] == batch["input_ids"][~chosen]).all()
    assert (is_replaced == (ids != original)).all(), "a sample that is the original token counts as original"
    assert 0 < is_replaced.sum() < chosen.sum(), "some samples are right"
    assert not (ids[chosen] == SPECIALS.mask_id).all()
    total = batch["rtd_weights"].sum()
    assert total == (batch["sequence_ids"] > 0).sum(), "all real tokens, [CLS] and [SEP] too"
    assert figures["rtd_replaced"] == pytest.approx(is_replaced.sum() / total, rel=1e-6)


def test_rtd_figures_equal_their_formulas(network: tuple, run_objectives) -> None:
    batch = make_batches().batch(1, 16)
    ids, is_replaced, figures = run_objectives(batch)
    model = bind(*network)
    logits = jax.jit(lambda *inputs: model.rtd_logits(model.encode(*inputs)))(
        ids, batch["token_type_ids"], batch["sequence_ids"]
    )
    z, real = np.asarray(logits, np.float64)[..., 0], batch["sequence_ids"] > 0
    nll = np.where(is_replaced, np.log1p(np.exp(-z)), np.log1p(np.exp(z)))
    called = z > 0
    assert figures["rtd_loss"] == pytest.approx((nll * real).sum() / (real.sum() + 1e-6), rel=1e-6)
    assert figures["rtd_accuracy"] == pytest.approx((called == is_replaced)[real].mean(), rel=1e-6)
    right = (called & is_replaced & real).sum()
    assert figures["rtd_precision"] == pytest.approx(right / (called & real).sum(), rel=1e-6)
    assert figures["rtd_recall"] == pytest.approx(right / is_replaced.sum(), rel=1e-6)
    assert figures["loss"] == pytest.approx(figures["mlm_loss"] + 50 * figures["rtd_loss"], rel=1e-6)
    config, params = extract_generator(MODEL, network[1])
    generator = bind(abstract_network(config)[0], params)
    encoder = (batch[key] for key in ("input_ids", "token_type_ids", "sequence_ids"))
    predictions = (batch[f"mlm_{key}"] for key in ("positions", "labels", "weights"))
    sums = jax.jit(generator.mlm_sums)(jax.jit(generator.encode)(*encoder), *predictions)
    assert figures["mlm_loss"] == pytest.approx(float(sums.loss) / (batch["mlm_weights"].sum() + 1e-5), rel=1e-6)


def test_gradients_stop_at_the_samples(network: tuple) -> None:
    """Each network's loss changes its own parameters and the shared tables, and nothing else."""
    batch = jax.tree.map(jnp.asarray, make_batches().batch(0, 8))

    def gradient(name: str):
        (objective,) = choose((name,))

        def loss(params):
            return objective.sums(make_forward(network, params), batch, None)["loss"]

        gradients = jax.device_get(jax.jit(jax.grad(loss))(network[1]))
        return {
            "tables": gradients["encoder"]["embeddings"]["word"],
            "projection": gradients["encoder"]["embeddings"]["projection"]["kernel"],
            "discriminator": gradients["encoder"]["layers"]["mlp"]["output"]["kernel"],
            "head": gradients["rtd_head"]["dense"]["kernel"],
            "generator": gradients["generator"]["encoder"]["layers"]["mlp"]["output"]["kernel"],
            "its projection": gradients["generator"]["encoder"]["embeddings"]["projection"]["kernel"],
            "its head": gradients["generator"]["mlm_head"]["transform"]["kernel"],
        }

    moved = {name: {part: bool(np.abs(x).max() > 0) for part, x in gradient(name).items()} for name in NAMES}
    assert {part for part, is_moved in moved["rtd"].items() if is_moved} == {
        *("tables", "projection", "discriminator", "head")
    }
    assert {part for part, is_moved in moved["mlm"].items() if is_moved} == {
        *("tables", "generator", "its projection", "its head")
    }


def by_sequence(batch: dict[str, np.ndarray], ids: np.ndarray) -> list[tuple]:
    """The tokens of every sequence before and after sampling, sorted."""
    sequences = []
    for row, numbers in enumerate(batch["sequence_ids"]):
        for number in range(1, numbers.max() + 1):
            inside = numbers == number
            sequences.append((tuple(batch["input_ids"][row, inside].tolist()), tuple(ids[row, inside].tolist())))
    return sorted(sequences)


def test_packing_changes_no_sample(run_objectives) -> None:
    sides = []
    for packing in ("none", "pairs"):
        batches = make_batches(packing)
        batch = batches.rows(np.arange(batches.rows_per_epoch))
        sides.append(by_sequence(batch, run_objectives(batch)[0]))
    assert sides[0] == sides[1]
    assert sum(before != after for before, after in sides[0]) > 50


def test_samples_depend_on_sequence_epoch_and_seed() -> None:
    batches = make_batches()
    rows = batches.rows_per_epoch
    batch = batches.rows(np.arange(rows))
    part = batches.rows(np.array([7, 3]))
    assert (part["rtd_draws"] == batch["rtd_draws"][[7, 3]]).all(), "draws depend on other rows of the batch"
    used = batch["mlm_weights"] > 0
    assert batch["rtd_draws"].dtype == np.uint32 and not batch["rtd_draws"][~used].any()
    draws = batch["rtd_draws"][used]
    assert len(np.unique(draws)) > 0.99 * len(draws)
    assert stats.kstest(draws / 2.0**32, "uniform").pvalue > 1e-3
    other = RowBatches(SPLIT, SPECIALS, DATA, 6, objectives=NAMES).rows(np.arange(rows))
    later = batches.rows(np.arange(rows, 2 * rows))
    for another in (other, later):
        assert not np.isin(another["rtd_draws"][another["mlm_weights"] > 0], draws).mean() > 0.01


def test_generator_and_discriminator_have_separate_dropout(network: tuple) -> None:
    batch, model = make_batches().batch(0, 4), bind(*network)
    keys = jnp.arange(4, dtype=jnp.uint32)
    names = ("model", "generator")

    @jax.jit
    def encoded(batch: dict) -> tuple[dict, dict, jax.Array]:
        whole = Forward({"model": model, **model.companions()}, keys, packed=True, trained=names)
        dry = make_forward(network)
        inputs = (batch[key] for key in ("input_ids", "token_type_ids", "sequence_ids"))
        with_model_keys = model.generator.encode(*inputs, keys)
        return {n: whole(batch, n) for n in names}, {n: dry(batch, n) for n in names}, with_model_keys

    whole, dry, with_model_keys = encoded(batch)
    for name in names:
        assert np.abs(whole[name] - dry[name]).max() > 1e-3
    assert (with_model_keys != whole["generator"]).any(), "the generator uses the model's keys"


def config(**changes) -> Config:
    return Config(
        model=replace(MODEL, **changes),
        data=replace(DATA, sources=("lines:nothing",)),
        training=TrainingConfig(objectives=NAMES, global_batch_size=32, steps=20_000),
    )


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (
            {"generator_width": 0.0},
            r"have no mlm_head, which mlm needs; they have rtd_head; set model\.generator_width",
        ),
        ({"family": "bert", "pooler": "tanh"}, r"model\.generator_width=0\.5 with model\.family='bert': it has no gen"),
        ({"generator_width": 0.7}, r"model\.generator_width=0\.7: a width of 22 is not divisible by"),
    ],
)
def test_invalid_generators_are_refused(changes: dict, message: str) -> None:
    if changes.get("generator_width") == 0.7:
        changes = changes | {"num_attention_heads": 8}
    with pytest.raises(ValueError, match=message):
        preflight(config(**changes))


def test_mesh_that_does_not_divide_the_generator_is_refused() -> None:
    quarter_width = config(generator_width=0.25)
    assert generator_config(quarter_width.model).num_attention_heads == 1
    with pytest.raises(ValueError, match=r"the generator's num_attention_heads=1 is not divisible by mesh\.tensor=2"):
        preflight(replace(quarter_width, mesh=MeshConfig(4, 1, 2)))


def test_rtd_requires_masked_tokens() -> None:
    with pytest.raises(ValueError, match=r"rtd needs the predictions of mlm; add that objective"):
        batch_spec(DATA, 4, ("rtd",))
    with pytest.raises(ValueError, match=r"none can be replaced; leave rtd out"):
        batch_spec(DataConfig(predict="next"), 4, NAMES)
