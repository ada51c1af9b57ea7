"""What XLA is told where tests compile: fake CPU devices, and as little work on each program as it allows.

Set XLA_FLAGS before JAX is imported.
"""

from __future__ import annotations

from importlib.metadata import version

# Tests compile far more than they compute. The emitters for fusions triple the time that a training step takes.
QUICK = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
WITHOUT_EMITTERS = ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]


def xla_flags(devices: int) -> str:
    """The value of XLA_FLAGS for so many fake devices. An XLA that does not know a flag refuses to start."""
    knows = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)
    return " ".join([f"--xla_force_host_platform_device_count={devices}", *QUICK, *(WITHOUT_EMITTERS if knows else [])])
