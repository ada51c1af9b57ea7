"""Compare the train step of BERT-Base with KerasHub's, both compiled for one TPU chip, without a TPU.

    python tests/benchmarks/bench_tpu_program.py --keras PYTHON [--topology v5e:1x1]

Both sides run the paper's second stage: 16 rows of 512 tokens with 77 predictions, dropout, MLM and NSP, mixed
bfloat16, forward, backward, clip and update. PYTHON is an interpreter with keras-hub, and the same releases of jax and
libtpu as here, so that the same compiler compiles both programs (`python -m venv keras; keras/bin/pip install keras-hub
jax==… libtpu==…`). KerasHub's layers are unrolled; ours are a scan, as in the recipe, and unrolled. For each program,
prints the memory traffic, the memory of its temporaries and the time of a step by the compiler's schedule, each counted
by the same function, and the ratios. Takes half an hour on one core.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

from sides import Work, write_work

from bertjax.config.recipes import load_recipe
from bertjax.plan.compiling import Program, compile_stage
from bertjax.plan.estimates import mesh_on
from bertjax.plan.hlo import Module, parse
from bertjax.plan.roofline import memory_traffic
from bertjax.plan.schedule import read_cycles, schedule_time
from bertjax.plan.topologies import Topology, open_topology, planning_environment, set_environment
from bertjax.training.stages import make_stages

ROWS = 16


@dataclass(frozen=True)
class Figures:
    """The cost of a step on one chip."""

    traffic: float  # bytes
    temporaries: float  # bytes
    seconds: float


def main() -> None:
    """Compile both programs and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--keras", metavar="PYTHON", required=True, help="an interpreter with keras-hub, jax, libtpu")
    parser.add_argument("--topology", default="v5e:1x1", help="one chip of a TPU")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        our_dump, their_dump = Path(folder, "ours"), Path(folder, "theirs")
        set_environment(arguments.topology, our_dump)  # before jax is used
        topology = open_topology(arguments.topology)
        sides = {
            "bertjax": our_figures(topology, unrolled=False),
            "bertjax unrolled": our_figures(topology, unrolled=True),
            "keras-hub": their_figures(arguments.keras, topology, their_dump, Path(folder, "work.npz")),
        }
    for name, side in sides.items():
        print(
            f"{name}: {side.traffic / 1e9:.1f} GB of traffic, {side.temporaries / 2**30:.2f} GiB of temporaries, "
            f"{side.seconds * 1e3:.1f} ms by the schedule"
        )
    theirs = sides.pop("keras-hub")
    for name, ours in sides.items():
        print(f"ratio {name} / keras-hub in traffic: {ours.traffic / theirs.traffic:.2f}")
        print(f"ratio {name} / keras-hub in temporaries: {ours.temporaries / theirs.temporaries:.2f}")
        print(f"ratio {name} / keras-hub in steps/s by the schedule: {theirs.seconds / ours.seconds:.2f}")


def our_figures(topology: Topology, *, unrolled: bool) -> Figures:
    """The figures of the second stage of `bert_base`, with a batch of 16 rows."""
    config = load_recipe("bert_base")
    if unrolled:
        layers = config.model.num_hidden_layers
        config = replace(config, execution=replace(config.execution, scan_unroll=layers))
    stage = make_stages(config)[1]
    stage = replace(stage, training=replace(stage.training, global_batch_size=ROWS, grad_accum_steps=1))
    program = compile_stage(config, stage, mesh_on(config, topology), topology.platform)
    assert isinstance(program, Program), "16 rows fit every TPU"
    return figures(program.module, program.memory.temporaries, program.cycles, topology)


def their_figures(python: str, topology: Topology, dump: Path, path: Path) -> Figures:
    """The figures of KerasHub's program, compiled in its own process."""
    config = load_recipe("bert_base")
    data = make_stages(config)[1].data
    work = Work(
        config.model, ROWS, length=data.sequence_length, predictions=data.max_predictions, execution=config.execution
    )
    write_work(work, path)
    script = str(Path(__file__).with_name("their_keras.py"))
    environment = {key: value for key, value in os.environ.items() if key not in ("PYTHONPATH", "LIBTPU_INIT_ARGS")}
    environment |= planning_environment(topology.name, environment, dump) | {"KERAS_HOME": str(path.parent)}
    command = [python, script, str(path), topology.name]
    answer = json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True, env=environment).stdout)
    return figures(parse(answer["text"]), answer["temporaries"], read_cycles(dump), topology)


def figures(module: Module, temporaries: float, cycles: dict[str, int], topology: Topology) -> Figures:
    """Count a compiled program's traffic and time."""
    assert topology.chip is not None
    scheduled = schedule_time(module, cycles, topology.chip)
    assert scheduled is not None, f"the clock rate of {topology.name} is unknown"
    return Figures(memory_traffic(module), temporaries, scheduled.seconds)


if __name__ == "__main__":
    main()
