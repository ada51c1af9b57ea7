"""Which parameters every device holds whole although the mesh could split them: the largest, and how much it is."""

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
    """Parameters that lie whole on every device of a mesh that splits weights."""

    share: float  # of the bytes of all parameters; 0 on a mesh that splits none
    largest: tuple[tuple[str, int], ...]  # path and bytes

    @property
    def is_much(self) -> bool:
        """Whether it is more than the vectors of a layer add up to."""
        return self.share > ALLOWED_SHARE

    def __str__(self) -> str:
        arrays = ", ".join(f"{path} ({size / 1e6:,.1f} MB)" for path, size in self.largest)
        return (
            f"{self.share:.1%} of the parameters lie whole on every device, the largest are {arrays}; give their dims "
            "logical names that bertjax/parallel/sharding.py maps to a mesh axis"
        )


def replicated(params: Any, mesh: Mesh) -> Replicated:
    """Look at the shardings of parameters (arrays, or shapes with shardings)."""
    if mesh.shape["fsdp"] * mesh.shape["tensor"] == 1:
        return Replicated(0.0, ())
    leaves = jax.tree_util.tree_leaves_with_path(params)
    sizes = {jax.tree_util.keystr(path, simple=True, separator="."): _bytes(leaf) for path, leaf in leaves}
    whole = {
        name: size
        for (name, size), (_, leaf) in zip(sizes.items(), leaves, strict=True)
        if leaf.sharding.shard_shape(leaf.shape) == tuple(leaf.shape)
    }
    largest = sorted(whole.items(), key=lambda item: -item[1])[:_NAMED]
    return Replicated(sum(whole.values()) / sum(sizes.values()), tuple(largest))


def _bytes(leaf: Any) -> int:
    return math.prod(leaf.shape) * leaf.dtype.itemsize
