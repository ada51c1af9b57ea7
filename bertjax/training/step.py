"""The train step: pure, jitted, written per shard of the batch.

The gradient runs inside one `jax.shard_map` over the batch axes (`data`, `fsdp`); sharding over `tensor` is automatic,
guided by the logical names in the model. Microbatches accumulate without a reduction: weights sharded over `fsdp` are
gathered once per optimizer step; gradients are reduced once, not once per microbatch as with automatic sharding. With
`execution.gather='layer'`, stacked layers stay sharded, and the stack gathers one at a time.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.config import ModelConfig
from bertjax.model.attention.backends import Backend
from bertjax.model.attention.choice import choose_attention, compute_capability
from bertjax.model.dropout import row_keys
from bertjax.model.network import Params, bind
from bertjax.parallel.gathering import specs_over
from bertjax.parallel.mesh import BATCH_AXES
from bertjax.parallel.sharding import batch_sharding
from bertjax.runtime.compilation import Options, compiler_options, known_options
from bertjax.training.exchange import (
    NO_FROZEN,
    Frozen,
    frozen_shardings,
    frozen_specs,
    gather_frozen,
    gather_params,
    reduce_gradients,
)
from bertjax.training.objectives import Batch, Forward, Keys, Objective
from bertjax.training.objectives.objective import MODEL
from bertjax.training.optimizer import clip_factors, follow
from bertjax.training.schedules import Schedule
from bertjax.training.state import Blueprint, TrainState

Metrics = dict[str, jax.Array]
# (params, batch, dropout keys, global weights, frozen) -> gradient of the total loss and sums, or a ShardFn's outputs
Gradient = Callable[[Params, Batch, Keys, Metrics, Frozen], Any]
ShardFn = Callable[[Params, Metrics], Any]  # a device's gradient and sums, before the cross-device sum -> outputs
GradientMetrics = Callable[[Params], Metrics]  # the gradient over the global batch, unclipped -> scalars by name


@dataclass(frozen=True)
class StepGradient:
    """Builds the gradient of a step: summed over all devices, or per device before that sum."""

    blueprint: Blueprint
    objectives: tuple[Objective, ...]
    packed: bool | None  # as in `make_train_step`
    platform: str
    dropout_seed: int | None
    options: Options  # of the compiler

    def keys(self, step: jax.Array, batch: Batch) -> Keys:
        """The dropout keys of a step's batch: uint32 [B]."""
        rows = jnp.arange(batch["input_ids"].shape[0], dtype=jnp.uint32)
        return None if self.dropout_seed is None else row_keys(self.dropout_seed, step, rows)

    def make(self, grad_accum_steps: int) -> Gradient:
        """Make the function that computes the gradient of the total loss over the global batch, and the sums."""

        def over_devices(grads: Params, sums: Metrics) -> tuple[Params, Metrics]:
            return reduce_gradients(grads, self.blueprint), jax.lax.psum(sums, BATCH_AXES)

        return self._per_shard(
            grad_accum_steps, over_devices, (specs_over(self.blueprint.logical_axes, BATCH_AXES), P())
        )

    def make_per_device(self, grad_accum_steps: int, shard_fn: ShardFn, out_specs: Any) -> Gradient:
        """Make the function that returns `shard_fn` of each device's gradient and sums, combined by `out_specs`."""
        # Weights gathered by layer have no per-device gradient, so whole stacks are gathered.
        return self._per_shard(grad_accum_steps, shard_fn, out_specs, whole=True)

    def _per_shard(self, grad_accum_steps: int, shard_fn: ShardFn, out_specs: Any, whole: bool = False) -> Gradient:
        blueprint = self.blueprint

        def local(params: Params, batch: Batch, keys: Keys, weights: Metrics, frozen: Frozen) -> Any:
            gathered = gather_params(blueprint, params, whole=whole)
            others = gather_frozen(blueprint, frozen)

            def loss(gathered: Params, part: Batch, part_keys: Keys) -> tuple[jax.Array, Metrics]:
                forward = bind_networks(blueprint, gathered, others, part, part_keys, self.packed, self.platform)
                sums = objective_sums(forward, part, part_keys, self.objectives)
                # Divided by the global batch's weights, so that gradients of microbatches and shards can be summed.
                return averages(sums, weights, self.objectives)["loss"], sums

            grad_of_part = jax.grad(loss, has_aux=True)
            if grad_accum_steps == 1:
                grads, sums = grad_of_part(gathered, batch, keys)
            else:
                grads, sums = _accumulate(grad_of_part, gathered, split_microbatches((batch, keys), grad_accum_steps))
            return shard_fn(grads, sums)

        specs = specs_over(blueprint.logical_axes, BATCH_AXES)
        return jax.shard_map(
            local,
            mesh=blueprint.mesh,
            in_specs=(specs, P(BATCH_AXES), P(BATCH_AXES), P(), frozen_specs(blueprint)),
            out_specs=out_specs,
            axis_names=set(BATCH_AXES),
            check_vma=False,
        )


