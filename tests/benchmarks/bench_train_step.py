"""Tokens/s of the train step beside transformers' BertForPreTraining with torch AdamW, alternating in one run.

    python tests/benchmarks/bench_train_step.py base          # BERT-Base, 8 x 128, 20 predictions
    python tests/benchmarks/bench_train_step.py tiny          # BERT-Tiny, vocabulary 30,522, 64 x 128

Both sides: the same batches, fp32, dropout 0.1, forward, backward, clip and update. Prints each round, the ratio of the
medians, and the rate that the matmuls alone would allow at this machine's measured matmul speed.
"""

from __future__ import annotations

import argparse
import multiprocessing
import statistics
import time
from collections.abc import Callable
from multiprocessing.connection import Connection

import jax
import numpy as np

from bertjax.config import MeshConfig, ModelConfig, OptimizerConfig
from bertjax.parallel.host_memory import keep_freed_memory
from bertjax.parallel.mesh import make_mesh
from bertjax.parallel.sharding import to_global
from bertjax.training.flops import matmul_peak, train_flops_per_token
from bertjax.training.objectives import choose
from bertjax.training.optimizer import make_optimizer
from bertjax.training.schedules import make_schedule
from bertjax.training.state import draw_blueprint, init_state
from bertjax.training.step import make_train_step

LENGTH, PREDICTIONS = 128, 20
SIZES = {  # name: (layers, hidden, heads, feed-forward, batch)
    "tiny": (2, 128, 2, 512, 64),
    "mini": (4, 256, 4, 1024, 32),
    "base": (12, 768, 12, 3072, 8),
}


def make_batch(vocab_size: int, rows: int) -> dict[str, np.ndarray]:
    """A full batch of random ids: 128 tokens a row, 19 predictions in 20 slots, as the reference fills them."""
    rng = np.random.default_rng(0)
    ids = rng.integers(1000, vocab_size, (rows, LENGTH)).astype(np.int32)
    positions = np.sort(rng.permuted(np.tile(np.arange(1, LENGTH - 1), (rows, 1)), axis=1)[:, :PREDICTIONS], axis=1)
    weights = np.ones((rows, PREDICTIONS), np.float32)
    weights[:, -1] = 0
    return {
        "input_ids": ids,
        "token_type_ids": np.tile((np.arange(LENGTH) >= 64).astype(np.int32), (rows, 1)),
        "sequence_ids": np.ones((rows, LENGTH), np.int32),
        "mlm_positions": positions.astype(np.int32),
        "mlm_labels": np.take_along_axis(ids, positions, axis=1),
        "mlm_weights": weights,
        "cls_positions": np.zeros((rows, 1), np.int32),
        "pair_labels": rng.integers(0, 2, (rows, 1)).astype(np.int32),
        "pair_weights": np.ones((rows, 1), np.float32),
    }


def ours(config: ModelConfig, batch: dict[str, np.ndarray]) -> Callable[[], float]:
    """A function that runs one step of ours to its end and returns the loss."""
    keep_freed_memory()  # as the trainer does
    mesh = make_mesh(MeshConfig(), jax.devices()[:1])
    settings = OptimizerConfig()
    optimizer = make_optimizer(settings)
    with jax.set_mesh(mesh):
        blueprint = draw_blueprint(config, optimizer, mesh)
        state = init_state(blueprint, config, optimizer, 0)
        step = make_train_step(
            blueprint,
            choose(("mlm", "nsp")),
            optimizer,
            make_schedule(settings, 1_000_000),
            clip_norm=1.0,
            grad_accum_steps=1,
            dropout_seed=0,
        )
        data = to_global(mesh, batch, len(batch["input_ids"]))

    def run() -> float:
        nonlocal state
        with jax.set_mesh(mesh):
            state, metrics = step(state, data)
            return float(metrics["loss"])

    return run


def theirs(config: ModelConfig, batch: dict[str, np.ndarray]) -> Callable[[], float]:
    """The same with transformers and torch."""
    import torch
    from transformers import BertConfig, BertForPreTraining

    model = BertForPreTraining(
        BertConfig(
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            num_hidden_layers=config.num_hidden_layers,
            num_attention_heads=config.num_attention_heads,
            intermediate_size=config.intermediate_size,
        )
    ).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, eps=1e-6, weight_decay=0.01)
    labels = np.full(batch["input_ids"].shape, -100)
    rows, slots = np.nonzero(batch["mlm_weights"])
    labels[rows, batch["mlm_positions"][rows, slots]] = batch["mlm_labels"][rows, slots]
    inputs = {
        "input_ids": torch.tensor(batch["input_ids"], dtype=torch.long),
        "token_type_ids": torch.tensor(batch["token_type_ids"], dtype=torch.long),
        "attention_mask": torch.tensor(batch["sequence_ids"], dtype=torch.long),
        "labels": torch.tensor(labels),
        "next_sentence_label": torch.tensor(batch["pair_labels"][:, 0], dtype=torch.long),
    }

    def run() -> float:
        optimizer.zero_grad()
        loss = model(**inputs).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        return loss.item()

    return run


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def serve(side: str, config: ModelConfig, rows: int, pipe: Connection) -> None:
    """A side in a process of its own, so that neither has the other's threads and allocations: a step per request."""
    run = {"bertjax": ours, "transformers": theirs}[side](config, make_batch(config.vocab_size, rows))
    run(), run()
    pipe.send(matmul_peak(jax.devices()[0]).flops if side == "bertjax" else None)
    while pipe.recv():
        pipe.send(_seconds(run))


def main() -> None:
    """Alternate the two sides and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=SIZES)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    layers, hidden, heads, forward, rows = SIZES[arguments.size]
    config = ModelConfig(
        hidden_size=hidden,
        num_hidden_layers=layers,
        num_attention_heads=heads,
        intermediate_size=forward,
        scan_unroll=layers,
        mlm_chunk=320,
    )
    context = multiprocessing.get_context("spawn")
    pipes, times, peak = {}, {}, 0.0
    for side in ("bertjax", "transformers"):
        pipes[side], theirs_end = context.Pipe()
        context.Process(target=serve, args=(side, config, rows, theirs_end), daemon=True).start()
        peak = pipes[side].recv() or peak
        times[side] = []
    for number in range(arguments.rounds):
        for side, pipe in pipes.items():
            pipe.send(True)
            times[side].append(pipe.recv())
        print(number, *(f"{side} {seconds[-1]:.3f} s" for side, seconds in times.items()), flush=True)
    for pipe in pipes.values():
        pipe.send(False)
    medians = {side: statistics.median(seconds) for side, seconds in times.items()}
    tokens = rows * LENGTH
    bound = tokens * train_flops_per_token(config, LENGTH, PREDICTIONS) / peak
    for side, seconds in medians.items():
        print(f"{side}: {seconds:.3f} s a step, {tokens / seconds:,.0f} tokens/s")
    print(f"matmuls alone at {peak / 1e9:.0f} GFLOP/s: {bound:.3f} s a step, {tokens / bound:,.0f} tokens/s")
    print(f"ratio bertjax / transformers in tokens/s: {medians['transformers'] / medians['bertjax']:.2f}")


if __name__ == "__main__":
    main()
