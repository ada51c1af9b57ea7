"""What the backward pass computes again instead of reading it from memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax

Inputs = ParamSpec("Inputs")
Output = TypeVar("Output")


def recomputed(function: Callable[Inputs, Output], static: tuple[int, ...] = ()) -> Callable[Inputs, Output]:
    """A function of arrays of which only what goes in is kept for the gradient, and not what it makes on the way.

    For arithmetic on single elements, which takes less time than to write its parts down for every layer and to read
    them again; and for a product of what that makes, which is computed once, for no gradient needs it. The bits are the
    same. `static` arguments, by number, are not arrays.
    """
    # The layers are run by a scan, whose backward pass is a loop of its own: nothing there to share with.
    return jax.checkpoint(function, prevent_cse=False, static_argnums=static)
