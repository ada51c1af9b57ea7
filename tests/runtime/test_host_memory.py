"""Programs on a CPU reuse the memory pages of their last call; memory limits of containers."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from several_processes import child_environment

from bertjax.runtime import host_memory

PROGRAM = """
import resource
from bertjax.runtime.host_memory import Temporaries, keep_freed_memory
keep_freed_memory()
import jax, jax.numpy as jnp

@jax.jit
def total(x):
    return jax.lax.fori_loop(0, 2, lambda _, carried: carried * 2, x).sum()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

x = jnp.ones(32_000_000)
total(x).block_until_ready()
temporaries, counts = Temporaries(), []
for _ in range(9):
    temporaries.reuse()
    before = faults()
    total(x).block_until_ready()
    counts.append(faults() - before)
size = total.lower(x).compile().memory_analysis().temp_size_in_bytes
print(size // resource.getpagesize(), *counts)
"""


@pytest.mark.long  # starts a process
@pytest.mark.run
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs a C library that can keep freed memory")
def test_programs_reuse_the_pages_of_the_last_call() -> None:
    environment = os.environ | child_environment(devices=1)
    done = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, env=environment, timeout=600)
    assert done.returncode == 0, done.stderr[-2000:]
    pages, *faults = map(int, done.stdout.split())
    assert pages > 20_000, "too small: glibc would not map memory of this size"
    assert statistics.median(faults) < pages / 10, faults


@pytest.mark.parametrize(("limit", "expected"), [("1048576\n", 1 << 20), ("max\n", None), ("9223372036854771712", 0)])
def test_machine_memory_respects_the_container_limit(
    limit: str, expected: int | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    physical = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    (tmp_path / "memory.max").write_text(limit)
    monkeypatch.setattr(host_memory, "_CONTAINER_LIMITS", (tmp_path / "memory.max", tmp_path / "none"))
    assert host_memory.machine_memory() == (expected or physical)
