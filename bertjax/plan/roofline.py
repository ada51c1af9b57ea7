"""The roofline of a step: the least time of each of its parts, each alone at the full rate of the chip.

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

from bertjax.plan.collectives import Collective
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
        members = [devices[place] for place in collective.group]
        near, far = _seconds(collective, members, topology, chip)
        interconnect += near * collective.times
        network += far * collective.times
    return Bound(flops_per_device / chip.flops, traffic / chip.memory_bandwidth, interconnect, network)


def _seconds(collective: Collective, members: Sequence[Any], topology: Topology, chip: Chip) -> tuple[float, float]:
    """Seconds within slices and between them, of one run of a collective."""
    twice = 2 if collective.kind == "all-reduce" else 1
    slices = collective.slices
    within = len(members) // slices
    near = far = 0.0
    if within > 1:
        local = members[:within] if slices > 1 else members
        near = twice * collective.payload * (within - 1) / within / _rate(local, topology, chip)
    if slices > 1:
        # What the slices exchange is spread over the network shares of the group's devices in each.
        far = twice * collective.payload * (slices - 1) / slices / within / chip.network
    return near, far


def _rate(members: Sequence[Any], topology: Topology, chip: Chip) -> float:
    """Bytes/s that each device of a group can send to others of it, within a slice."""
    if not chip.is_tpu:
        return chip.link
    places = [tuple(member.coords) for member in members]
    spread = [dim for dim in range(len(topology.wraps)) if len({place[dim] for place in places}) > 1]
    if not spread:
        return _DIE_TO_DIE * chip.link
    links = sum(_links([place[dim] for place in places], dim, topology) for dim in spread)
    return links * chip.link / chip.cores_of_a_chip


def _links(along: Sequence[int], dim: int, topology: Topology) -> float:
    """How many links along a dim a device of a group has for itself, by the group's places there."""
    places = sorted(set(along))
    extent = 1 + max(device.coords[dim] for device in topology.devices)
    is_ring = topology.wraps[dim] and len(places) == extent
    # What lies between the places of one group belongs to others, which use the same links.
    stride = min(after - before for before, after in itertools.pairwise(places))
    return (2 if is_ring else 1) / stride
