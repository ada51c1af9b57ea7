"""Logical names of dims and the mesh axes that split them: one table, and the functions that read it."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np
from flax import nnx
from jax.sharding import AbstractMesh, Mesh, NamedSharding
from jax.sharding import PartitionSpec as P

from bertjax.config import ModelConfig, TrainingConfig
from bertjax.parallel.mesh import BATCH_AXES, batch_shards, row_parts

# The only table of shardings. An unknown name is an error, not "replicated".
RULES: dict[str, str | tuple[str, ...] | None] = {
    # weights
    "vocab": "tensor",
    "embed": "fsdp",
    "mlp": "tensor",
    "heads": "tensor",
    "head_dim": None,
    "layers": None,
    "hidden": None,  # a hidden-sized dim kept whole: vectors too small to gather, the second dim of square matrices
    "position": None,
    "token_type": None,
    "classes": None,
    "directions": None,
    "gates": None,
    "halves": None,
    "state": None,
    "taps": None,
    # activations
    "act_batch": BATCH_AXES,
    "act_length": "length",
    "act_embed": None,
    "act_heads": "tensor",
    "act_mlp": "tensor",
    "act_vocab": ("tensor", "length"),
    # inside attention, where rows are whole and `length` splits heads instead of tokens
    "row_length": None,
    "row_heads": ("tensor", "length"),
}


def spec(names: tuple[str, ...]) -> P:
    """The PartitionSpec of an array whose dims carry these logical names."""
    axes = [RULES[name] for name in names]
    # A mesh axis may split one dim only: in a square matrix [embed, embed] the first.
    return P(*[axis if axis is None or axis not in axes[:i] else None for i, axis in enumerate(axes)])


def _activation_spec(mesh: AbstractMesh, names: tuple[str, ...], shape: tuple[int, ...]) -> P:
    """The spec of an activation without the batch axes: an axis splits one dim, and `length` only one it divides."""
    taken: set[str] = set(BATCH_AXES)
    dims = []
    for axes, size in zip(spec(names), shape, strict=True):
        free = [axis for axis in in_tuple(axes) if axis in mesh.shape and axis not in taken]
        if "length" in free and size % math.prod(mesh.shape[axis] for axis in free):
            free.remove("length")
        taken.update(free)
        dims.append(tuple(free) or None)
    return P(*dims)


def in_tuple(axes: str | tuple[str, ...] | None) -> tuple[str, ...]:
    """The axes of one dim of a PartitionSpec, as a tuple."""
    return axes if isinstance(axes, tuple) else () if axes is None else (axes,)


def constrain(x: jax.Array, *names: str) -> jax.Array:
    """Constrain the sharding of an activation by the logical names of its dims.

    Must be called under `jax.set_mesh`. The batch axes are left out: the step is written per shard of the batch.
    """
    mesh = jax.sharding.get_abstract_mesh()
    if mesh.empty:
        return x
    return jax.lax.with_sharding_constraint(x, _activation_spec(mesh, names, x.shape))


def tensors_are_whole() -> bool:
    """Whether the current mesh leaves tensors whole, so that any of their dims can be joined."""
    return jax.sharding.get_abstract_mesh().shape.get("tensor", 1) == 1 and rows_are_whole()


def rows_are_whole() -> bool:
    """Whether the current mesh leaves rows whole."""
    return "length" not in jax.sharding.get_abstract_mesh().shape


def devices_along(name: str) -> int:
    """How many devices of the current mesh split a dim of an activation with this logical name."""
    shape = jax.sharding.get_abstract_mesh().shape
    return math.prod(shape.get(axis, 1) for axis in in_tuple(RULES[name]))


def logical_axes(state: nnx.State) -> dict[str, Any]:
    """The parameter tree with each array replaced by the tuple of its dims' logical names.

    Parameters below a node named `layers`, a stack of layers or of shared groups, have the stack's dim in front.
    """
    tree: dict[str, Any] = {}
    for path, variable in nnx.to_flat_state(state):
        node: dict[Any, Any] = tree
        for part in path[:-1]:
            node = node.setdefault(part, {})
        names = variable.get_metadata()["logical_axes"]
        node[path[-1]] = ("layers", *names) if "layers" in path else names
    return tree


def named_shardings(mesh: Mesh | AbstractMesh, logical_axes: Any) -> Any:
    """NamedShardings for a tree whose leaves are tuples of logical names."""
    return jax.tree.map(lambda names: NamedSharding(mesh, spec(names)), logical_axes, is_leaf=is_names)


def is_names(x: Any) -> bool:
    """Whether a tree node is a tuple of logical names, which is a leaf."""
    return isinstance(x, tuple) and all(isinstance(name, str) for name in x)


def batch_sharding(mesh: Mesh) -> NamedSharding:
    """The sharding of a batch: rows over the batch axes, no other dim."""
    return NamedSharding(mesh, P(BATCH_AXES))


def local_rows(mesh: Mesh, global_batch_size: int) -> np.ndarray:
    """The rows of each global batch that this process's devices hold, ascending: int64 [rows]."""
    index_map = batch_sharding(mesh).addressable_devices_indices_map((global_batch_size,))
    everything = np.arange(global_batch_size)
    return np.unique(np.concatenate([everything[index] for index in index_map.values()]))


