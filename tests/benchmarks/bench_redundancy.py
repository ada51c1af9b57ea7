"""The cost of the checks for silent arithmetic errors: verified steps and comparisons of replicas.

    python tests/benchmarks/bench_redundancy.py mini          # BERT-Mini, 32 x 128, on 1 device
    python tests/benchmarks/bench_redundancy.py mini --devices 2
    python tests/benchmarks/bench_redundancy.py base --every 1000

Plain steps, verified steps and comparisons alternate, so that other load affects all of them alike. Prints the medians
and the shares (verified - plain) / (N plain) and comparison / (N plain), where N is `--every`.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

PARSER = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
PARSER.add_argument("size", choices=("tiny", "mini", "base"))
PARSER.add_argument("--devices", type=int, default=1, help="fake CPU devices, each with the whole state (%(default)s)")
PARSER.add_argument("--rows", type=int, default=32, help="rows of 128 tokens in the batch (%(default)s)")
PARSER.add_argument("--rounds", type=int, default=7)
PARSER.add_argument("--every", type=int, default=1000, metavar="N", help="steps between two checks (%(default)s)")
LAYERS = {"tiny": (2, 128), "mini": (4, 256), "base": (12, 768)}


def main() -> None:
    """Measure and print."""
    options = PARSER.parse_args()
    # Before JAX is imported.
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={options.devices}"
    with TemporaryDirectory() as name:
        measure(options, Path(name))


def measure(options: argparse.Namespace, folder: Path) -> None:
    """Alternate plain steps, verified steps and comparisons of replicas."""
    import jax

    from bertjax.config import Config, ExecutionConfig, ModelConfig
    from bertjax.parallel.sharding import to_global
    from bertjax.run.hooks.redundancy import Redundancy
    from bertjax.run.job import assemble
    from bertjax.run.run_data import open_data
    from bertjax.runtime.processes import alone
    from bertjax.storage.progress import no_progress
    from bertjax.training.state import init_state

    layers, width = LAYERS[options.size]
    corpus = folder / "corpus.txt"
    corpus.write_text("\n\n".join("\n".join(f"{n} {m} {n * m} words in a row" for m in range(9)) for n in range(400)))
    base = Config(name="bench", log=(), compilation_cache="")
    config = replace(
        base,
        model=ModelConfig(
            hidden_size=width,
            num_hidden_layers=layers,
            num_attention_heads=width // 64,
            intermediate_size=4 * width,
            vocab_pad_multiple=30_720,  # BERT's table size, with a vocabulary that is trained in a second
        ),
        execution=ExecutionConfig(scan_unroll=layers, logits_chunk=320),
        data=replace(base.data, sources=(f"lines:{corpus}",), root=str(folder), vocab_size=400, held_out=0.05),
        training=replace(base.training, global_batch_size=options.rows, verify_every=2, digest_every=2),
    )
    job = assemble(config, open_data(config, no_progress))
    (rows,) = job.stages
    with alone() as processes, jax.set_mesh(job.mesh):
        checks = Redundancy(job, processes)
        state = init_state(job.blueprint, job.config.model, job.optimizer, 0)
        batch = to_global(job.mesh, rows.batches.batch(0, options.rows))

        def step(number: int) -> None:
            nonlocal state
            state, metrics = checks.verified(rows, number, state, batch) if number else rows.train_step(state, batch)
            jax.block_until_ready(metrics)

        kinds: dict[str, Callable[[], Any]] = {
            "plain step": lambda: step(0),
            "verified step": lambda: step(1),
            "comparison of replicas": lambda: checks.compare_replicas(2, state),
        }
        times: dict[str, list[float]] = {name: [] for name in kinds}
        for number in range(options.rounds + 1):
            for name, work in kinds.items():
                start = time.perf_counter()
                work()
                if number:  # the first round compiles
                    times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    plain = medians["plain step"]
    for name, seconds in medians.items():
        print(f"{name}: {seconds:.4f} s, {seconds / plain:.2f} steps")
    costs = {"verify_every": medians["verified step"] - plain, "digest_every": medians["comparison of replicas"]}
    for key, seconds in costs.items():
        print(f"training.{key}={options.every}: {seconds / (options.every * plain):.3%} of the time of the steps")
    print(f"both: {sum(costs.values()) / (options.every * plain):.3%}")


if __name__ == "__main__":
    main()
