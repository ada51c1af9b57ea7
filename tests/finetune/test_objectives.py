"""Losses that transformers has no class for: texts told apart within a batch, and relevance; the others are in
test_task_heads.py."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from one_step import TEMPERATURE, one_step, require_equal_gradients
from small_tasks import sentences, small_start

from bertjax.finetune.batches import padded
from bertjax.finetune.encoding import encode_texts
from bertjax.finetune.examples import TextExample
from bertjax.finetune.lengths import RowCounts

ROWS = 8


def batch_of(kind: str, folder: Path) -> tuple[dict[str, np.ndarray], object]:
    start = small_start(folder)
    first, second = sentences(ROWS, 1), sentences(ROWS, 2)
    examples = [
        TextExample(f"here:{number}", str(number), pair, float(number % 2))
        for number, pair in enumerate(zip(first, second, strict=True))
    ]
    rows = encode_texts(examples, kind, (), start.tokenizer, 32, RowCounts())
    batch = padded(rows, np.arange(ROWS), int(rows.lengths.max()), start.tokenizer.pad_id)
    batch["label_weights"][5] = 0  # such as fills up a last batch
    return batch, start


@pytest.mark.parametrize("kind", ["vector", "relevance"])
def test_a_loss_is_its_formula_on_any_number_of_devices(kind: str, tmp_path: Path) -> None:
    batch, start = batch_of(kind, tmp_path)
    figures, outputs, gradient = one_step(kind, 1, batch, start)
    weights = batch["label_weights"].reshape(-1).astype(np.float64)
    if kind == "vector":
        np.testing.assert_allclose(np.linalg.norm(outputs, axis=-1), 1, rtol=1e-5)
        logits = outputs[:, 0].astype(np.float64) @ outputs[:, 1].T / TEMPERATURE
        logits[:, weights == 0] = -np.inf
        own = np.where(weights > 0, logits[np.arange(ROWS), np.arange(ROWS)], 0)
        nll = np.log(np.exp(logits).sum(1)) - own
        hits = logits.argmax(1) == np.arange(ROWS)
    else:
        z, labels = outputs[:, 0].astype(np.float64), batch["labels"][:, 0]
        nll = np.log1p(np.exp(z)) - labels * z
        hits = (z > 0) == (labels > 0.5)
    wanted = {"loss": nll, "accuracy": hits}
    for name, values in wanted.items():
        mean = (np.where(weights > 0, values, 0) * weights).sum() / weights.sum()
        assert figures[f"{kind}_{name}"] == pytest.approx(mean, rel=2e-6)
    shared = one_step(kind, 4, batch, start)
    assert shared.figures == pytest.approx(figures, rel=2e-6)
    np.testing.assert_allclose(shared.outputs, outputs, rtol=1e-5, atol=1e-6)
    # What is all-gathered must come back to whose it is.
    require_equal_gradients(gradient, shared.gradient)
