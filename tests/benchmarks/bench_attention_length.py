"""Time and memory of the train step at growing row lengths, with a window in every layer, and their growth.

    python tests/benchmarks/bench_attention_length.py                              # 1,024 to 8,192, window 64
    python tests/benchmarks/bench_attention_length.py --window 0 --lengths 1024 2048   # full attention
    python tests/benchmarks/bench_attention_length.py --window 256 --global-token      # like Longformer's classifier
    python tests/benchmarks/bench_attention_length.py --blocks 64                      # like BigBird, 3 random blocks

One row in float32 on a CPU, dropout 0.1: forward, backward, clip and update, with the lengths in turns. Memory is the
compiler's figure for the step: arguments, results and temporaries. The growth is the slope in log-log space: 1 if
double the length takes double the time. Prints wall time and CPU time, since other load affects wall time. The
vocabulary is small, because its update does not depend on the length.
"""

from __future__ import annotations

import argparse
import math
import os
import statistics
from pathlib import Path

from sides import Side, Work

from bertjax.config import Config, DataConfig, MeshConfig, ModelConfig, TrainingConfig
from bertjax.parallel.mesh import make_mesh
from bertjax.plan.compiling import compile_stage
from bertjax.training.stages import make_stages


def make_pattern(arguments: argparse.Namespace) -> dict[str, int | str | bool]:
    """The attention pattern as fields of the model's config."""
    if arguments.blocks:
        return {"attention_block": arguments.blocks, "random_blocks": 3}
    window = {"window": arguments.window, "global_every": 0 if arguments.window else 1}
    return window | ({"global_tokens": "first", "global_projections": True} if arguments.global_token else {})


def make_work(length: int, pattern: dict[str, int | str | bool]) -> Work:
    """Four layers of width 256 that predict 15 % of the tokens."""
    model = ModelConfig(
        vocab_size=2048,
        hidden_size=256,
        num_hidden_layers=4,
        num_attention_heads=4,
        intermediate_size=1024,
        max_position_embeddings=length,
        **pattern,
    )
    return Work(model, rows=1, length=length, predictions=length * 15 // 100)


def step_memory(work: Work) -> int:
    """The memory of the step in bytes, according to the compiler."""
    config = Config(
        model=work.model,
        data=DataConfig(
            vocab_size=work.model.vocab_size, sequence_length=work.length, max_predictions=work.predictions
        ),
        training=TrainingConfig(steps=20_000, global_batch_size=work.rows, grad_accum_steps=1),
    )
    (stage,) = make_stages(config)
    return compile_stage(config, stage, make_mesh(MeshConfig(1, 1, 1)), "cpu").memory.total


def slope(lengths: list[int], values: list[float]) -> float:
    """The least-squares slope of log(value) over log(length)."""
    return statistics.linear_regression(list(map(math.log, lengths)), list(map(math.log, values))).slope


def processor_seconds(process: int) -> float:
    """The CPU time of a process so far, in user and kernel mode."""
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def main() -> None:
    """Run the lengths in turns and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lengths", type=int, nargs="+", default=[1024, 2048, 4096, 8192])
    parser.add_argument("--window", type=int, default=64)
    parser.add_argument("--blocks", type=int, default=0, metavar="TOKENS", help="block-sparse attention, no windows")
    parser.add_argument(
        "--global-token", action="store_true", help="the first token attends to all tokens, and all to it"
    )
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    works = [make_work(length, make_pattern(arguments)) for length in arguments.lengths]
    sides = []
    for work in works:
        sides.append(Side("bertjax", work))
        sides[-1].ready()
    used: list[list[float]] = [[] for _ in sides]
    for number in range(arguments.rounds):
        for side, seconds in zip(sides, used, strict=True):
            before = processor_seconds(side.process.pid)
            side.turn(1)
            seconds.append(processor_seconds(side.process.pid) - before)
        print(number, *(f"{side.times[-1]:.3f} s" for side in sides), f"load {os.getloadavg()[0]:.1f}", flush=True)
    for side in sides:
        side.close()
    figures = {
        "s a step": [min(side.times) for side in sides],
        "s of processor": [min(seconds) for seconds in used],
        "MiB": [step_memory(work) / 2**20 for work in works],
    }
    for number, length in enumerate(arguments.lengths):
        print(f"{length}:", ", ".join(f"{values[number]:,.2f} {name}" for name, values in figures.items()))
    print("growth:", ", ".join(f"{slope(arguments.lengths, values):.3f} {name}" for name, values in figures.items()))


if __name__ == "__main__":
    main()
