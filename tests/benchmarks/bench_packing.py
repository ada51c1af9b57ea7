"""The gain of packing: real tokens/s of training on packed rows, relative to one sentence pair per row.

python tests/benchmarks/bench_packing.py STORE --length 512 --rounds 5

STORE is a token store, or a folder with exactly one. Both runs train the same network on rows of the same length, and
take turns in one process, so that a varying machine speed affects both alike. The timing includes making batches.
"""

from __future__ import annotations

import argparse
import statistics
import time
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from bertjax.config import Config, DataConfig, MeshConfig, ModelConfig, OptimizerConfig, TrainingConfig
from bertjax.input.batches import RowBatches
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import to_global
from bertjax.text.store.format import TokenStore
from bertjax.training.optimizer import make_optimizer
from bertjax.training.stages import make_stages, stage_step
from bertjax.training.state import draw_blueprint, init_state

SAMPLE = 2000  # rows for the padding statistics


class Run:
    """Training of a small BERT on one kind of rows."""

    def __init__(self, config: Config, store: TokenStore) -> None:
        self.config = config
        self.batches = RowBatches(store.split("train"), store.tokenizer(), config.data, seed=0)
        self.mesh = make_mesh(config.mesh)
        optimizer = make_optimizer(config.optimizer)
        blueprint = draw_blueprint(config.model, optimizer, self.mesh)
        self.step = stage_step(config, make_stages(config)[0], blueprint, optimizer)
        with jax.set_mesh(self.mesh):
            self.state = init_state(blueprint, config.model, optimizer, 0)
        self.number = 0

    def fill(self) -> float:
        """The share of positions with a real token."""
        return float((self.batches.rows(np.arange(SAMPLE))["sequence_ids"] > 0).mean())

    def tokens_per_second(self, steps: int) -> float:
        """Real tokens/s, over `steps` steps."""
        rows = self.config.training.global_batch_size
        tokens, start = 0, time.perf_counter()
        with jax.set_mesh(self.mesh):
            for _ in range(steps):
                batch = self.batches.batch(self.number, rows)
                tokens += int((batch["sequence_ids"] > 0).sum())
                self.state, metrics = self.step(self.state, to_global(self.mesh, batch))
                self.number += 1
            jax.block_until_ready(metrics)
        return tokens / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("store", type=Path, help="a token store, or a folder with one")
    parser.add_argument("--length", type=int, default=512)
    parser.add_argument("--rows", type=int, default=8, help="rows of a step")
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--steps", type=int, default=4, help="steps of a timed round")
    parser.add_argument("--rounds", type=int, default=5)
    arguments = parser.parse_args()
    stores = sorted(arguments.store.glob("store-*")) or [arguments.store]
    if len(stores) > 1:
        parser.error(f"{arguments.store} has several stores; name one: {', '.join(path.name for path in stores)}")
    store = TokenStore.open(str(stores[0]))
    width = arguments.hidden
    plain = Config(
        model=ModelConfig(
            vocab_size=store.tokenizer().vocab_size, hidden_size=width, num_hidden_layers=arguments.layers,
            num_attention_heads=width // 64, intermediate_size=4 * width,
        ),
        data=DataConfig(sequence_length=arguments.length, max_predictions=round(0.15 * arguments.length)),
        mesh=MeshConfig(),
        optimizer=OptimizerConfig(warmup_steps=10),
        training=TrainingConfig(steps=1000, global_batch_size=arguments.rows, grad_accum_steps=1),
    )  # fmt: skip
    runs = {
        "one pair per row": Run(plain, store),
        "packed": Run(replace(plain, data=replace(plain.data, packing="pairs")), store),
    }
    for name, run in runs.items():
        print(f"{name}: {run.fill():.1%} real tokens, {run.batches.rows_per_epoch:,} rows an epoch")
        run.tokens_per_second(1)  # compile
    rates: dict[str, list[float]] = {name: [] for name in runs}
    for _ in range(arguments.rounds):
        for name, run in runs.items():
            rates[name].append(run.tokens_per_second(arguments.steps))
    for name, values in rates.items():
        print(f"{name}: {statistics.median(values):,.0f} real tokens/s ({min(values):,.0f} to {max(values):,.0f})")
    ratios = [b / a for a, b in zip(*rates.values(), strict=True)]
    print(f"packed against not: {statistics.median(ratios):.2f}x ({min(ratios):.2f} to {max(ratios):.2f})")


if __name__ == "__main__":
    main()
