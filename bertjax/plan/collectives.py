"""What the devices send each other in one step, read from the compiled program: how much, along which mesh axes."""

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
    """One instruction that makes devices exchange data, with how often a step runs it."""

    name: str
    kind: str  # one of KINDS
    payload: int  # bytes of the whole array: what is reduced, or what is there when it has been gathered
    largest: int  # bytes of the largest single array in it
    shapes: tuple[str, ...]
    times: int  # per step
    axes: tuple[str, ...]  # of the mesh
    group: tuple[int, ...]  # mesh indices of the devices that exchange, those of the first group
    slices: int  # that the group spreads over

    @property
    def moved(self) -> float:
        """Bytes that each device sends, at the least, every time."""
        return self.payload * sent_share(self.kind, len(self.group))


def sent_share(kind: str, devices: int) -> float:
    """Of an array, what each of so many devices sends to the others of its group, at the least."""
    if kind == "collective-permute":
        return 1  # whole, to another device
    return (devices - 1) / devices * (2 if kind == "all-reduce" else 1)


def collectives_of(module: Module, mesh: Mesh, slices: Sequence[int]) -> list[Collective]:
    """Every exchange between devices of a compiled step, in the program's order; `slices` by index in the mesh.

    Parts of one that runs in the background are counted once. Raises ValueError if devices are named in another way
    than is known here.
    """
    found = []
    for name, times in module.runs.items():
        computation = module.computations[name]
        for instruction in computation.values():
            kind = instruction.opcode.removesuffix("-start")
            if kind in KINDS and not _goes_on(instruction, computation):
                found.append(_collective(kind, instruction, computation, name in module.fused, times, mesh, slices))
            elif instruction.opcode == "send" and (between := _BETWEEN_SLICES.search(instruction.attributes)):
                found.append(_between_slices(between.group(1), instruction, times, mesh, slices))
    return [collective for collective in found if len(collective.group) > 1]


def _goes_on(instruction: Instruction, computation: Computation) -> bool:
    """Whether it only carries on what another instruction began: a TPU spreads a gather over several fusions."""
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
    if instruction.opcode.endswith("-start") and kind != "all-reduce":  # its result: what goes in, what comes out
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
    """What TPU slices exchange over the network is a send to the compiler, which the runtime answers."""
    kind = transfer.lower().replace("_", "-")
    group = tuple(slices.index(number) for number in sorted(set(slices)))  # one device in every slice
    payload = instruction.shapes[0].bytes * (len(group) if kind == "all-gather" else 1)
    shape = f"{instruction.shapes[0].dtype}{list(instruction.shapes[0].dims)}".replace(" ", "")
    return Collective(instruction.name, kind, payload, payload, (shape,), times, _axes(group, mesh), group, len(group))


def _is_sliced(computation: Computation) -> bool:
    """Whether it is the inside of a TPU's all-reduce-scatter fusion, which sends no more than a reduce-scatter."""
    (root,) = [one for one in computation.values() if one.is_root]
    return root.opcode == "dynamic-slice"


def _axes(group: Sequence[int], mesh: Mesh) -> tuple[str, ...]:
    """The mesh axes along which the devices of a group differ."""
    coordinates = np.array(np.unravel_index(np.array(group), mesh.devices.shape))
    return tuple(axis for axis, along in zip(mesh.axis_names, coordinates, strict=True) if len(set(along)) > 1)


def _first_group(instruction: Instruction, devices: int) -> tuple[int, ...]:
    """The devices that exchange with the first one, by their index in the mesh."""
    text = instruction.attributes
    if pairs := _PAIRS.search(text):
        source, target = pairs.group(1).strip("{}").split("},{")[0].split(",")
        return (int(source), int(target))
    if listed := _LISTED.search(text):
        inner = listed.group(1)
        return tuple(int(number) for number in inner.strip("{}").split("},{")[0].split(",")) if inner else _all(devices)
    if iota := _IOTA.search(text):
        shape, reshaped, order = iota.groups()
        groups = _iota(reshaped, order).reshape(int(shape.split(",")[0]), -1)
        return tuple(int(number) for number in groups[0])
    if named := _NAMED.search(text):
        axes, reshaped, order, together = named.groups()
        names = [axis.split("=")[0].strip() for axis in axes.split(",")]
        sizes = [int(axis.split("=")[1]) for axis in axes.split(",")]
        numbers = _iota(reshaped or str(devices), order).reshape(sizes)
        inside = {names.index(name.strip()) for name in together.split(",")}
        picked = numbers[tuple(slice(None) if i in inside else 0 for i in range(len(sizes)))]
        return tuple(int(number) for number in picked.reshape(-1))
    raise ValueError(
        f"the compiled program names the devices of {instruction.name} in a way that is not known here "
        f"({text[:160]}); this version of jax writes them otherwise"
    )


def _iota(shape: str, order: str | None) -> np.ndarray:
    """Numbers from 0 in a shape `4,2`, its dims in another order `1,0`."""
    sizes = [int(size) for size in shape.split(",")]
    numbers = np.arange(math.prod(sizes)).reshape(sizes)
    return numbers.transpose([int(dim) for dim in order.split(",")]) if order else numbers


def _all(devices: int) -> tuple[int, ...]:
    return tuple(range(devices))
