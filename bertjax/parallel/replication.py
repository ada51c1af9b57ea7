"""Which parameters lie on more devices than need be, although the mesh could split them: the largest, and how much."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import jax
from jax.sharding import Mesh

# Biases and LayerNorms stay whole: 0.1 % of BERT-Base's parameters, 2 % of BERT-Tiny's.
ALLOWED_SHARE = 0.03
_NAMED = 5


@dataclass(frozen=True)
class Replicated:
    """Parameters that have copies on a mesh that splits weights; copies along `data` are meant to be."""

    share: float  # bytes of copies, of those that there are if nothing is split; 0 on a mesh that splits none
    largest: tuple[tuple[str, int], ...]  # path and bytes

    @property
    def is_much(self) -> bool:
        """Whether it is more than the vectors of a layer add up to."""
        return self.share > ALLOWED_SHARE

    def __str__(self) -> str:
        arrays = ", ".join(f"{path} ({size / 1e6:,.1f} MB)" for path, size in self.largest)
        return (
            f"{self.share:.1%} of the copies that the mesh could save are there, the largest of {arrays}; "
            "give their dims logical names that bertjax/parallel/sharding.py maps to a mesh axis"
        )


def replicated(params: Any, mesh: Mesh) -> Replicated:
    """Look at the shardings of parameters (arrays, or shapes with shardings)."""
    devices = mesh.shape["fsdp"] * mesh.shape["tensor"]
    if devices == 1:
        return Replicated(0.0, ())
    leaves = jax.tree_util.tree_leaves_with_path(params)
    sizes = {jax.tree_util.keystr(path, simple=True, separator="."): _bytes(leaf) for path, leaf in leaves}
    shards = [_shards(leaf) for _, leaf in leaves]
    copied = {name: size * (devices // n - 1) for (name, size), n in zip(sizes.items(), shards, strict=True)}
    largest = sorted((name for name in copied if copied[name]), key=lambda name: -copied[name])[:_NAMED]
    share = sum(copied.values()) / (sum(sizes.values()) * (devices - 1))
    return Replicated(share, tuple((name, sizes[name]) for name in largest))


def _shards(leaf: Any) -> int:
    """Into how many different parts an array is split."""
    return math.prod(leaf.shape) // math.prod(leaf.sharding.shard_shape(leaf.shape))


def _bytes(leaf: Any) -> int:
    return math.prod(leaf.shape) * leaf.dtype.itemsize
