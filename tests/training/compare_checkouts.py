"""Compare the bits and the speed of training in two checkouts.

    python tests/training/compare_checkouts.py OLD NEW                # compare SHA-256 after five steps of each case
    python tests/training/compare_checkouts.py OLD NEW --time tiny    # alternate steps; ratio of the medians; also base

OLD and NEW are folders of the repository, such as `git worktree add` makes. Hashes are valid only for one kind of
machine and one jaxlib, so they are compared and not recorded. Each checkout runs in its own process, on one CPU device,
with the same random batches from this folder.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import os
import statistics
import subprocess
import sys
import time
from dataclasses import fields
from pathlib import Path
from typing import Any

import numpy as np
from random_batches import random_batches

SMALL = {"vocab_size": 1000, "num_hidden_layers": 2, "num_attention_heads": 2, "hidden_size": 32}
SIZES = {  # options of the model, rows
    "tiny": ({"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 512}, 64),
    "base": ({"num_hidden_layers": 12}, 8),
}
CASES = list(itertools.product(("adamw", "lamb"), ("none", "pairs"), ("none", "dots", "full"), (1, 2)))


def packed(batch: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Split each row into two sequences: the first ten tokens and the rest."""
    second = np.where(np.arange(batch["sequence_ids"].shape[1]) >= 10, 2, 1) * batch["sequence_ids"]
    pairs = {key: np.repeat(batch[key], 2, axis=1) for key in ("cls_positions", "pair_labels", "pair_weights")}
    pairs["cls_positions"][:, 1] = 10
    return batch | pairs | {"sequence_ids": second}


def training(
    model: dict[str, Any], execution_options: dict[str, Any], rows: int, name: str, packing: str, accumulate: int
) -> Any:
    """Make (state, function that takes a step) with the checkout that this process imports."""
    import jax

    from bertjax import config as c
    from bertjax.parallel.mesh import make_mesh
    from bertjax.parallel.sharding import to_global
    from bertjax.training.optimizer import make_optimizer
    from bertjax.training.stages import make_stages, stage_step
    from bertjax.training.state import draw_blueprint, init_state

    execution = [c.ExecutionConfig(**execution_options)] if hasattr(c, "ExecutionConfig") else []
    if not execution:  # in older checkouts they are options of the model, one of them under another name
        names = {field.name for field in fields(c.ModelConfig)}
        model = model | {(key if key in names else "mlm_chunk"): value for key, value in execution_options.items()}
    config = c.Config(
        model=c.ModelConfig(**model),
        **({"execution": execution[0]} if execution else {}),
        data=c.DataConfig(packing=packing),
        optimizer=c.OptimizerConfig(name=name, warmup_steps=2),
        training=c.TrainingConfig(steps=1000, global_batch_size=rows, grad_accum_steps=accumulate),
    )
    mesh, optimizer = make_mesh(c.MeshConfig(), jax.devices()[:1]), make_optimizer(config.optimizer)
    (stage,) = make_stages(config)
    with jax.set_mesh(mesh):
        blueprint = draw_blueprint(config.model, optimizer, mesh, *execution)
        state = init_state(blueprint, config.model, optimizer, 0)
        step = stage_step(config, stage, blueprint, optimizer)

    def take(state: Any, batch: dict[str, np.ndarray]) -> tuple[Any, Any]:
        with jax.set_mesh(mesh):
            return step(state, to_global(mesh, batch))

    return state, take


def training_digest(name: str, packing: str, remat: str, accumulate: int) -> str:
    """SHA-256 of the losses of five steps with dropout, and of all parameters after them, sorted by name."""
    import jax

    state, take = training(SMALL | {"intermediate_size": 64}, {"remat": remat}, 8, name, packing, accumulate)
    digest = hashlib.sha256()
    for batch in random_batches(5, rows=8, length=32, predictions=5, vocab_size=SMALL["vocab_size"]):
        state, metrics = take(state, packed(batch) if packing == "pairs" else batch)
        digest.update(np.float32(metrics["loss"]).tobytes())
    params = {jax.tree_util.keystr(path): leaf for path, leaf in jax.tree_util.tree_leaves_with_path(state.params)}
    for path in sorted(params):
        digest.update(path.encode() + np.asarray(params[path]).tobytes())
    return digest.hexdigest()


def work(task: str) -> None:
    """Run in the process of one checkout: print a digest for each case, or the seconds of a step for each input line.

    `task` is `digests` or a key of `SIZES`.
    """
    if task == "digests":
        for case in CASES:
            print(training_digest(*case), flush=True)
        return
    model, rows = SIZES[task]
    execution_options = {"scan_unroll": model["num_hidden_layers"], "logits_chunk": 320}
    state, take = training(model, execution_options, rows, "bert_adamw", "none", 1)
    (batch,) = random_batches(1, rows=rows, length=128, predictions=8, vocab_size=30_522)
    for _ in itertools.chain(range(2), sys.stdin):  # two warm-up steps come first
        begun = time.perf_counter()
        state, metrics = take(state, batch)
        metrics["loss"].block_until_ready()
        print(time.perf_counter() - begun, flush=True)


def main() -> int:
    """Compare the checkouts, or time them. Returns 1 if a digest differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkouts", nargs=2, type=Path, metavar="CHECKOUT")
    parser.add_argument("--time", choices=SIZES)
    parser.add_argument("--turns", type=int, default=15)
    arguments = parser.parse_args()
    command = [sys.executable, __file__, "--work", arguments.time or "digests"]
    sides = [
        subprocess.Popen(
            command, stdin=-1, stdout=-1, text=True, cwd=folder, env=os.environ | {"PYTHONPATH": str(folder.resolve())}
        )
        for folder in arguments.checkouts
    ]
    if not arguments.time:
        equal = True
        for case in CASES:
            old, new = (side.stdout.readline().strip() for side in sides)
            equal &= bool(old) and old == new
            print(*case, f"old {old[:16]!r}, new {new[:16]!r}", flush=True)
        return 0 if equal else 1
    assert all(float(side.stdout.readline()) for side in sides * 2)
    seconds: list[list[float]] = [[], []]
    for side, times in [*zip(sides, seconds, strict=True)] * arguments.turns:
        print(file=side.stdin, flush=True)
        times.append(float(side.stdout.readline()))
    old, new = map(statistics.median, seconds)
    print(f"{arguments.time}: old {old:.4f} s, new {new:.4f} s a step; new / old {new / old:.3f}")
    for side in sides:
        side.communicate()
    return 0


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(sys.argv[2])
    else:
        sys.exit(main())