def to_global(mesh: Mesh, local_batch: dict[str, np.ndarray]) -> dict[str, jax.Array]:
    """Make arrays sharded over the whole mesh from this process's rows of a batch; all shards have the same size."""
    sharding, here = batch_sharding(mesh), len(local_shards(mesh))

    def global_shape(rows: np.ndarray) -> tuple[int, ...]:
        assert len(rows) % here == 0, "shards of unequal size"
        return len(rows) // here * batch_shards(mesh), *rows.shape[1:]

    return {
        key: jax.make_array_from_process_local_data(sharding, rows, global_shape(rows))
        for key, rows in local_batch.items()
    }


@functools.cache
def local_shards(mesh: Mesh) -> np.ndarray:
    """Which shards of each batch this process's devices hold, ascending: int64 [shards]."""
    return local_rows(mesh, batch_shards(mesh))


def put_on_devices(tree: Any, shardings: Any) -> Any:
    """Shard arrays that every process holds whole: each device takes its part."""

    def put(array: Any, sharding: NamedSharding) -> jax.Array:
        whole = np.asarray(array)
        return jax.make_array_from_callback(whole.shape, sharding, lambda index: whole[index])

    return jax.tree.map(put, tree, shardings)


def accumulation_key(stage: int) -> str:
    """The command-line option for a stage's number of microbatches."""
    section = f"--stages.{stage - 1}" if stage else "--training"
    return f"{section}.grad-accum-steps"


