"""The train state: its shapes, its shardings, and its initialization on the mesh."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.config import DEFAULT_EXECUTION, ExecutionConfig, ModelConfig
from bertjax.families.networks import abstract_network, init_params
from bertjax.model.network import Params
from bertjax.parallel.sharding import named_shardings


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class TrainState:
    """All that a step changes. `skipped` counts the updates skipped because a gradient was not finite."""

    step: jax.Array  # int32 []: batches consumed, skipped updates included
    params: Params
    opt_state: optax.OptState
    skipped: jax.Array  # int32 []
    skipped_in_a_row: jax.Array  # int32 []


@dataclass(frozen=True)
class FrozenNetwork:
    """A network that no step changes, such as a teacher; it is in neither the optimizer nor the checkpoints."""

    model: ModelConfig
    graphdef: nnx.GraphDef
    logical_axes: dict[str, Any]
    params: Params  # of jax.ShapeDtypeStruct, each with its NamedSharding


@dataclass(frozen=True)
class Blueprint:
    """The graph, shapes and shardings of a state, before any array exists.

    A network that is trained with the model, such as a generator, is a module of the model's graph; `frozen` are the
    other networks of the run, by the names that objectives use.
    """

    model: ModelConfig
    execution: ExecutionConfig
    graphdef: nnx.GraphDef
    logical_axes: dict[str, Any]
    mesh: Mesh
    state: TrainState  # of jax.ShapeDtypeStruct, each with its NamedSharding
    frozen: Mapping[str, FrozenNetwork] = field(default_factory=dict)

    @property
    def shardings(self) -> TrainState:
        """The state's NamedShardings."""
        return jax.tree.map(lambda leaf: leaf.sharding, self.state)

    def with_model(self, model: ModelConfig) -> Blueprint:
        """The blueprint with another model config that has the same arrays."""
        if model == self.model:
            return self
        graphdef, shapes, _ = abstract_network(model, self.execution)
        assert jax.tree.map(jnp.shape, shapes) == jax.tree.map(jnp.shape, self.state.params), "the same arrays"
        return replace(self, model=model, graphdef=graphdef)


def draw_blueprint(
    model: ModelConfig,
    optimizer: optax.GradientTransformation,
    mesh: Mesh,
    execution: ExecutionConfig = DEFAULT_EXECUTION,
    frozen: Mapping[str, FrozenNetwork] | None = None,
) -> Blueprint:
    """Compute the shapes and shardings of the state without making an array."""
    graphdef, shapes, axes = abstract_network(model, execution)
    shardings = named_shardings(mesh, axes)
    params = jax.tree.map(_sharded, shapes, shardings)
    replicated = NamedSharding(mesh, P())

    def init(params: Any) -> Any:
        return jax.eval_shape(optimizer.init, params)  # without eval_shape, counters would be made on a device

    # Moments are sharded like their parameters; other state of an optimizer is replicated.
    opt_state = optax.tree.map_params(
        init,
        lambda leaf, sharding: leaf if _is_masked(leaf) else _sharded(leaf, sharding),
        init(shapes),
        shardings,
        transform_non_params=lambda leaf: leaf if _is_masked(leaf) else _sharded(leaf, replicated),
        is_leaf=_is_masked,
    )
    scalar: Any = jax.ShapeDtypeStruct((), jnp.int32, sharding=replicated)
    return Blueprint(
        model, execution, graphdef, axes, mesh, TrainState(scalar, params, opt_state, scalar, scalar), frozen or {}
    )


def draw_frozen(
    model: ModelConfig, mesh: Mesh | AbstractMesh, execution: ExecutionConfig = DEFAULT_EXECUTION
) -> FrozenNetwork:
    """Compute the shapes and shardings of a frozen network, which is sharded like a trained one."""
    graphdef, shapes, axes = abstract_network(model, execution)
    return FrozenNetwork(model, graphdef, axes, jax.tree.map(_sharded, shapes, named_shardings(mesh, axes)))


def _is_masked(leaf: Any) -> bool:
    """Whether one rule of a partitioned optimizer, such as Muon, leaves this parameter to another rule."""
    return isinstance(leaf, optax.MaskedNode)


def _sharded(leaf: Any, sharding: NamedSharding) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(leaf.shape, leaf.dtype, sharding=sharding)


def init_state(
    blueprint: Blueprint, model: ModelConfig, optimizer: optax.GradientTransformation, seed: int
) -> TrainState:
    """Make a state at step 0, every array with its sharding."""

    def make(key: jax.Array) -> TrainState:
        return new_state(init_params(model, key), optimizer)

    return jax.jit(make, out_shardings=blueprint.shardings)(jax.random.key(seed))


def new_state(params: Params, optimizer: optax.GradientTransformation) -> TrainState:
    """Make a state at step 0 from parameters."""
    zero = jnp.zeros((), jnp.int32)
    return TrainState(zero, params, optimizer.init(params), zero, zero)
