"""Losses that transformers has no class for: texts told apart within a batch, and relevance; the others are in
test_task_heads.py."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import optax
import pytest
from small_tasks import sentences, small_start

from bertjax.config import MeshConfig
from bertjax.finetune.batches import padded
from bertjax.finetune.encoding import encode_texts
from bertjax.finetune.examples import TextExample
from bertjax.finetune.job import headed
from bertjax.finetune.lengths import RowCounts
from bertjax.finetune.objectives import OUTPUTS, objective_of
from bertjax.model.bert import init_params
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import to_global
from bertjax.training.state import draw_blueprint, state_of
from bertjax.training.step import averages, make_predict_step, make_train_step

ROWS, TEMPERATURE = 8, 0.1


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


def computed(kind: str, devices: int, batch: dict[str, np.ndarray], start) -> tuple[dict, np.ndarray, dict]:
    """(figures, outputs, gradient's norm and the weights after a step) on a mesh of so many devices."""
    mesh = make_mesh(MeshConfig(), jax.devices()[:devices])
    config, optimizer = headed(start.model, kind, 0), optax.identity()
    blueprint = draw_blueprint(config, optimizer, mesh)
    objectives = (objective_of(kind, TEMPERATURE),)
    params = init_params(config, jax.random.key(3))
    with jax.set_mesh(mesh):
        placed = jax.device_put(params, blueprint.shardings.params)
        outputs, sums = make_predict_step(blueprint, objectives, OUTPUTS[kind])(placed, to_global(mesh, batch, ROWS))
        step = make_train_step(
            blueprint, objectives, optimizer, lambda _: 1.0, clip_norm=1e9, grad_accum_steps=1, dropout_seed=None
        )
        born = jax.jit(lambda params: state_of(params, optimizer), out_shardings=blueprint.shardings)(placed)
        state, metrics = step(born, to_global(mesh, batch, ROWS))
        figures = {name: float(value) for name, value in averages(sums, sums, objectives).items()}
        assert figures[f"{kind}_loss"] == pytest.approx(float(metrics[f"{kind}_loss"]), rel=1e-6)
        return figures, np.asarray(outputs), jax.device_get(state.params)


@pytest.mark.parametrize("kind", ["vector", "relevance"])
def test_a_loss_is_its_formula_on_any_number_of_devices(kind: str, tmp_path: Path) -> None:
    batch, start = batch_of(kind, tmp_path)
    figures, outputs, params = computed(kind, 1, batch, start)
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
    shared = computed(kind, 4, batch, start)
    assert shared[0] == pytest.approx(figures, rel=2e-6)
    np.testing.assert_allclose(shared[1], outputs, rtol=1e-5, atol=1e-6)
    # A step of rate 1 without an update rule is the gradient: what is all-gathered must come back to whose it is.
    before = init_params(headed(start.model, kind, 0), jax.random.key(3))
    gradients = [
        jax.tree.map(lambda a, b: np.asarray(a) - np.asarray(b), before, after) for after in (params, shared[2])
    ]
    scale = float(optax.tree.norm(gradients[0]))
    assert scale > 1e-3
    assert float(optax.tree.norm(optax.tree.sub(*gradients))) < 2e-5 * scale
