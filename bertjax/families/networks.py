"""Build a network from its config: the family decides the heads of pretraining and the generator."""

from __future__ import annotations

import functools
from typing import Any

import jax
from flax import nnx

from bertjax.config import DEFAULT_EXECUTION, ExecutionConfig, ModelConfig
from bertjax.families.registry import generator_config, get_family
from bertjax.model.network import Network, NetworkSpec, Params, PretrainingNetwork, check_head
from bertjax.parallel.sharding import is_names, logical_axes


def build_network(config: ModelConfig, execution: ExecutionConfig, rngs: nnx.Rngs) -> Network:
    """Build the network that `model.head` names. Raises ValueError if head or family do not fit the config."""
    network = check_head(config)
    if issubclass(network, PretrainingNetwork):
        return network(pretraining_spec(config), execution, rngs=rngs)
    return network(config, execution, rngs=rngs)


def pretraining_spec(config: ModelConfig) -> NetworkSpec:
    """Specify the network that pretrains a model of this config."""
    generator = pretraining_spec(generator_config(config)) if config.generator_width else None
    return NetworkSpec(config, get_family(config.family).heads, generator)


def abstract_network(
    config: ModelConfig, execution: ExecutionConfig = DEFAULT_EXECUTION
) -> tuple[nnx.GraphDef, Params, dict[str, Any]]:
    """The network without its arrays: (graphdef, parameter shapes, logical axis names of every dim).

    Raises ValueError for an unknown family, and for a head whose input the config lacks.
    """
    graphdef, shapes, axes = _traced(config, execution)
    return graphdef, jax.tree.map(lambda x: x, shapes), jax.tree.map(lambda x: x, axes, is_leaf=is_names)


@functools.lru_cache(maxsize=64)
def _traced(config: ModelConfig, execution: ExecutionConfig) -> tuple[nnx.GraphDef, Params, dict[str, Any]]:
    """Trace a network; cached because tracing takes a tenth of a second and importers call it often."""
    graphdef, state = nnx.split(nnx.eval_shape(lambda: build_network(config, execution, nnx.Rngs(0))))
    return graphdef, nnx.to_pure_dict(state), logical_axes(state)


def init_params(config: ModelConfig, key: jax.Array) -> Params:
    """Initialise parameters. Pure: run it under jit with output shardings to create each array on its devices."""
    return nnx.to_pure_dict(nnx.state(build_network(config, DEFAULT_EXECUTION, nnx.Rngs(key)), nnx.Param))
