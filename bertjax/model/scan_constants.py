"""What no layer changes is computed in each layer, where a scan would keep it at the shape of the scores."""

from __future__ import annotations

from typing import TypeVar

import jax

Constants = TypeVar("Constants")


@jax.custom_jvp
def beside(x: jax.Array, constants: Constants) -> Constants:
    """`constants` as they are, made to depend on `x` where a gradient is taken.

    What depends on no layer, a mask and whatever is computed of it alone, JAX moves ahead of a scan over layers when it
    takes the scan's gradient, broadcast to the shape of the scores, and keeps it: [B, H, L, L]. What depends on an
    activation stays inside.
    """
    return constants


@beside.defjvp
def _beside_jvp(primals: tuple[jax.Array, Constants], tangents: tuple) -> tuple[Constants, Constants]:
    return stay_beside(*primals), tangents[1]


def stay_beside(x: jax.Array, constants: Constants) -> Constants:
    """`beside` for the forward half of a hand-written gradient, which is not differentiated."""
    return jax.lax.optimization_barrier((x, constants))[1]
