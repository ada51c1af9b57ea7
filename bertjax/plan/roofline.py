"""The roofline of a step: the bytes that it moves, and the least time of each part alone at the full rate of the chip.

Assumed: matmuls run at the data sheet's bf16 peak, main memory and links at theirs; latency costs nothing. A ring along
a dim of a TPU's torus uses its links in both directions where the dim closes and the group has all of it, in one where
not; groups that lie between each other share links; one that spreads over several dims uses the links of all. Between
slices (of GPUs: hosts) each device has its share of the network.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertjax.plan.collectives import Collective, sent_share
from bertjax.plan.hlo import Computation, Instruction, Module
from bertjax.plan.topologies import Chip, Topology

_DIE_TO_DIE = 6  # times a link: between the halves of a TPU7x chip (cloud.google.com/tpu/docs/tpu7x)


@dataclass(frozen=True)
class Bound:
    """Seconds of one step that each part takes at the least."""

    compute: float
    memory: float
    interconnect: float  # links within a slice, or a host of GPUs
    network: float  # between slices, or hosts of GPUs

    @property
    def overlapped(self) -> float:
        """The time if all parts overlap: that of the slowest."""
        return max(self.compute, self.memory, self.interconnect, self.network)

    @property
    def serial(self) -> float:
        """The time if communication overlaps with nothing, and compute overlaps with memory."""
        return max(self.compute, self.memory) + self.interconnect + self.network

    @property
    def limited_by(self) -> str:
        """The slowest part."""
        parts = {
            "compute": self.compute,
            "memory bandwidth": self.memory,
            "interconnect": self.interconnect,
            "network between slices": self.network,
        }
        return max(parts, key=parts.__getitem__)


def bound_of(
    flops_per_device: float,
    traffic: float,
    collectives: Sequence[Collective],
    devices: Sequence[Any],
    topology: Topology,
) -> Bound:
    """The bound of a step: FLOPs and bytes are those of one device, `devices` in the order of the mesh."""
    chip = topology.chip
    assert chip is not None, "a device of unknown speed has no bound"
    interconnect = network = 0.0
    for collective in collectives:
        members = [devices[index] for index in collective.group]
        near, far = _seconds(collective, members, topology, chip)
        interconnect += near * collective.times
        network += far * collective.times
    return Bound(flops_per_device / chip.flops, traffic / chip.memory_bandwidth, interconnect, network)


def _seconds(collective: Collective, members: Sequence[Any], topology: Topology, chip: Chip) -> tuple[float, float]:
    """Seconds within slices and between them, of one run of a collective."""
    kind, payload = collective.kind, collective.payload
    slices = collective.slices
    within = len(members) // slices
    near = far = 0.0
    if within > 1:
        local = members[:within] if slices > 1 else members
        near = payload * sent_share(kind, within) / _rate(local, topology, chip)
    if slices > 1:
        # What the slices exchange is spread over the network shares of the group's devices in each.
        far = payload * sent_share(kind, slices) / within / chip.network
    return near, far


def _rate(members: Sequence[Any], topology: Topology, chip: Chip) -> float:
    """Bytes/s that each device of a group can send to others of it, within a slice."""
    if not chip.is_tpu:
        return chip.link
    coordinates = [tuple(member.coords) for member in members]
    spread = [dim for dim in range(len(topology.wraps)) if len({one[dim] for one in coordinates}) > 1]
    if not spread:
        return _DIE_TO_DIE * chip.link
    links = sum(_links([one[dim] for one in coordinates], dim, topology) for dim in spread)
    return links * chip.link / chip.cores_of_a_chip


def _links(along: Sequence[int], dim: int, topology: Topology) -> float:
    """How many links along a dim a device of a group has for itself, by the group's coordinates there."""
    coordinates = sorted(set(along))
    extent = 1 + max(device.coords[dim] for device in topology.devices)
    is_ring = topology.wraps[dim] and len(coordinates) == extent
    # Devices between those of one group belong to other groups, which use the same links.
    stride = min(after - before for before, after in itertools.pairwise(coordinates))
    return (2 if is_ring else 1) / stride


