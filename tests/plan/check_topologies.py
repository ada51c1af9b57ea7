"""Plan the large recipes for real topologies in full: half an hour on two cores. Needs libtpu but no TPU.

python tests/plan/check_topologies.py FIGURES.tsv [CASE...]      appends a line for each stage; CASE: a number

Exits with 1 if a stage does not fit with any number of microbatches.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from bertjax.config import MeshConfig, load_recipe
from bertjax.plan.topologies import open_topology, set_environment

REPOSITORY = Path(__file__).resolve().parents[2]
COLUMNS = (
    "recipe",
    "topology",
    "devices",
    "stage",
    "rows a device",
    "microbatches",
    "fits",
    "GiB",
    "of",
    "parameters",
    "optimizer",
    "temporaries",
    "step ms",
    "to ms",
    "limited by",
    "MFU bound",
    "hours",
    "chip-hours",
    "compiled in s",
)
CASES = [
    *((f"configs/bert_{size}.py", name, 1)
      for name in ("v5e:4x4", "v5e:16x16", "v5p:4x4x4", "v6e:16x16") for size in ("base", "large")),
    ("configs/lamb.py", "v4:8x8x8", 1),
    ("configs/lamb.py", "tpu7x:8x8x8", 1),
    ("configs/lamb.py", "v5e:16x16", 2),
]  # fmt: skip


def figures(number: int) -> Iterator[tuple]:
    """Yield a line for each stage; one that does not fit gets further lines with more microbatches until it does."""
    from bertjax.plan.compiling import Program
    from bertjax.plan.estimates import StagePlan, make_plan, mesh_on, plan_stage

    path, name, slices = CASES[number]
    config, topology = replace(load_recipe(REPOSITORY / path), mesh=MeshConfig()), open_topology(name, slices)

    def line(planned: StagePlan) -> tuple:
        bound, result = planned.bound, planned.result
        memory = result.memory if isinstance(result, Program) else None
        parts = [memory.parameters, memory.optimizer, memory.temporaries] if memory else [0, 0, 0]
        speed = ("", "", "", "", "", "")
        if bound and planned.fits:
            hours = planned.hours[0]
            speed = (
                f"{1e3 * bound.overlapped:.1f}",
                f"{1e3 * bound.serial:.1f}",
                bound.limited_by,
                f"{planned.mfu_bound:.1%}",
                f"{hours:.2f}",
                f"{hours * topology.chips:.0f}",
            )
        return (
            path,
            topology.name,
            len(topology.devices),
            planned.stage.number + 1,
            f"{planned.rows_of_a_device} x {planned.stage.data.sequence_length}",
            planned.stage.training.grad_accum_steps,
            "yes" if planned.fits else "NO",
            f"{(planned.needed or 0) / 2**30:.2f}",
            f"{topology.capacity / 2**30:.2f}",
            *(f"{part / 2**30:.2f}" for part in parts),
            *speed,
            f"{result.seconds:.0f}",
        )

    for stage in (1, 2):
        (planned,) = make_plan(config, topology, stage=stage, adapt=True, say=print).stages
        yield line(planned)
        steps = planned.stage.training.grad_accum_steps
        while not planned.fits and planned.rows_of_a_device > 1:
            steps *= 2
            smaller = replace(planned.stage, training=replace(planned.stage.training, grad_accum_steps=steps))
            planned = plan_stage(config, smaller, topology, mesh_on(config, topology), planned.counted_flops)
            yield line(planned)


def main() -> int:
    wrong = 0
    file = Path(sys.argv[1])
    chosen = [int(word) for word in sys.argv[2:]] or range(len(CASES))
    set_environment("v5e:4x4")
    if not file.exists():
        file.write_text("\t".join(COLUMNS) + "\n")
    for number in chosen:
        start, fits = time.perf_counter(), {}
        for line in figures(number):
            fits[line[COLUMNS.index("stage")]] = line[COLUMNS.index("fits")] == "yes"
            with file.open("a") as opened:
                opened.write("\t".join(str(cell) for cell in line) + "\n")
        unfit = [stage for stage, last in fits.items() if not last]
        wrong += len(unfit)
        verdict = f"stages that do not fit: {unfit}" if unfit else "all stages fit"
        print(f"case {number}: {verdict}; {time.perf_counter() - start:.0f} s", flush=True)
    return int(wrong > 0)


if __name__ == "__main__":
    os.chdir(REPOSITORY)
    sys.exit(main())