def microbatch_counts(training: TrainingConfig, shards: int) -> Iterator[int]:
    """Every number of microbatches that splits the batch evenly over `shards`, smallest first."""
    rows = training.global_batch_size
    yield from (count for count in range(1, rows // shards + 1) if rows % (count * shards) == 0)


def most_microbatches(training: TrainingConfig, shards: int) -> int | None:
    """The most microbatches, up to `grad_accum_steps`, whose rows the shards share evenly; None if there is none."""
    rows, remainder = divmod(training.global_batch_size, shards)
    counts = range(min(training.microbatches, rows), 0, -1)
    return None if remainder else next((count for count in counts if rows % count == 0), None)


def check_divisible(
    mesh: Mesh, model: ModelConfig, training: TrainingConfig, padded_vocab_size: int, stage: int = 0, whose: str = ""
) -> None:
    """Refuse a mesh that cannot split the batch of a stage (its number, from 0) or the weights evenly.

    `whose` names the network in messages, if it is not the model.
    Raises ValueError naming the key, its value, the mesh axis and what to change.
    """
    shards = batch_shards(mesh)
    prefix = f"stage {stage + 1}: " if stage else ""
    if training.grad_accum_steps == "auto":
        if training.global_batch_size % shards:
            raise ValueError(
                f"{prefix}training.global_batch_size={training.global_batch_size} cannot be shared evenly by data x "
                f"fsdp = {shards} devices; use a multiple of {shards}{_or_split_rows(training, shards)}"
            )
    elif (rows := training.rows_at_a_time) % shards:
        most = most_microbatches(training, shards)
        fewer = f", or at most {most} microbatches: {accumulation_key(stage)} {most}" if most else ""
        raise ValueError(
            f"{prefix}training.global_batch_size={training.global_batch_size} with "
            f"training.grad_accum_steps={training.grad_accum_steps} gives {rows} rows at a time, which "
            f"data x fsdp = {shards} devices cannot share evenly; "
            f"use a batch size that is a multiple of {shards * training.grad_accum_steps}"
            f"{fewer or _or_split_rows(training, shards)}"
        )
    for key, value, axis in divided_sizes(model, padded_vocab_size):
        if value % (size := mesh.shape[axis]):
            key = _key(key, whose)
            raise ValueError(f"{key}={value} is not divisible by mesh.{axis}={size}; choose a divisor of {value}")


def _or_split_rows(training: TrainingConfig, shards: int) -> str:
    """Advise to split rows over devices, if a step has too few rows."""
    parts = shards // math.gcd(shards, training.global_batch_size)
    return f", or let {parts} devices share each row: --mesh.length {parts}"


def _key(key: str, whose: str) -> str:
    """The name of a network's setting in messages."""
    return f"the {whose} {key.removeprefix('model.').removeprefix('the ')}" if whose else key


# Options whose attention or recurrence does not support split rows.
_NEED_WHOLE_ROWS = ("global_tokens", "attention_block", "score_bias_buckets", "conv_kernel", "lstm_size")


def check_rows_split(
    mesh: Mesh | AbstractMesh, model: ModelConfig, sequence_length: int, stage: int = 0, whose: str = ""
) -> None:
    """Refuse a mesh that cannot split the rows of a stage along `length`; `whose` as in `check_divisible`.

    Raises ValueError naming the key, its value and what to change.
    """
    size, prefix = row_parts(mesh), f"stage {stage + 1}: " if stage else ""
    if size == 1:
        return
    if sequence_length % size:
        raise ValueError(
            f"{prefix}data.sequence_length={sequence_length} is not divisible by mesh.length={size}; choose a divisor "
            f"of {sequence_length}"
        )
    for key in _NEED_WHOLE_ROWS:
        if (value := getattr(model, key)) not in (0, "none"):
            key = _key(f"model.{key}", whose)
            raise ValueError(f"{key}={value!r} needs whole rows and excludes mesh.length={size}; set mesh.length to 1")
    if model.position_embedding != "relative":
        return
    # XLA's partitioner aborts on a gather of distances along both axes (jax 0.10.2).
    if (tensor := mesh.shape["tensor"]) > 1:
        raise ValueError(
            f"mesh.tensor={tensor} with relative positions excludes mesh.length={size}; set one of them to 1"
        )
    if (heads := model.num_attention_heads) % size:
        key = _key("model.num_attention_heads", whose)
        raise ValueError(
            f"{key}={heads} with relative positions is not divisible by mesh.length={size}; choose a divisor of {heads}"
        )


def divided_sizes(model: ModelConfig, padded_vocab_size: int) -> list[tuple[str, int, str]]:
    """List the weight sizes that a mesh axis must divide: (name in messages, size, axis)."""
    sizes = [
        ("model.hidden_size", model.hidden_size, "fsdp"),
        ("model.num_attention_heads", model.num_attention_heads, "tensor"),
        ("model.num_key_value_heads", model.num_key_value_heads, "tensor"),
        ("model.intermediate_size", model.intermediate_size, "tensor"),
        ("the padded vocabulary (see model.vocab_pad_multiple)", padded_vocab_size, "tensor"),
        ("model.embedding_size", model.embedding_size, "fsdp"),
        ("model.lstm_size", model.lstm_size, "fsdp"),
        ("model.mlm_inner_size", model.mlm_inner_size, "fsdp"),
    ]
    return [entry for entry in sizes if entry[1]]


# On a CPU the activations of more tokens exceed the caches, and their buffers are mapped and cleared in every call:
# MiniLM on texts of 192 tokens takes 2.3 times as long with 8192 as with 2048, and no less with 512.
_CPU_TOKENS, _ACCELERATOR_TOKENS = 2048, 8192


def tokens_at_once(mesh: Mesh) -> int:
    """The default number of tokens, padding included, that one device of the mesh computes at once."""
    return _CPU_TOKENS if mesh.devices.flat[0].platform == "cpu" else _ACCELERATOR_TOKENS


def power_of_two_below(number: int) -> int:
    """The largest power of two up to `number` (at least 1); used to limit the number of compiled shapes."""
    return 1 << (number.bit_length() - 1)


# Biases and LayerNorms stay whole: 0.1 % of BERT-Base's parameters, 2 % of BERT-Tiny's.
ALLOWED_SHARE = 0.03
_LISTED = 5  # arrays in a message


@dataclass(frozen=True)
class Replicated:
    """Parameters with copies on a mesh that splits weights. Copies along `data` are intended and not counted."""

    share: float  # bytes of copies / bytes of copies if nothing were split; 0 on a mesh that splits no weights
    largest: tuple[tuple[str, int], ...]  # path and bytes

    @property
    def is_much(self) -> bool:
        """Whether more is replicated than biases and LayerNorms."""
        return self.share > ALLOWED_SHARE

    def __str__(self) -> str:
        arrays = ", ".join(f"{path} ({size / 1e6:,.1f} MB)" for path, size in self.largest)
        return (
            f"{self.share:.1%} of the avoidable copies of parameters exist, most of them of {arrays}; "
            "give their dims logical names that bertjax/parallel/sharding.py maps to a mesh axis"
        )


def replicated(params: Any, mesh: Mesh) -> Replicated:
    """Find replicated parameters (arrays, or shapes with shardings)."""
    devices = mesh.shape["fsdp"] * mesh.shape["tensor"]
    if devices == 1:
        return Replicated(0.0, ())
    leaves = jax.tree_util.tree_leaves_with_path(params)
    sizes = {
        jax.tree_util.keystr(path, simple=True, separator="."): math.prod(leaf.shape) * leaf.dtype.itemsize
        for path, leaf in leaves
    }
    shards = [_shards(leaf) for _, leaf in leaves]
    copy_bytes = {name: size * (devices // n - 1) for (name, size), n in zip(sizes.items(), shards, strict=True)}
    largest = sorted((name for name in copy_bytes if copy_bytes[name]), key=lambda name: -copy_bytes[name])[:_LISTED]
    share = sum(copy_bytes.values()) / (sum(sizes.values()) * (devices - 1))
    return Replicated(share, tuple((name, sizes[name]) for name in largest))


def device_bytes(tree: Any) -> int:
    """The bytes of one device's shards of a tree of arrays, or of shapes with shardings."""
    return sum(math.prod(x.sharding.shard_shape(x.shape)) * x.dtype.itemsize for x in jax.tree.leaves(tree))


def _shards(leaf: Any) -> int:
    """The number of distinct shards of an array."""
    return math.prod(leaf.shape) // math.prod(leaf.sharding.shard_shape(leaf.shape))
