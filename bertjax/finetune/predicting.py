"""What a network says of every row of a task, computed on all devices and given to every process."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh

from bertjax.finetune.batches import padded, padded_length
from bertjax.finetune.rows import TaskRows
from bertjax.model.network import Params
from bertjax.parallel.sharding import local_rows, to_global
from bertjax.training.objectives import Objective
from bertjax.training.step import PredictStep, averages


@dataclass(frozen=True)
class Predictor:
    """A network on a mesh, for rows of one kind of task."""

    step: PredictStep
    mesh: Mesh
    batch_size: int
    pad_id: int
    max_length: int
    per_token: bool

    def predict(
        self,
        params: Params,
        rows: TaskRows,
        objective: Objective,
        go_on: Callable[[], bool] = lambda: True,
        done: Callable[[int], object] = lambda rows: None,
    ) -> tuple[np.ndarray, dict[str, float]] | None:
        """(outputs, figures of the objective) of rows, in their order; None after a no of `go_on`, asked per batch.

        Outputs are float32, [n, ...] or per token [offsets[n], ...]. Long rows are computed first and together, which
        spares padding. `done` is told how many more rows are through.
        """
        order = np.argsort(-rows.lengths, kind="stable")
        found: list[np.ndarray] = [np.empty(0)] * len(rows)
        total: Any = None
        for chosen in self._batches(order):
            if not go_on():
                return None
            outputs, sums = self.step(params, self._batch(rows, chosen))
            total = sums if total is None else jax.tree.map(jnp.add, total, sums)
            for number, output in zip(chosen, np.asarray(outputs), strict=True):
                if number >= 0:
                    found[number] = output[: rows.lengths[number]] if self.per_token else output
            done(int((chosen >= 0).sum()))
        figures = jax.device_get(averages(total, total, (objective,)))
        whole = np.concatenate(found) if self.per_token else np.stack(found)
        return whole, {name: float(value) for name, value in figures.items() if name != "loss"}

    def _batches(self, order: np.ndarray) -> Iterator[np.ndarray]:
        """Numbers of rows, `batch_size` at a time; the last is filled up with -1."""
        for start in range(0, len(order), self.batch_size):
            chosen = order[start : start + self.batch_size]
            yield np.pad(chosen, (0, self.batch_size - len(chosen)), constant_values=-1)

    def _batch(self, rows: TaskRows, chosen: np.ndarray) -> dict[str, jax.Array]:
        length = padded_length(int(rows.lengths[chosen].max()), self.max_length)
        local = padded(rows, chosen[local_rows(self.mesh, self.batch_size)], length, self.pad_id)
        return to_global(self.mesh, local)
