"""Compile a layer's attention with a window for a TPU: `python window_on_tpu.py LENGTH ...`.

Prints a line for each row length: the length, the bytes of temporaries of the gradient, the number of kernel calls, and
the chosen backend. Needs the environment variables of `planning_environment`.
"""

from __future__ import annotations

import re
import sys

import jax
import jax.numpy as jnp
from jax.sharding import SingleDeviceSharding

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.model.attention.backends import attend
from bertjax.model.attention.choice import choose_attention
from bertjax.plan.topologies import open_topology

TOPOLOGY, WINDOW = "v5e:1x1", 64


def compiled(backend: str, length: int) -> jax.stages.Compiled:
    """Compile the gradient of attention by q, k and v [8, length, 12, 64] in bfloat16, for one chip."""
    (device,) = open_topology(TOPOLOGY).devices
    where = SingleDeviceSharding(device)
    x = jax.ShapeDtypeStruct((8, length, 12, 64), jnp.bfloat16, sharding=where)
    ids = jax.ShapeDtypeStruct((8, length), jnp.int32, sharding=where)

    def total(q: jax.Array, k: jax.Array, v: jax.Array, ids: jax.Array) -> jax.Array:
        settings = {"packed": True, "causal": False, "window": WINDOW, "dropout_keys": None, "dropout_rate": 0.0}
        return jnp.sum(jnp.sin(attend(backend, q, k, v, ids, **settings).astype(jnp.float32)))

    return jax.jit(jax.grad(total, argnums=(0, 1, 2))).lower(x, x, x, ids).compile()


def main() -> None:
    """Print the figures of each length."""
    model = ModelConfig(window=WINDOW, global_every=3, attention_probs_dropout_prob=0.0)
    for length in map(int, sys.argv[1:]):
        choice = choose_attention(model, ExecutionConfig(dtype="bfloat16"), "tpu", length, True, None)
        program = compiled(choice.backend, length)
        kernels = len(re.findall(r'custom_call_target="tpu_custom_call"', program.as_text()))
        print(length, program.memory_analysis().temp_size_in_bytes, kernels, choice, flush=True)


if __name__ == "__main__":
    main()
