"""XLA flags for tests: fake CPU devices, and quick compilation.

Set XLA_FLAGS before JAX is imported.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib.metadata import version

import pytest

_DEVICES = "--xla_force_host_platform_device_count"
# Tests compile far more than they compute. The fusion emitters triple the compile time of a training step.
QUICK = ["--xla_backend_optimization_level=0", "--xla_llvm_disable_expensive_passes=true"]
WITHOUT_EMITTERS = ["--xla_cpu_use_fusion_emitters=false", "--xla_cpu_parallel_codegen_split_count=1"]


def xla_flags(devices: int, quick: bool = True) -> str:
    """Value of XLA_FLAGS for fake CPU devices; without `quick`, XLA optimises programs as it does for users.

    Flags set by the user, such as another instruction set, come last, so that they override these.
    """
    # XLA refuses to start with a flag that it does not support.
    has_emitter_flags = tuple(map(int, version("jaxlib").split(".")[:2])) < (0, 11)
    ours = [*QUICK, *(WITHOUT_EMITTERS if has_emitter_flags else [])]
    users = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if flag not in ours and _DEVICES not in flag]
    return " ".join([f"{_DEVICES}={devices}", *(ours if quick else []), *users])


@contextlib.contextmanager
def on_devices(count: int) -> Iterator[None]:
    """Make JAX behave as on a machine with `count` devices."""
    import jax

    first = jax.devices()[:count]
    with pytest.MonkeyPatch.context() as machine:
        for name in ("devices", "local_devices"):
            machine.setattr(jax, name, lambda *_, **__: first)
        for name in ("device_count", "local_device_count"):
            machine.setattr(jax, name, lambda *_, **__: count)
        yield
