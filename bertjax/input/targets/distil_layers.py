"""Layers of a teacher (TinyBERT, section 3.1), compared at every token but padding."""

from __future__ import annotations

from bertjax.input.targets.distil_cosine import EveryToken

TARGET = EveryToken("distil_layers_weights")
