"""What the chips are that a plan may be for: one table, with where its figures come from.

TPU figures: cloud.google.com/tpu/docs (v4, v5e, v5p, v6e, tpu7x: "key specifications") and "How to Scale Your Model"
(jax-ml.github.io/scaling-book, chapter "TPUs": bandwidth of a link, and of the data-centre network per chip). What the
compiler may use of a TPU's memory is what it says itself when a program is too large. GPU figures: NVIDIA's data sheets
of H100 SXM, H200 SXM and HGX B200. Matmul peaks stand in bertjax/training/flops.py.
"""

from __future__ import annotations

import os
from dataclasses import dataclass

GIB = 1 << 30
_GPU_SHARE = 0.75  # of its memory is what jax takes unless XLA_PYTHON_CLIENT_MEM_FRACTION says otherwise


@dataclass(frozen=True)
class Chip:
    """What one jax device of a kind has; sizes in bytes, rates in bytes/s."""

    name: str
    device_kind: str  # as jax calls it
    memory: float
    memory_bandwidth: float
    link: float  # one direction of one link of a TPU's torus; of a GPU all of its NVLinks, one direction
    dims: int  # of the torus; 0 for a switch
    network: float  # this device's share of its host's network, one direction
    cores_of_a_chip: int = 1  # jax devices that share a chip and its links

    @property
    def flops(self) -> float:
        """Dense bf16 FLOP/s."""
        from bertjax.training.flops import peak_flops  # which imports jax: names are read before that may be

        peak = peak_flops(self.device_kind)
        assert peak is not None, f"flops.py has no peak for {self.device_kind}"
        return peak

    @property
    def is_tpu(self) -> bool:
        """Whether it is a TPU; else it is a GPU."""
        return self.dims > 0

    @property
    def usable(self) -> float:
        """Bytes that a program may use."""
        return self.memory if self.is_tpu else self.memory * gpu_memory_share()


def gpu_memory_share() -> float:
    """The share of a GPU's memory that jax takes."""
    return float(os.environ.get("XLA_PYTHON_CLIENT_MEM_FRACTION", _GPU_SHARE))


CHIPS = {
    chip.name: chip
    for chip in (
        Chip("v4", "TPU v4", 30.75 * GIB, 1.228e12, 4.5e10, 3, 6.25e9),
        Chip("v5e", "TPU v5 lite", 15.75 * GIB, 8.19e11, 4.5e10, 2, 3.125e9),
        Chip("v5p", "TPU v5", 95.73 * GIB, 2.765e12, 9e10, 3, 6.25e9),
        Chip("v6e", "TPU v6 lite", 31.24 * GIB, 1.64e12, 9e10, 2, 1.25e10),
        # A jax device is one of the chip's two halves.
        Chip("tpu7x", "TPU7x", 94.74 * GIB, 3.69e12, 9e10, 3, 6.25e9, cores_of_a_chip=2),
        Chip("h100", "NVIDIA H100 80GB HBM3", 80e9, 3.35e12, 4.5e11, 0, 5e10),
        Chip("h200", "NVIDIA H200", 141e9, 4.8e12, 4.5e11, 0, 5e10),
        Chip("b200", "NVIDIA B200", 180e9, 7.7e12, 9e11, 0, 5e10),
    )
}


def chip_of(device_kind: str) -> Chip | None:
    """The chip that jax calls by this name, or None if the table does not have it."""
    # A TPU v5p is "TPU v5p" where it is real and "TPU v5" where it is planned for.
    wanted = {"TPU v5p": "TPU v5", "TPU v5e": "TPU v5 lite", "TPU v6e": "TPU v6 lite"}.get(device_kind, device_kind)
    return next((chip for chip in CHIPS.values() if wanted.startswith(chip.device_kind) and _same(wanted, chip)), None)


def _same(device_kind: str, chip: Chip) -> bool:
    """Whether nothing but a GPU's variant follows the chip's name: TPU v5 is no TPU v5 lite."""
    return device_kind == chip.device_kind or not chip.is_tpu
