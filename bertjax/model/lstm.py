"""A bidirectional LSTM over packed rows."""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import nnx

from bertjax.model.layers import uniform

_FORGET = 1  # of the gates input, forget, cell, output: PyTorch's order


class BiLstmLayer(nnx.Module):
    """One layer, both directions side by side: [B, L, W] -> [B, L, 2 size], in the dtype of its input.

    A state begins at zero with each packed sequence, so that a sequence is not told of its neighbours or of padding.
    Weights start as PyTorch's do, and with them a bias of 1 on the forget gate, as TensorFlow's cell has it.
    """

    def __init__(self, width: int, size: int, *, rngs: nnx.Rngs) -> None:
        bound = size**-0.5
        self.kernel = uniform(rngs, (width, 2, 4, size), ("embed", "directions", "gates", "state"), bound)
        self.recurrent = uniform(rngs, (2, size, 4, size), ("directions", "embed", "gates", "state"), bound)
        bias = jnp.zeros((2, 4, size), jnp.float32).at[:, _FORGET].set(1.0)
        self.bias = nnx.Param(bias, logical_axes=("directions", "gates", "state"))

    def __call__(self, x_BLW: jax.Array, sequence_ids: jax.Array) -> jax.Array:
        kernel, recurrent = self.kernel[...].astype(x_BLW.dtype), self.recurrent[...].astype(x_BLW.dtype)
        # What the inputs say to the gates does not depend on the state: one product for all of them.
        inputs = jnp.einsum("BLW,WTGH->LBTGH", x_BLW, kernel, preferred_element_type=jnp.float32) + self.bias[...]
        ids_LB = sequence_ids.T
        goes_on = jnp.stack([_goes_on(ids_LB), _goes_on(ids_LB[::-1])], axis=-1)

        def step(state: tuple[jax.Array, jax.Array], now: tuple[jax.Array, jax.Array]) -> tuple:
            inputs_BTGH, goes_on_BT = now
            h, c = (jnp.where(goes_on_BT[:, :, None], part, 0.0) for part in state)
            said = jnp.einsum("BTH,THGK->BTGK", h.astype(recurrent.dtype), recurrent)
            i, f, g, o = jnp.moveaxis(inputs_BTGH + said.astype(jnp.float32), 2, 0)
            c = jax.nn.sigmoid(f) * c + jax.nn.sigmoid(i) * jnp.tanh(g)
            h = jax.nn.sigmoid(o) * jnp.tanh(c)
            return (h, c), h

        zero = jnp.zeros((inputs.shape[1], *recurrent.shape[:2]), jnp.float32)
        _, states_LBTH = jax.lax.scan(step, (zero, zero), (_second_reversed(inputs), goes_on))
        both = _second_reversed(states_LBTH).swapaxes(0, 1)
        return both.reshape(*sequence_ids.shape, -1).astype(x_BLW.dtype)


def _goes_on(ids_LB: jax.Array) -> jax.Array:
    """Whether a place has the sequence id of the one before it: bool [L, B]."""
    return jnp.pad(ids_LB[1:] == ids_LB[:-1], ((1, 0), (0, 0)))


def _second_reversed(x_LBT: jax.Array) -> jax.Array:
    """[L, B, 2, ...] with the second direction's places the other way round."""
    return jnp.stack([x_LBT[:, :, 0], x_LBT[::-1, :, 1]], axis=2)
