"""Early stopping decides on the best evaluation; held-out batches are padded."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

from bertjax.config import MeshConfig
from bertjax.parallel.mesh import make_mesh
from bertjax.run.checkpoint import Checkpoints
from bertjax.run.hooks.early_stopping import EarlyStopping, Patience
from bertjax.run.telemetry import logged_value, summarize_log
from bertjax.training.evaluate import HeldOut


@pytest.mark.parametrize(("past", "final"), [((1.0, 1.0, 1.0), True), ((1.0, 1.0, 2.0), False), ((3.0, 2.0), False)])
def test_first_of_equal_evaluations_is_the_best(past: tuple[float, ...], final: bool, tmp_path: Path) -> None:
    hook = EarlyStopping(Patience("eval/f1", 2), Checkpoints(tmp_path, keep_last=1), past)
    assert hook.is_final == final


@pytest.mark.parametrize("value", [1 / 3, 2 / 3, 0.1 + 0.2])
def test_equal_evaluation_after_a_resume_is_not_better(value: float, tmp_path: Path) -> None:
    """The log rounds figures to nine digits."""
    past = summarize_log([{"step": 1, "eval/f1": logged_value(value)}], 1, "eval/f1", 0)["figures"]
    hook = EarlyStopping(Patience("eval/f1", 2), Checkpoints(tmp_path, keep_last=1), past)
    assert not hook._record(value)


class Numbered:
    """Rows that contain their own number, from 1."""

    def batch(self, step: int, size: int, rows: np.ndarray) -> dict[str, np.ndarray]:
        return {"number": (step * size + rows + 1)[:, None].astype(np.int32)}


def test_held_out_pads_the_last_batch() -> None:
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    held_out = HeldOut(Numbered(), mesh, rows=5, batch_size=2)
    batches = [batch["number"].ravel().tolist() for batch in held_out.whole_batches()]
    assert batches == [[1, 2], [3, 4], [5, 0]]
