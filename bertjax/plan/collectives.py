"""Collectives of one step, read from the compiled program: how many bytes, along which mesh axes."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from jax.sharding import Mesh

from bertjax.plan.hlo import Computation, Instruction, Module

KINDS = ("all-reduce", "all-gather", "reduce-scatter", "all-to-all", "collective-permute", "collective-broadcast")
_LISTED = re.compile(r"replica_groups=\{(\{[\d,{}]*\})?\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_NAMED = re.compile(
    r"replica_groups=mesh\[([^\]]*)\](?:, device_ids=\(\[([\d,]+)\](?:T\(([\d,]+)\))?\))? *\{([^}:]*)\}"
)
_BETWEEN_SLICES = re.compile(r'_xla_megascale_transfer_type="(\w+)"')
_PAIRS = re.compile(r"source_target_pairs=\{([\d,{}]*)\}")


@dataclass(frozen=True)
class Collective:
    """One instruction that exchanges data between devices, and how often a step runs it."""

    name: str
    kind: str  # one of KINDS
    payload: int  # bytes of the whole array, reduced or after gathering
    largest: int  # bytes of the largest single array in it
    shapes: tuple[str, ...]
    times: int  # runs per step
    axes: tuple[str, ...]  # mesh axes
    group: tuple[int, ...]  # mesh indices of the devices in the first group
    slices: int  # slices that the group spans

    @property
    def moved(self) -> float:
        """The least bytes that each device sends in each run."""
        return self.payload * min_sent_share(self.kind, len(self.group))


def min_sent_share(kind: str, devices: int) -> float:
    """Return the least share of an array that each device sends to the others in its group."""
    if kind == "collective-permute":
        return 1  # whole, to another device
    return (devices - 1) / devices * (2 if kind == "all-reduce" else 1)


def find_collectives(module: Module, mesh: Mesh, slices: Sequence[int]) -> list[Collective]:
    """Return the collectives of a compiled step in program order; `slices` are indexed like the mesh.

    An asynchronous collective is counted once. Raises ValueError if the program names devices in an unknown way.
    """
    collectives = []
    for name, times in module.runs.items():
        computation = module.computations[name]
        for instruction in computation.values():
            kind = instruction.opcode.removesuffix("-start")
            if kind in KINDS and not _continues_another(instruction, computation):
                collectives.append(
                    _collective(kind, instruction, computation, name in module.fused, times, mesh, slices)
                )
            elif instruction.opcode == "send" and (between := _BETWEEN_SLICES.search(instruction.attributes)):
                collectives.append(_between_slices(between.group(1), instruction, times, mesh, slices))
    return [collective for collective in collectives if len(collective.group) > 1]


def _continues_another(instruction: Instruction, computation: Computation) -> bool:
    """Return whether the instruction continues another one: a TPU spreads a gather over several fusions."""
    return "chain_id=" in instruction.attributes and not any(
        'custom_call_target="AsyncCollectiveStart"' in other.attributes for other in computation.values()
    )


def _collective(
    kind: str,
    instruction: Instruction,
    computation: Computation,
    is_fused: bool,
    times: int,
    mesh: Mesh,
    slices: Sequence[int],
) -> Collective:
    group = _first_group(instruction, mesh.devices.size)
    shapes = instruction.shapes
    if instruction.opcode.endswith("-start") and kind != "all-reduce":  # its result is (inputs, outputs)
        shapes = shapes[len(instruction.operands) : 2 * len(instruction.operands)]
    payload, largest = sum(shape.bytes for shape in shapes), max((shape.bytes for shape in shapes), default=0)
    if kind == "reduce-scatter":
        payload, largest = payload * len(group), largest * len(group)
    elif kind == "all-reduce" and is_fused and _is_sliced(computation):
        kind = "reduce-scatter"
    return Collective(
        name=instruction.name,
        kind=kind,
        payload=payload,
        largest=largest,
        shapes=tuple(f"{shape.dtype}{list(shape.dims)}".replace(" ", "") for shape in shapes),
        times=times,
        axes=_axes(group, mesh),
        group=group,
        slices=len({slices[number] for number in group}),
    )


def _between_slices(
    transfer: str, instruction: Instruction, times: int, mesh: Mesh, slices: Sequence[int]
) -> Collective:
    """Describe an exchange between TPU slices, which the compiler shows as a send that the runtime answers."""
    kind = transfer.lower().replace("_", "-")
    group = tuple(slices.index(number) for number in sorted(set(slices)))  # one device in every slice
    payload = instruction.shapes[0].bytes * (len(group) if kind == "all-gather" else 1)
    shape = f"{instruction.shapes[0].dtype}{list(instruction.shapes[0].dims)}".replace(" ", "")
    return Collective(instruction.name, kind, payload, payload, (shape,), times, _axes(group, mesh), group, len(group))


def _is_sliced(computation: Computation) -> bool:
    """Return whether this is the body of a TPU's all-reduce-scatter fusion, which sends as much as a reduce-scatter."""
    (root,) = [one for one in computation.values() if one.is_root]
    return root.opcode == "dynamic-slice"


def _axes(group: Sequence[int], mesh: Mesh) -> tuple[str, ...]:
    """Return the mesh axes along which the devices of a group differ."""
    coordinates = np.array(np.unravel_index(np.array(group), mesh.devices.shape))
    return tuple(axis for axis, along in zip(mesh.axis_names, coordinates, strict=True) if len(set(along)) > 1)


def _first_group(instruction: Instruction, devices: int) -> tuple[int, ...]:
    """Return the group of the first device, as mesh indices."""
    text = instruction.attributes
    if pairs := _PAIRS.search(text):
        source, target = pairs.group(1).strip("{}").split("},{")[0].split(",")
        return (int(source), int(target))
    if match := _LISTED.search(text):
        if match.group(1) is None:  # one group of all devices
            return tuple(range(devices))
        return tuple(int(number) for number in match.group(1).strip("{}").split("},{")[0].split(","))
    if iota := _IOTA.search(text):
        shape, reshaped, order = iota.groups()
        groups = _iota(reshaped, order).reshape(int(shape.split(",")[0]), -1)
        return tuple(int(number) for number in groups[0])
    if named := _NAMED.search(text):
        axes, reshaped, order, group_axes = named.groups()
        names = [axis.split("=")[0].strip() for axis in axes.split(",")]
        sizes = [int(axis.split("=")[1]) for axis in axes.split(",")]
        numbers = _iota(reshaped or str(devices), order).reshape(sizes)
        dims = {names.index(name.strip()) for name in group_axes.split(",")}
        group = numbers[tuple(slice(None) if dim in dims else 0 for dim in range(len(sizes)))]
        return tuple(int(number) for number in group.reshape(-1))
    raise ValueError(
        f"the compiled program names the devices of {instruction.name} in an unknown format ({text[:160]}); this "
        "version of jax is not supported by bertjax plan"
    )


def _iota(shape: str, order: str | None) -> np.ndarray:
    """Return arange in a shape such as `4,2`, transposed by an order such as `1,0`."""
    sizes = [int(size) for size in shape.split(",")]
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    return numbers.transpose([int(dim) for dim in order.split(",")]) if order else numbers