_MOVES_NOTHING = {
    "parameter",
    "constant",
    "tuple",
    "get-tuple-element",
    "bitcast",
    "while",
    "conditional",
    "call",
    "after-all",
    "iota",
    "partition-id",
    "replica-id",
    "opt-barrier",
    "add-dependency",
}
_BOOKKEEPING = ("AllocateBuffer", "ConcatBitcast", "Sharding", "AsyncCollective", "BarrierStart", "BarrierDone")
_PICKS = ("dynamic-slice", "slice", "gather")
_PASSES = ("bitcast", "copy", "convert")  # inside a fusion only the elements that are needed are computed


def memory_traffic(module: Module) -> int:
    """Bytes read and written in one step by one device."""
    return sum(
        times * _moved(instruction, module.computations[name], module)
        for name, times in module.runs.items()
        if name not in module.fused
        for instruction in module.computations[name].values()
    )


def _moved(instruction: Instruction, computation: Computation, module: Module) -> int:
    opcode, operands = instruction.opcode, [computation[name] for name in instruction.operands if name in computation]
    if opcode in _MOVES_NOTHING or opcode.endswith("-start"):
        return 0
    if opcode == "call-done":
        return 0  # the called computation counts itself
    if opcode.endswith("-done"):  # of a copy between memories: what arrives
        return sum(shape.bytes for shape in instruction.shapes)
    if opcode == "custom-call" and any(word in instruction.attributes for word in _BOOKKEEPING):
        return 0
    if opcode == "fusion":
        inner = module.computations[instruction.called("calls")[0]]
        parameters = sorted((i for i in inner.values() if i.opcode == "parameter"), key=lambda i: int(i.literal))
        read = sum(
            min(_size(operand), _read(parameter, inner, module))
            for operand, parameter in zip(operands, parameters, strict=False)
        )
        return read + _written(instruction, inner)
    if opcode in _PICKS:
        return 2 * _size(instruction)
    if opcode == "dynamic-update-slice":
        return 2 * _size(operands[1])
    return _size(instruction) + sum(_size(operand) for operand in operands)


def _size(instruction: Instruction) -> int:
    """Bytes of a result in main memory."""
    return sum(shape.bytes for shape in instruction.shapes if shape.space == 0)


def _whole(instruction: Instruction) -> int:
    return sum(shape.bytes for shape in instruction.shapes)


def _read(parameter: Instruction, inner: Computation, module: Module) -> int:
    """Bytes that a fusion reads of one of its operands: all, unless it only picks slices, or overwrites one."""
    total = 0
    for user in inner.values():
        if parameter.name not in user.operands:
            continue
        operand = user.operands.index(parameter.name)
        if user.opcode in _PICKS and operand == 0:
            total += _whole(user)
        elif user.opcode == "dynamic-update-slice" and operand == 0:
            continue
        elif _passes(user, operand, module):
            if user.is_root:
                return _whole(parameter)
            total += _read(user, inner, module)
        elif user.opcode == "fusion":
            nested = module.computations[user.called("calls")[0]]
            deeper = next(i for i in nested.values() if i.opcode == "parameter" and int(i.literal) == operand)
            total += _read(deeper, nested, module)
        else:
            return _whole(parameter)
    return total


def _passes(user: Instruction, operand: int, module: Module) -> bool:
    """Whether a part of its result takes no more than the same part of operand number `operand`."""
    if user.opcode != "fusion":
        return user.opcode in _PASSES
    nested = module.computations[user.called("calls")[0]]
    (made,) = [instruction for instruction in nested.values() if instruction.is_root]
    while made.opcode in _PASSES:
        made = nested[made.operands[0]]
    return made.opcode == "parameter" and int(made.literal) == operand


def _written(fusion: Instruction, inner: Computation) -> int:
    """Bytes that a fusion writes: its results, of which one made by overwriting a slice counts as the slice."""
    (root,) = [instruction for instruction in inner.values() if instruction.is_root]
    made = [inner[name] for name in root.operands] if root.opcode == "tuple" else [root]
    if len(made) != len(fusion.shapes):
        return _size(fusion)
    written = 0
    for shape, instruction in zip(fusion.shapes, made, strict=True):
        while instruction.opcode == "bitcast" and instruction.operands[0] in inner:
            instruction = inner[instruction.operands[0]]
        if shape.space:
            continue
        is_update = instruction.opcode == "dynamic-update-slice"
        written += _whole(inner[instruction.operands[1]]) if is_update else shape.bytes
    return written
