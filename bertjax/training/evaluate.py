"""Held-out evaluation: the step, the batches and the baselines."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.input.feed import Batches
from bertjax.input.masking.rule import token_counts
from bertjax.input.training_data import Sentences
from bertjax.model.network import Network, Params
from bertjax.parallel.gathering import specs_over
from bertjax.parallel.mesh import BATCH_AXES, batch_shards
from bertjax.parallel.sharding import batch_sharding, local_rows, to_global
from bertjax.training.exchange import (
    NO_FROZEN,
    Frozen,
    frozen_shardings,
    frozen_specs,
    gather_frozen,
    gather_params,
)
from bertjax.training.objectives import Batch, Forward, HeldOutFacts, Objective
from bertjax.training.state import Blueprint
from bertjax.training.step import (
    Metrics,
    averages,
    batch_weights,
    bind_networks,
    objective_sums,
    step_options,
)


class EvalStep(Protocol):
    """`(params, batch, frozen) -> sums and weights`; `frozen` holds the parameters of frozen networks, if any."""

    def __call__(self, params: Params, batch: Batch, frozen: Frozen = NO_FROZEN) -> Metrics: ...  # noqa: D102


class PredictStep(Protocol):
    """`(params, batch, frozen) -> (outputs, sums and weights)`."""

    def __call__(  # noqa: D102
        self, params: Params, batch: Batch, frozen: Frozen = NO_FROZEN
    ) -> tuple[jax.Array, Metrics]: ...


class Evaluation(Protocol):
    """Evaluates parameters on held-out data. Every process takes part and gets the same figures."""

    @property
    def baselines(self) -> dict[str, float]:
        """The baselines of the figures, by log name."""
        ...

    @property
    def batches(self) -> int:
        """The number of batches in an evaluation, and therefore of calls to `go_on`."""
        ...

    def __call__(self, params: Params, go_on: Callable[[], bool] = lambda: True) -> dict[str, float]:
        """Return the figures by log name. `go_on` is called before every batch; if it returns False, return {}."""
        ...


def compute_baselines(objectives: tuple[Objective, ...], facts: HeldOutFacts) -> dict[str, float]:
    """Compute every objective's context-free baselines, by log name."""
    return {f"baseline/{name}": value for o in objectives for name, value in o.baselines(facts).items()}


