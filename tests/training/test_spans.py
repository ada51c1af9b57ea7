"""The span boundary objective against its formula in NumPy, and the positions of span boundaries."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from pair_corpora import MemorySplit, Specials, random_documents
from scipy.special import erf
from small_training import draw_params
from their_model import assert_same_gradients

from bertjax.config import DataConfig, ExecutionConfig, ModelConfig
from bertjax.families.networks import abstract_network
from bertjax.input.batches import RowBatches, batch_spec
from bertjax.input.targets.sbo import span_boundaries
from bertjax.model.family_heads import SboHead
from bertjax.model.network import bind
from bertjax.training.objectives import OBJECTIVES, choose
from bertjax.training.objectives.objective import Forward
from bertjax.training.step import averages, batch_weights, objective_sums

MODEL = ModelConfig(
    family="spanbert",
    vocab_size=1000,
    hidden_size=24,
    num_hidden_layers=2,
    num_attention_heads=2,
    intermediate_size=40,
    max_position_embeddings=64,
    pooler="none",
    initializer_range=0.2,
)
DATA = DataConfig(
    sequence_length=64,
    max_predictions=20,
    mask_probability=0.3,
    rows="doc_sentences",
    masking="spans",
    mask_count="ceil_of_text",
    replace_by="span",
)
SPLIT = MemorySplit(random_documents(80, seed=3, sentences=8, tokens=11))


def make_batch(packing: str, rows: int = 12, **changes) -> dict[str, np.ndarray]:
    data = replace(DATA, packing=packing, **changes)
    return RowBatches(SPLIT, Specials(), data, 5, objectives=("mlm", "sbo")).batch(0, rows)


def find_spans(batch: dict[str, np.ndarray], row: int) -> dict[int, tuple[int, int]]:
    """Map each masked position to the first and last position of its span, token by token."""
    hidden = set(batch["mlm_positions"][row][batch["mlm_weights"][row] > 0].tolist())
    spans = {}
    for position in hidden:
        first = last = position
        while first - 1 in hidden:
            first -= 1
        while last + 1 in hidden:
            last += 1
        spans[position] = first, last
    return spans


@pytest.mark.parametrize("packing", ["none", "pairs"])
def test_boundaries_are_the_tokens_next_to_each_span(packing: str) -> None:
    batch = make_batch(packing, span_p=0.05, span_max=30)
    long = seen = 0
    for row in range(len(batch["input_ids"])):
        spans = find_spans(batch, row)
        for slot, position in enumerate(batch["mlm_positions"][row].tolist()):
            left, right, weight = (batch[f"sbo_{key}"][row, slot] for key in ("left", "right", "weights"))
            if not batch["mlm_weights"][row, slot]:
                assert left == right == weight == 0
                continue
            first, last = spans[position]
            assert weight == (position - first < SboHead.POSITIONS)
            long += weight == 0
            if weight:
                assert (left, right) == (first - 1, last + 1)
                numbers = batch["sequence_ids"][row, [left, position, right]]
                assert numbers.min() == numbers.max() > 0, "of one sequence"
                seen += 1
    assert seen > 100 and long > 5


def test_span_at_a_sequence_end_has_no_boundary() -> None:
    positions, weights = np.array([[0, 1, 4, 6, 7, 0, 0]], np.int32), np.array([[1, 1, 1, 1, 1, 0, 0]], np.float32)
    boundaries = span_boundaries(positions, weights, np.array([8]))
    assert boundaries["sbo_weights"].tolist() == [[0, 0, 1, 0, 0, 0, 0]]
    assert (boundaries["sbo_left"][0, 2], boundaries["sbo_right"][0, 2]) == (3, 5)
    assert span_boundaries(positions, weights, np.array([9]))["sbo_weights"].tolist() == [[0, 0, 1, 1, 1, 0, 0]]


def test_packing_moves_boundaries_with_their_sequence() -> None:
    alone, together = (
        RowBatches(SPLIT, Specials(), replace(DATA, packing=packing), 5, objectives=("mlm", "sbo"))
        for packing in ("none", "pairs")
    )

    def predictions(batches: RowBatches) -> list[tuple]:
        batch, rows = batches.rows(np.arange(batches.rows_per_epoch)), []
        for row, slot in zip(*np.nonzero(batch["sbo_weights"]), strict=True):
            place = batch["mlm_positions"][row, slot]
            inside = np.flatnonzero(batch["sequence_ids"][row] == batch["sequence_ids"][row, place])
            relative = (batch[key][row, slot] - inside[0] for key in ("mlm_positions", "sbo_left", "sbo_right"))
            rows.append((tuple(batch["input_ids"][row, inside]), batch["mlm_labels"][row, slot], *relative))
        return sorted(rows)

    assert predictions(alone) == predictions(together)


def formula(xp, erf, head: dict, word: np.ndarray, hidden: np.ndarray, batch: dict[str, np.ndarray]):
    """Sum of -log p over the targets in float64, with y = LN(gelu(W2 LN(gelu(W1 [left; right; place])))).

    `xp` is NumPy or jax.numpy.
    """
    row, slot = np.nonzero(batch["sbo_weights"])
    left, right = batch["sbo_left"][row, slot], batch["sbo_right"][row, slot]
    place = head["place"][batch["mlm_positions"][row, slot] - left - 1]
    x = xp.concatenate([hidden[row, left], hidden[row, right], place], axis=1)
    for dense, after in (("first", "first_norm"), ("second", "norm")):
        x = x @ head[dense]["kernel"] + head[dense]["bias"]
        x = 0.5 * x * (1 + erf(x / 2**0.5))
        centred = x - x.mean(axis=1, keepdims=True)
        x = centred / xp.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-12)
        x = x * head[after]["scale"] + head[after]["bias"]
    logits = (x @ word.T + head["bias"])[:, : MODEL.vocab_size]
    highest = logits.max(axis=1, keepdims=True)
    total = xp.log(xp.exp(logits - highest).sum(axis=1)) + highest[:, 0]
    return (total - logits[np.arange(len(row)), batch["mlm_labels"][row, slot]]).sum()


def wide(tree):
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


@pytest.fixture(scope="module")
def network() -> tuple:
    graphdef, shapes, _ = abstract_network(MODEL, ExecutionConfig(logits_chunk=64))
    params = jax.tree.map(jnp.asarray, draw_params(MODEL, noise=0.1))
    assert jax.tree.structure(params) == jax.tree.structure(shapes)
    return graphdef, params


@pytest.mark.parametrize("packing", [pytest.param("none", marks=pytest.mark.long), "pairs"])
def test_sbo_loss_equals_its_formula(network: tuple, packing: str) -> None:
    graphdef, params = network
    batch, objectives = make_batch(packing), choose(("mlm", "sbo"))

    @jax.jit
    def figures(params):
        forward = Forward({"model": bind(graphdef, params)}, None, packed=True)
        sums = objective_sums(forward, batch, None, objectives)
        return forward(batch), averages(sums, batch_weights(batch, objectives), objectives)

    hidden, actual = jax.device_get(figures(params))
    head, word = wide((params["sbo_head"], params["encoder"]["embeddings"]["word"]))
    total, count = formula(np, erf, head, word, hidden.astype(np.float64), batch), batch["sbo_weights"].sum()
    assert count > 50
    assert actual["sbo_loss"] == pytest.approx(total / (count + 1), rel=1e-6)
    assert actual["loss"] == pytest.approx(actual["mlm_loss"] + actual["sbo_loss"], rel=1e-6)


def test_sbo_gradients_equal_the_formula(network: tuple) -> None:
    """Gradients by the head, the word table and the hidden vectors, against the formula in float64."""
    graphdef, params = network
    batch = make_batch("none", rows=4)
    hidden = np.random.default_rng(2).normal(size=(*batch["input_ids"].shape, MODEL.hidden_size)).astype(np.float32)
    word = params["encoder"]["embeddings"]["word"]

    class FixedVectors:
        """The network with given hidden vectors."""

        def __init__(self, head, word, hidden):
            tables = {**params["encoder"]["embeddings"], "word": word}
            whole = {**params, "sbo_head": head, "encoder": {**params["encoder"], "embeddings": tables}}
            model = bind(graphdef, whole)
            self.encoder, self.sbo_head, self.logits_chunk = model.encoder, model.sbo_head, model.logits_chunk
            self.hidden = hidden

        def encode(self, *_, **__):
            return self.hidden

    def loss(head, word, hidden):
        forward = Forward({"model": FixedVectors(head, word, hidden)}, None, packed=True)
        return OBJECTIVES["sbo"].sums(forward, batch, None)["loss"]

    inputs = params["sbo_head"], word, jnp.asarray(hidden)
    actual = jax.device_get(jax.jit(jax.grad(loss, argnums=(0, 1, 2)))(*inputs))
    with jax.enable_x64(True):
        exact = jax.grad(lambda *floats: formula(jnp, jax.scipy.special.erf, *floats, batch), argnums=(0, 1, 2))
        expected = jax.device_get(jax.jit(exact)(*jax.tree.map(jnp.asarray, wide(inputs))))
    assert_same_gradients(actual, expected)


def test_sbo_loss_reads_only_the_tokens_next_to_a_span(network: tuple) -> None:
    graphdef, params = network
    batch = make_batch("none")
    beside = np.zeros(batch["input_ids"].shape, bool)
    rows, slots = np.nonzero(batch["sbo_weights"])
    for key in ("sbo_left", "sbo_right"):
        beside[rows, batch[key][rows, slots]] = True
    hidden = np.random.default_rng(0).normal(size=(*beside.shape, MODEL.hidden_size)).astype(np.float32)
    inside = np.where(beside[..., None], hidden, hidden[::-1])
    outside = np.where(beside[..., None], hidden[::-1], hidden)

    def loss(states):
        model = bind(graphdef, params)
        model.encode = lambda *_, **__: jnp.asarray(states)
        return float(OBJECTIVES["sbo"].sums(Forward({"model": model}, None, packed=True), batch, None)["loss"])

    assert loss(inside) == loss(hidden) != loss(outside)


def test_sbo_requires_masked_tokens() -> None:
    with pytest.raises(ValueError, match=r"training\.objectives=\('sbo',\): sbo needs the predictions of mlm; add"):
        batch_spec(DATA, 4, ("sbo",))
    with pytest.raises(ValueError, match=r"data\.predict='next': no tokens are masked, so there are no spans"):
        batch_spec(DataConfig(predict="next"), 4, ("mlm", "sbo"))
