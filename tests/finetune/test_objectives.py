"""Losses without a class in transformers: contrastive vectors and relevance; others are in test_task_heads.py."""

from __future__ import annotations

import json
from pathlib import Path

import jax
import numpy as np
import pytest
from one_step import TEMPERATURE, one_step, require_equal_gradients
from small_tasks import load_content, sentences, small_config, small_start

from bertjax.config import MeshConfig, TaskConfig
from bertjax.finetune.batches import padded
from bertjax.finetune.data.examples import TextExample
from bertjax.finetune.kinds import KINDS
from bertjax.finetune.kinds.vector import VECTOR, nearest_accuracy
from bertjax.finetune.run import Start
from bertjax.input.lengths import LengthCounts
from bertjax.parallel.mesh import BATCH_AXES, make_mesh
from bertjax.training.objectives import Batch, Forward, Sums

ROWS = 8


def make_pairs() -> list[tuple[str, str]]:
    """Make pairs, with a query that has two answers, an answer of two queries, and an answer that is also a query."""
    texts = list(dict.fromkeys(sentences(4 * ROWS, 1)))[: 2 * ROWS]
    pairs = list(zip(texts[::2], texts[1::2], strict=True))
    pairs[3] = pairs[1][0], pairs[3][1]
    pairs[6] = pairs[6][0], pairs[2][1]
    pairs[7] = pairs[0][1], pairs[7][1]
    return pairs


def make_batch(kind: str, pairs: list[tuple[str, str]], start: Start) -> dict[str, np.ndarray]:
    examples = [TextExample(f"here:{n}", str(n), pair, float(n % 2)) for n, pair in enumerate(pairs)]
    rows = KINDS[kind].encode(examples, (), start.tokenizer, 32, LengthCounts())
    batch = padded(rows, np.arange(ROWS), int(rows.lengths.max()), start.tokenizer.pad_id)
    batch["label_weights"][5] = 0  # like the padding of a last batch
    return batch


def expected_vector_losses(
    vectors: np.ndarray, pairs: list[tuple[str, str]], weights: np.ndarray
) -> tuple[list[float], list[float]]:
    """Compute (nll, hits) of each row; pairs that share no text with a row are its negatives."""
    nll, hits = [], []
    for i, (first, _) in enumerate(vectors):
        wrong = [j for j in range(ROWS) if weights[j] and not {*pairs[i]} & {*pairs[j]}]
        scores = {j: float(first.astype(np.float64) @ vectors[j, 1]) / TEMPERATURE for j in [i, *wrong]}
        nll.append(np.log(sum(np.exp(score) for score in scores.values())) - scores[i])
        hits.append(float(max(scores.values()) == scores[i]))
    return nll, hits


@pytest.mark.parametrize("kind", [pytest.param("vector", marks=pytest.mark.long), "relevance"])
def test_losses_match_their_formula_on_four_devices(kind: str, tmp_path: Path) -> None:
    start, pairs = small_start(tmp_path), make_pairs()
    batch = make_batch(kind, pairs, start)
    figures, outputs, gradient = one_step(kind, 4, batch, start)
    weights = batch["label_weights"].reshape(-1).astype(np.float64)
    if kind == "vector":
        np.testing.assert_allclose(np.linalg.norm(outputs, axis=-1), 1, rtol=1e-5)
        nll, hits = expected_vector_losses(outputs, pairs, weights)
        real = np.flatnonzero(weights)
        measured = nearest_accuracy(outputs[real], batch["texts"][real])
        assert measured == pytest.approx(figures["vector_accuracy"])
    else:
        z, labels = outputs[:, 0].astype(np.float64), batch["labels"][:, 0]
        nll = np.log1p(np.exp(z)) - labels * z
        hits = (z > 0) == (labels > 0.5)
    expected = {"loss": nll, "accuracy": hits}
    for name, values in expected.items():
        mean = (np.array(values) * weights).sum() / weights.sum()
        assert figures[f"{kind}_{name}"] == pytest.approx(mean, rel=2e-6)
    if kind == "vector":
        alone = one_step(kind, 1, batch, start)
        assert alone.figures == pytest.approx(figures, rel=2e-6)
        np.testing.assert_allclose(alone.outputs, outputs, rtol=1e-5, atol=1e-6)
        # Gradients of gathered vectors must return to their rows.
        require_equal_gradients(alone.gradient, gradient)


