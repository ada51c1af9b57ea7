"""On a CPU a program's temporaries have the pages of the last call's, however large they are."""

from __future__ import annotations

import os
import platform
import subprocess
import sys

import pytest
from several_processes import surroundings

PROGRAM = """
import resource, sys
from bertjax.runtime.host_memory import keep_freed_memory
if sys.argv[1] == "imported":
    import jax
keep_freed_memory()
import jax, jax.numpy as jnp

@jax.jit
def total(x):
    return jax.lax.fori_loop(0, 2, lambda _, carried: carried * 2, x).sum()

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

x = jnp.ones(32_000_000)
total(x).block_until_ready()
before = faults()
for _ in range(4):
    total(x).block_until_ready()
temporaries = total.lower(x).compile().memory_analysis().temp_size_in_bytes
print(temporaries // resource.getpagesize(), faults() - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="needs a C library that can keep what is freed")
@pytest.mark.parametrize("jax_is", ["imported", "not imported"])
def test_programs_reuse_the_pages_of_the_last_call(jax_is: str) -> None:
    environment = os.environ | surroundings(devices=1)
    environment.pop("JAX_CPU_ENABLE_ASYNC_DISPATCH")  # which the tests set for themselves
    command = [sys.executable, "-c", PROGRAM, jax_is]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=600)
    assert ended.returncode == 0, ended.stderr[-2000:]
    pages, faults = map(int, ended.stdout.split())
    assert pages > 20_000, "too small to measure: glibc gives a thread no memory of this size without mapping it"
    assert faults < pages / 10