class HeldOut:
    """The first `rows` rows of a split, the same in every evaluation and for every batch size.

    They are read in batches of at most `batch_size`. The last batch is filled with rows of padding, whose weight is 0
    in every figure.
    """

    def __init__(self, batches: Batches, mesh: Mesh, rows: int, batch_size: int, prefix: str = "eval") -> None:
        shards = batch_shards(mesh)
        self._batches, self._mesh, self._prefix = batches, mesh, prefix
        self.rows, self.batch_size = rows, min(batch_size, -(-rows // shards) * shards)
        self.count = -(-rows // self.batch_size)
        self._within = local_rows(mesh, self.batch_size)

    def with_rows(self, rows: int) -> HeldOut:
        """The first `rows` rows of the same split."""
        return HeldOut(self._batches, self._mesh, rows, self.batch_size, self._prefix)

    def evaluate(
        self,
        step: EvalStep,
        params: Params,
        objectives: tuple[Objective, ...],
        go_on: Callable[[], bool] = lambda: True,
    ) -> dict[str, float]:
        """Compute `<prefix>/<objective>_loss` and `_accuracy` over all held-out batches; every process takes part.

        `go_on` is called before every batch, while at most one batch is on the devices; if it returns False, return {}.
        """
        total: Any = None
        for batch in self:
            if not go_on():
                return {}
            sums, before = step(params, batch), total
            total = sums if before is None else jax.tree.map(jnp.add, before, sums)
            jax.block_until_ready(before)
        figures = jax.device_get(averages(total, total, objectives))
        return {f"{self._prefix}/{name}": float(value) for name, value in figures.items()}

    def __iter__(self) -> Iterator[dict[str, jax.Array]]:
        for number in range(self.count):
            yield to_global(self._mesh, self._read(number, self._within))

    def _read(self, number: int, within: np.ndarray) -> dict[str, np.ndarray]:
        """Read the rows `within` a batch; rows beyond the end of the set are padding."""
        batch = self._batches.batch(number, self.batch_size, within)
        if (number + 1) * self.batch_size > self.rows:
            beyond = number * self.batch_size + within >= self.rows
            for array in batch.values():
                array[beyond] = 0
        return batch

    def whole_batches(self) -> Iterator[dict[str, np.ndarray]]:
        """Yield all batches on the host, each with all its rows."""
        for number in range(self.count):
            yield self._read(number, np.arange(self.batch_size))


def unigram_baseline(text: Sentences, vocab_size: int) -> tuple[float, float]:
    """Compute (entropy in nats, share of the most frequent token) from a text's own token frequencies."""
    counts = token_counts(text, vocab_size)
    shares = counts[counts > 0] / counts.sum()
    return float(-(shares * np.log(shares)).sum()), float(shares.max())


def make_eval_step(
    blueprint: Blueprint,
    objectives: tuple[Objective, ...],
    *,
    packed: bool | None,
    platform: str | None = None,
    deterministic: bool = False,
) -> EvalStep:
    """Make the jitted `(params, batch) -> sums and weights` over the global batch, without dropout."""

    def local(forward: Forward, batch: Batch) -> Metrics:
        figures = objective_sums(forward, batch, None, objectives) | batch_weights(batch, objectives)
        return jax.lax.psum(figures, BATCH_AXES)

    return _per_shard(blueprint, local, P(), packed, platform, deterministic)


def make_predict_step(
    blueprint: Blueprint,
    objectives: tuple[Objective, ...],
    outputs: Callable[[Network, jax.Array, Batch], jax.Array],
    *,
    packed: bool | None = None,
    deterministic: bool = False,
) -> PredictStep:
    """Make the jitted `(params, batch) -> (outputs [B, ...], sums and weights)`, without dropout.

    `outputs(model, hidden, batch)` returns the network's outputs for each row; they are replicated to every device.
    """

    def local(forward: Forward, batch: Batch) -> tuple[jax.Array, Metrics]:
        figures = objective_sums(forward, batch, None, objectives) | batch_weights(batch, objectives)
        return outputs(forward.model, forward(batch), batch), jax.lax.psum(figures, BATCH_AXES)

    whole = NamedSharding(blueprint.mesh, P())
    return _per_shard(blueprint, local, (P(BATCH_AXES), P()), packed, None, deterministic, (whole, whole))


def _per_shard(
    blueprint: Blueprint,
    local: Callable[[Forward, Batch], Any],
    out_specs: Any,
    packed: bool | None,
    platform: str | None,
    deterministic: bool,
    out_shardings: Any = None,
) -> Callable[..., Any]:
    """Jit `local(forward, batch)` over each device's rows as `(params, batch, frozen) -> ...`."""
    target = platform or blueprint.mesh.devices.flat[0].platform

    def shard_sums(params: Params, batch: Batch, frozen: Frozen) -> Any:
        gathered, others = gather_params(blueprint, params), gather_frozen(blueprint, frozen)
        return local(bind_networks(blueprint, gathered, others, batch, None, packed, target), batch)

    over_shards = jax.shard_map(
        shard_sums,
        mesh=blueprint.mesh,
        in_specs=(specs_over(blueprint.logical_axes, BATCH_AXES), P(BATCH_AXES), frozen_specs(blueprint)),
        out_specs=out_specs,
        axis_names=set(BATCH_AXES),
        check_vma=False,
    )
    program = jax.jit(
        over_shards,
        in_shardings=(blueprint.shardings.params, batch_sharding(blueprint.mesh), frozen_shardings(blueprint)),
        out_shardings=out_shardings,
        compiler_options=step_options(blueprint, target, deterministic),
    )

    def step(params: Params, batch: Batch, frozen: Frozen = NO_FROZEN) -> Any:
        return program(params, batch, frozen)

    return step
