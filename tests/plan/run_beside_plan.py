"""Train for some steps on one CPU device in a separate process, and compare memory and time with the plan.

python run_beside_plan.py RECIPE STEPS      prints two numbers of bytes, the plan's and the growth of the peak, and
                                        their difference; then the least time of a step by the plan, the measured
                                        median, and their ratio
"""

from __future__ import annotations

import ctypes
import statistics
import sys
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from bertjax.config import load_recipe
from bertjax.input.batches import batch_spec
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import to_global
from bertjax.plan.compiling import blueprint_on, lower_train_step
from bertjax.plan.estimates import make_plan
from bertjax.plan.topologies import LOCAL, open_topology
from bertjax.run.metrics import StepMetrics
from bertjax.runtime.host_memory import Temporaries, keep_freed_memory
from bertjax.training.optimizer import make_optimizer
from bertjax.training.stages import make_stages
from bertjax.training.state import init_state


def status(key: str) -> int:
    lines = Path("/proc/self/status").read_text().splitlines()
    return 1024 * next(int(line.split()[1]) for line in lines if line.startswith(f"{key}:"))


def main() -> None:
    config, steps = load_recipe(sys.argv[1]), int(sys.argv[2])
    if config.training.grad_accum_steps == "auto":  # only a run or a plan may decide it
        config = replace(config, training=replace(config.training, grad_accum_steps=1))
    keep_freed_memory()  # like every run
    (stage,) = make_stages(config)
    mesh = make_mesh(config.mesh)
    (plan,) = make_plan(config, open_topology(LOCAL), say=print).stages
    step, rate = lower_train_step(config, stage, mesh, "cpu").compile(), np.float32(1e-4)
    rows = stage.training.global_batch_size
    batch = {
        name: np.ones(shape, dtype) if "weights" in name or name == "sequence_ids" else np.zeros(shape, dtype)
        for name, (shape, dtype) in batch_spec(stage.data, rows).items()
    }
    # The peak counts from here: compilation is not part of it, and steps must not reuse the memory that it freed.
    ctypes.CDLL("libc.so.6").malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    with jax.set_mesh(mesh):
        state = init_state(blueprint_on(config, mesh), config.model, make_optimizer(config.optimizer), 0)
        jax.block_until_ready(state)
        figures = StepMetrics(1.0, 0.0)  # limits, as in a run, how far the host runs ahead
        figures.begin(1.0)
        temporaries = Temporaries()
        for _ in range(steps):
            on_device = to_global(mesh, batch)
            temporaries.reuse()
            state, metrics = step(state, rate, on_device, {})
            figures.add(metrics)
        figures.drain()
        grown = status("VmHWM") - before
        off = plan.needed / grown - 1
        print(plan.needed, grown, f"differ by {abs(off):.2%}: the plan says {'more' if off > 0 else 'less'}")
        seconds = []
        for _ in range(steps):
            start = time.perf_counter()
            state, metrics = jax.block_until_ready(step(state, rate, to_global(mesh, batch), {}))
            seconds.append(time.perf_counter() - start)
    least, median = 1e3 * plan.bound.overlapped, 1e3 * statistics.median(seconds)
    print(f"a step takes at least {least:.1f} ms by the plan and took {median:.1f}: {median / least:.2f} times")


if __name__ == "__main__":
    main()