@dataclass(frozen=True)
class TrainStep:
    """`(state, batch) -> (state, metrics)`; the state is donated.

    The learning rate is an argument of the compiled program, so that runs of every length share it.
    """

    program: jax.stages.Wrapped  # (state, learning rate, batch, frozen)
    schedule: Schedule
    mesh: Mesh | AbstractMesh
    gradient: StepGradient
    frozen: Frozen = field(default_factory=dict)  # the frozen networks' parameters

    def __call__(self, state: TrainState, batch: Batch) -> tuple[TrainState, Metrics]:
        """Take a step, under `jax.set_mesh(mesh)`. Metrics are float32 scalars, still on the device."""
        return self.program(state, self._rate(state.step), batch, self.frozen)

    def trace(self, state: Any, batch: Any, frozen: Any = NO_FROZEN) -> jax.stages.Traced:
        """Trace the program for arguments of these shapes; if they have shardings, a call compiles nothing again."""
        rate = jax.ShapeDtypeStruct((), jnp.float32, sharding=NamedSharding(self.mesh, P()))
        return self.program.trace(state, rate, batch, frozen)

    @functools.cached_property
    def _rate(self) -> Callable[[jax.Array], jax.Array]:
        return jax.jit(self.schedule, out_shardings=NamedSharding(self.mesh, P()))


def objective_sums(forward: Forward, batch: Batch, keys: Keys, objectives: tuple[Objective, ...]) -> Metrics:
    """The sums `<objective>_<figure>` over a batch's weighted predictions; `keys` are for dropout in heads."""
    sums = {o.name: o.sums(forward, batch, keys) for o in objectives}
    return {f"{name}_{figure}": value for name, figures in sums.items() for figure, value in figures.items()}


def batch_weights(batch: Batch, objectives: tuple[Objective, ...]) -> Metrics:
    """Each objective's weight in a batch, and the number of tokens without padding; float32."""
    weights = {f"{o.name}_weight": jnp.sum(batch[o.weight_key]) for o in objectives}
    return weights | {"tokens": jnp.sum(batch["sequence_ids"] > 0).astype(jnp.float32)}


def averages(sums: Metrics, weights: Metrics, objectives: tuple[Objective, ...]) -> Metrics:
    """Sums over weights, the total loss, and ratios of sums (0 where both are 0): the only division of a step."""
    figures = {
        f"{o.name}_{figure}": sums[f"{o.name}_{figure}"] / (weights[f"{o.name}_weight"] + o.epsilon)
        for o in objectives
        for figure in o.figures
    }
    for o in objectives:
        for figure, (part, whole) in o.ratios.items():
            figures[f"{o.name}_{figure}"] = sums[f"{o.name}_{part}"] / jnp.maximum(sums[f"{o.name}_{whole}"], 1.0)
    loss: Any = sum(figures[f"{o.name}_loss"] * o.scale for o in objectives)
    return figures | {"loss": loss}


def several_sequences(batch: Batch) -> bool:
    """Whether rows have more than one sequence, by the number of their [CLS] positions."""
    return batch["cls_positions"].shape[1] > 1


def bind_networks(
    blueprint: Blueprint, params: Params, frozen: Frozen, batch: Batch, keys: Keys, packed: bool | None, platform: str
) -> Forward:
    """Bind parameters to networks for a shard's rows, with the attention backend for rows of this length.

    `packed` as in `make_train_step`.
    """
    execution, length = blueprint.execution, batch["input_ids"].shape[1]
    is_packed = several_sequences(batch) if packed is None else packed
    capability = compute_capability(blueprint.mesh.devices.flat[0]) if isinstance(blueprint.mesh, Mesh) else None

    def choose_backend(model: ModelConfig) -> Backend:
        return choose_attention(model, execution, platform, length, is_packed, capability).backend

    # A frozen network has no dropout, whatever it was trained with.
    frozen_attention: dict[str, Backend] = {
        name: choose_backend(replace(blueprint.frozen[name].model, attention_probs_dropout_prob=0.0)) for name in frozen
    }
    networks = {name: bind(blueprint.frozen[name].graphdef, tree) for name, tree in frozen.items()}
    trained = {MODEL: bind(blueprint.graphdef, params)}
    trained |= trained[MODEL].companions()
    return Forward(
        networks | trained,
        keys,
        packed=is_packed,
        attention=choose_backend(blueprint.model),
        trained=tuple(trained),
        frozen_attention=frozen_attention,
    )


