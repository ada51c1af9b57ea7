"""Keep layer-independent values inside a scan over layers, where JAX would store them in the shape of the scores."""

from __future__ import annotations

from typing import TypeVar

import jax

Constants = TypeVar("Constants")


@jax.custom_jvp
def beside(x: jax.Array, constants: Constants) -> Constants:
    """Return `constants` unchanged, but make them depend on `x` where a gradient is taken.

    When JAX differentiates a scan over layers, it moves values that depend on no layer (a mask, and anything computed
    from it alone) out of the scan and stores them broadcast to the scores, [B, H, L, L]. Values that depend on an
    activation stay inside.
    """
    return constants


@beside.defjvp
def _beside_jvp(primals: tuple[jax.Array, Constants], tangents: tuple) -> tuple[Constants, Constants]:
    return stay_beside(*primals), tangents[1]


def stay_beside(x: jax.Array, constants: Constants) -> Constants:
    """`beside` for the forward function of a `custom_vjp`, which JAX does not differentiate."""
    return jax.lax.optimization_barrier((x, constants))[1]
