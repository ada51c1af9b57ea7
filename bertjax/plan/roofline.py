"""The roofline of a step: the bytes that it moves, and the least time of each part at the chip's full rate.

Assumptions: matmuls, main memory and links run at the peak of the data sheet, and latency is free. A ring along a dim
of a TPU's torus uses its links in both directions if the dim closes and the group spans it, else in one; interleaved
groups share links; a group over several dims uses the links of all of them. Between slices (for GPUs: hosts) each
device has its share of the network.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from bertjax.plan.collectives import Collective, min_sent_share
from bertjax.plan.hlo import Computation, Instruction, Module
from bertjax.plan.topologies import Chip, Topology

_DIE_TO_DIE = 6  # links: between the halves of a TPU7x chip (cloud.google.com/tpu/docs/tpu7x)


@dataclass(frozen=True)
class Bound:
    """Least seconds of each part of one step."""

    compute: float
    memory: float
    interconnect: float  # links within a slice, or a host of GPUs
    network: float  # between slices, or hosts of GPUs

    @property
    def overlapped(self) -> float:
        """The time if all parts overlap: the slowest part's."""
        return max(self.compute, self.memory, self.interconnect, self.network)

    @property
    def serial(self) -> float:
        """The time if communication overlaps with nothing and compute overlaps with memory traffic."""
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


def step_bound(
    flops_per_device: float,
    traffic: float,
    collectives: Sequence[Collective],
    devices: Sequence[Any],
    topology: Topology,
) -> Bound:
    """Return the bound of a step. FLOPs and bytes are per device; `devices` are in mesh order."""
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
    """Return the seconds of one collective within slices and between them."""
    kind, payload = collective.kind, collective.payload
    slices = collective.slices
    within = len(members) // slices
    near = far = 0.0
    if within > 1:
        local = members[:within] if slices > 1 else members
        near = payload * min_sent_share(kind, within) / _rate(local, topology, chip)
    if slices > 1:
        # The exchange between slices uses the network shares of all devices of the group in a slice.
        far = payload * min_sent_share(kind, slices) / within / chip.network
    return near, far


def _rate(members: Sequence[Any], topology: Topology, chip: Chip) -> float:
    """Return the bytes/s that each device can send to its group within a slice."""
    if not chip.is_tpu:
        return chip.link
    coordinates = [tuple(member.coords) for member in members]
    spread = [dim for dim in range(len(topology.wraps)) if len({one[dim] for one in coordinates}) > 1]
    if not spread:
        return _DIE_TO_DIE * chip.link
    links = sum(_links([one[dim] for one in coordinates], dim, topology) for dim in spread)
    return links * chip.link / chip.cores_of_a_chip


def _links(along: Sequence[int], dim: int, topology: Topology) -> float:
    """Return the number of links along a dim that each device of a group has, by the group's coordinates."""
    coordinates = sorted(set(along))
    extent = 1 + max(device.coords[dim] for device in topology.devices)
    is_ring = topology.wraps[dim] and len(coordinates) == extent
    # Devices in between belong to other groups, which use the same links.
    stride = min(after - before for before, after in itertools.pairwise(coordinates))
    return (2 if is_ring else 1) / stride


_NO_TRAFFIC = {
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
_SLICES = ("dynamic-slice", "slice", "gather")
_ELEMENTWISE = ("bitcast", "copy", "convert")  # in a fusion, only the needed elements are computed


def memory_traffic(module: Module) -> int:
    """Return the bytes that one device reads and writes in one step."""
    return sum(
        times * instruction_traffic(instruction, module.computations[name], module)
        for name, times in module.runs.items()
        if name not in module.fused
        for instruction in module.computations[name].values()
    )


def instruction_traffic(instruction: Instruction, computation: Computation, module: Module) -> int:
    """Return the bytes that an instruction reads and writes when it runs once."""
    opcode, operands = instruction.opcode, [computation[name] for name in instruction.operands if name in computation]
    if opcode in _NO_TRAFFIC or opcode.endswith("-start"):
        return 0
    if opcode == "call-done":
        return 0  # the called computation counts itself
    if opcode.endswith("-done"):  # a copy between memories counts when it arrives
        return sum(shape.bytes for shape in instruction.shapes)
    if opcode == "custom-call" and any(word in instruction.attributes for word in _BOOKKEEPING):
        return 0
    if opcode == "fusion":
        inner = module.computations[instruction.called("calls")[0]]
        parameters = sorted((i for i in inner.values() if i.opcode == "parameter"), key=lambda i: int(i.literal))
        read = sum(
            min(_size(operand), _bytes_read(parameter, inner, module))
            for operand, parameter in zip(operands, parameters, strict=False)
        )
        return read + _bytes_written(instruction, inner)
    if opcode in _SLICES:
        return 2 * _size(instruction)
    if opcode == "dynamic-update-slice":
        return 2 * _size(operands[1])
    return _size(instruction) + sum(_size(operand) for operand in operands)


def _size(instruction: Instruction) -> int:
    """Return the bytes of a result in main memory."""
    return sum(shape.bytes for shape in instruction.shapes if shape.space == 0)


def _total_bytes(instruction: Instruction) -> int:
    return sum(shape.bytes for shape in instruction.shapes)


def _bytes_read(parameter: Instruction, inner: Computation, module: Module) -> int:
    """Return the bytes of an operand that a fusion reads: all, unless it reads slices or overwrites one."""
    total = 0
    for user in inner.values():
        if parameter.name not in user.operands:
            continue
        operand = user.operands.index(parameter.name)
        if user.opcode in _SLICES and operand == 0:
            total += _total_bytes(user)
        elif user.opcode == "dynamic-update-slice" and operand == 0:
            continue
        elif _is_elementwise(user, operand, module):
            if user.is_root:
                return _total_bytes(parameter)
            total += _bytes_read(user, inner, module)
        elif user.opcode == "fusion":
            nested = module.computations[user.called("calls")[0]]
            deeper = next(i for i in nested.values() if i.opcode == "parameter" and int(i.literal) == operand)
            total += _bytes_read(deeper, nested, module)
        else:
            return _total_bytes(parameter)
    return total


def _is_elementwise(user: Instruction, operand: int, module: Module) -> bool:
    """Return whether each element of the result needs only the same element of operand number `operand`."""
    if user.opcode != "fusion":
        return user.opcode in _ELEMENTWISE
    nested = module.computations[user.called("calls")[0]]
    (source,) = [instruction for instruction in nested.values() if instruction.is_root]
    while source.opcode in _ELEMENTWISE:
        source = nested[source.operands[0]]
    return source.opcode == "parameter" and int(source.literal) == operand


def _bytes_written(fusion: Instruction, inner: Computation) -> int:
    """Return the bytes that a fusion writes: its results, but of an array updated in place only the slice."""
    (root,) = [instruction for instruction in inner.values() if instruction.is_root]
    results = [inner[name] for name in root.operands] if root.opcode == "tuple" else [root]
    if len(results) != len(fusion.shapes):
        return _size(fusion)
    total = 0
    for shape, instruction in zip(fusion.shapes, results, strict=True):
        while instruction.opcode == "bitcast" and instruction.operands[0] in inner:
            instruction = inner[instruction.operands[0]]
        if shape.space:
            continue
        is_update = instruction.opcode == "dynamic-update-slice"
        total += _total_bytes(inner[instruction.operands[1]]) if is_update else shape.bytes
    return total
