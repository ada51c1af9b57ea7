"""Distillation of a teacher's layers (TinyBERT, section 3.1), at every token but padding."""

from __future__ import annotations

from bertjax.input.targets.distil_cosine import EveryToken

TARGET = EveryToken("distil_layers_weights")