def split_microbatches(batch: Any, count: int) -> Any:
    """[B, ...] -> [count, B / count, ...]; microbatch i holds rows i, i + count, ...

    Strided, so that each device's rows stay on it: a contiguous split would move data between devices.
    """
    return jax.tree.map(lambda x: x.reshape(x.shape[0] // count, count, *x.shape[1:]).swapaxes(0, 1), batch)


def make_train_step(
    blueprint: Blueprint,
    objectives: tuple[Objective, ...],
    optimizer: optax.GradientTransformation,
    schedule: Schedule,
    *,
    clip_norm: float,
    grad_accum_steps: int,
    dropout_seed: int | None,
    packed: bool | None = None,
    platform: str | None = None,
    deterministic: bool = False,
    gradient_metrics: GradientMetrics | None = None,
) -> TrainStep:
    """Make the jitted train step.

    `dropout_seed` None trains without dropout; `packed` says whether rows hold several sequences, and None leaves it to
    the shape of each batch (`several_sequences`); `platform` is the target of the compiler, by default the mesh's;
    `clip_norm` 0 does not clip. `deterministic` gives the same bits in every run, at a cost on some platforms. Metrics
    are over the global batch; `gradient_metrics` adds some from the gradient.
    """
    target = platform or blueprint.mesh.devices.flat[0].platform
    options = step_options(blueprint, target, deterministic)
    step_gradient = StepGradient(blueprint, objectives, packed, target, dropout_seed, options)
    gradient = step_gradient.make(grad_accum_steps)

    def train_step(
        state: TrainState, learning_rate: jax.Array, batch: Batch, frozen: Frozen
    ) -> tuple[TrainState, Metrics]:
        # 1. The gradient over the global batch
        weights = batch_weights(batch, objectives)
        grads, sums = gradient(state.params, batch, step_gradient.keys(state.step, batch), weights, frozen)
        norm = optax.tree.norm(grads)
        finite = jnp.isfinite(norm)

        # 2. The update; if a gradient is not finite, the step advances, and parameters and moments stay
        factors = clip_factors(grads, norm, clip_norm)

        def update(params: Params, opt_state: optax.OptState) -> tuple[Params, optax.OptState]:
            updates, opt_state = optimizer.update(jax.tree.map(jnp.multiply, grads, factors), opt_state, params)
            params = jax.tree.map(lambda p, u: p - learning_rate * u, params, updates)
            return params, follow(opt_state, params)

        old = (state.params, state.opt_state)
        if target == "cpu":  # a conditional avoids a select and copies of the moments: 5 % of BERT-Base's step
            params, opt_state = jax.lax.cond(finite, update, lambda *old: old, *old)
        else:  # accelerators fuse the select, and a conditional would make a GPU wait for the host
            params, opt_state = jax.tree.map(lambda new, old: jnp.where(finite, new, old), update(*old), old)
        skipped = jnp.where(finite, 0, 1)
        new_state = TrainState(
            step=state.step + 1,
            params=params,
            opt_state=opt_state,
            skipped=state.skipped + skipped,
            skipped_in_a_row=jnp.where(finite, 0, state.skipped_in_a_row + 1),
        )

        # 3. The metrics
        metrics = averages(sums, weights, objectives) | {
            "grad_norm": norm,
            "learning_rate": learning_rate,
            "tokens": weights["tokens"],
            "skipped_updates": new_state.skipped.astype(jnp.float32),
            "skipped_in_a_row": new_state.skipped_in_a_row.astype(jnp.float32),
        }
        return new_state, metrics | (gradient_metrics(grads) if gradient_metrics else {})

    everywhere, rows = NamedSharding(blueprint.mesh, P()), batch_sharding(blueprint.mesh)
    program = jax.jit(
        train_step,
        in_shardings=(blueprint.shardings, everywhere, rows, frozen_shardings(blueprint)),
        out_shardings=(blueprint.shardings, None),
        donate_argnums=0,
        compiler_options=options,
    )
    return TrainStep(program, schedule, blueprint.mesh, step_gradient)


def step_options(blueprint: Blueprint, platform: str, deterministic: bool) -> Options:
    """The compiler's options; on real devices, only those that their compiler supports."""
    options = compiler_options(platform, blueprint.mesh.size, deterministic=deterministic)
    return options if isinstance(blueprint.mesh, AbstractMesh) else known_options(options, blueprint.mesh)


def _accumulate(grad_of_part: Callable, params: Params, parts: tuple[Batch, jax.Array | None]) -> tuple[Any, Any]:
    """Sum (gradient, sums) over the microbatches stacked in the first dim, one at a time."""
    shapes = jax.eval_shape(grad_of_part, params, *jax.tree.map(lambda x: x[0], parts))
    zero = jax.tree.map(lambda leaf: jnp.zeros(leaf.shape, leaf.dtype), shapes)

    def add(total: Any, part: tuple[Batch, jax.Array | None]) -> tuple[Any, None]:
        return jax.tree.map(jnp.add, total, grad_of_part(params, *part)), None

    return jax.lax.scan(add, zero, parts)[0]