class FixedVectors:
    """A network with fixed vectors."""

    def __init__(self, vectors: jax.Array) -> None:
        self.fixed = vectors

    def encode(self, *inputs: jax.Array | None, **_: object) -> jax.Array:
        return self.fixed

    @staticmethod
    def vectors(hidden: jax.Array, sequence_ids: jax.Array, sequences: int) -> jax.Array:
        return hidden


def test_vector_loss_matches_sentence_transformers() -> None:
    """`MultipleNegativesRankingLoss`: the cross entropy of scaled cosines."""
    torch = pytest.importorskip("torch", reason="needs torch")
    texts, weights = np.arange(2 * ROWS).reshape(ROWS, 2), np.ones(ROWS, np.float32)
    weights[5] = 0
    batch = {"texts": texts, "label_weights": weights, "cls_positions": texts}
    batch |= dict.fromkeys(("input_ids", "token_type_ids", "sequence_ids"), texts)
    vectors = np.random.default_rng(0).normal(size=(ROWS, 2, 8)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=-1, keepdims=True)
    mesh = make_mesh(MeshConfig(), jax.devices()[:4])

    def sums(vectors: jax.Array, batch: Batch) -> Sums:
        forward = Forward({"model": FixedVectors(vectors)}, None, packed=True)
        return jax.lax.psum(
            VECTOR.objective(TaskConfig(temperature=TEMPERATURE)).sums(forward, batch, None), BATCH_AXES
        )

    rows = jax.sharding.PartitionSpec(BATCH_AXES)
    result = jax.jit(jax.shard_map(sums, mesh=mesh, in_specs=rows, out_specs=jax.sharding.PartitionSpec()))(
        vectors, batch
    )
    first, second = torch.from_numpy(vectors[weights > 0]).double().unbind(1)
    loss = torch.nn.functional.cross_entropy(first @ second.T / TEMPERATURE, torch.arange(len(first)), reduction="sum")
    assert float(result["loss"]) == pytest.approx(loss.item(), rel=2e-6)


def test_shared_texts_are_not_negatives() -> None:
    pairs = make_pairs()
    number = {text: place for place, text in enumerate(dict.fromkeys(np.ravel(pairs).tolist()))}
    texts = np.array([[number[text] for text in pair] for pair in pairs])
    vectors = np.zeros((ROWS, 2, ROWS))
    vectors[:, 0] = np.eye(ROWS)
    vectors[:, 1] = 0.5 * np.eye(ROWS)
    for first, second in ((1, 3), (3, 1), (2, 6), (6, 2), (0, 7), (7, 0)):
        vectors[second, 1, first] = 1
    assert nearest_accuracy(vectors, texts) == 1
    vectors[4, 1, 1] = 1
    assert nearest_accuracy(vectors, texts) == (ROWS - 1) / ROWS


def test_vector_accuracy_matches_pairwise_search() -> None:
    """Search among more pairs than are multiplied together, many of which share a text."""
    draw = np.random.default_rng(4)
    texts = draw.integers(0, 900, (600, 2)).astype(np.int32)
    vectors = draw.standard_normal((600, 2, 6)).astype(np.float32)
    right = 0
    for number, (first, _) in enumerate(vectors):
        wrong = [n for n in range(600) if n != number and not {*texts[n]} & {*texts[number]}]
        right += bool((vectors[wrong, 1] @ first).max() < vectors[number, 1] @ first)
    assert 0 < right < 600
    assert nearest_accuracy(vectors, texts) == right / 600


@pytest.mark.parametrize(("second", "reported"), [("a", True), ("the", False)])
def test_dev_set_without_negatives_is_reported(second: str, reported: bool, tmp_path: Path) -> None:
    start = small_start(tmp_path)
    for name, texts in {"train": ["a", "the"], "dev": ["a", second]}.items():
        rows = [json.dumps({"text": text, "text_b": f"{number} cat"}) for number, text in enumerate(texts)]
        (tmp_path / f"{name}.jsonl").write_text("\n".join(rows))
    notes = load_content(small_config("pairs", start, tmp_path, tmp_path / "run"), start).notes
    assert any(note.startswith("dev: one text is in all pairs") for note in notes) == reported
