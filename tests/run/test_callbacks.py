"""Merging the gradient metrics of callbacks."""

from __future__ import annotations

import jax.numpy as jnp
import pytest

from bertjax.run.callbacks import Callback, layer_norms, merge_gradient_metrics

GRADIENT = {"encoder": {"layers": {"kernel": jnp.ones((2, 3, 3))}}}


class Norms(Callback):
    def gradient_metrics(self, gradient):
        return layer_norms(gradient)


class Vector(Callback):
    def gradient_metrics(self, gradient):
        return {"norms": jnp.ones(2)}


def test_merged_gradient_metrics_are_scalars_with_own_names() -> None:
    assert merge_gradient_metrics([Callback()]) is None
    merged = merge_gradient_metrics([Callback(), Norms()])
    assert merged(GRADIENT) == {"gradient/layer_0": 3.0, "gradient/layer_1": 3.0}
    with pytest.raises(ValueError, match=r"Vector\.gradient_metrics: 'norms' has the shape \[2\]; return one scalar"):
        merge_gradient_metrics([Vector()])(GRADIENT)
    with pytest.raises(ValueError, match=r"Norms\.gradient_metrics: 'layer_0' is also a metric of another callback"):
        merge_gradient_metrics([Norms(), Norms()])(GRADIENT)
