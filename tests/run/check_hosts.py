"""Compare runs on many shapes: equal batches, equal losses, and every checkpoint restored on every shape.

python tests/run/check_hosts.py

Prints the largest relative difference of a loss from the single process with one device, and a table of restores.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "training"))

from fake_devices import xla_flags

# As in the tests, before JAX is imported.
os.environ["XLA_FLAGS"] = xla_flags(devices=1)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

import numpy as np
from generated_corpus import write_corpus
from hosts_matrix import Matrix, Shape
from tiny_runs import write_recipe

LOSSES = [Shape(1, 8), Shape(2, 4), Shape(4, 2)]
CHECKPOINTS = [Shape(1, 1), Shape(1, 4), Shape(2, 2), Shape(4, 1), Shape(2, 2, fsdp=2), Shape(2, 2, tensor=2)]
ACROSS = [Shape(4, 1, tensor=2), Shape(2, 2, tensor=4)]  # `tensor` spans hosts, which then share rows


def main() -> int:
    with tempfile.TemporaryDirectory(prefix="hosts-") as name:
        folder = Path(name)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "compiled")
        recipe = write_recipe(folder)
        recipe.write_text(recipe.read_text().replace("num_attention_heads=2", "num_attention_heads=4"))
        matrix = Matrix(folder, recipe, write_corpus(folder / "corpus.txt", 300))
        return check(matrix)


def check(matrix: Matrix) -> int:
    failures, reference = 0, CHECKPOINTS[0]
    for shape in [*CHECKPOINTS, *LOSSES, *ACROSS]:
        matrix.run(shape, save=shape in CHECKPOINTS)
        same = matrix.rows(shape) == matrix.rows(reference)
        losses, expected = matrix.losses(shape), matrix.losses(reference)
        worst = float(np.max(np.abs(losses / expected - 1)))
        failures += not same or worst > 1e-5
        batches = "the same batches" if same else "OTHER BATCHES"
        print(
            f"{shape.name:12} {batches}, rows read by each process: {matrix.row_counts(shape)}; "
            f"largest relative difference of {len(losses)} losses {worst:.1e}",
            flush=True,
        )
    for shape in CHECKPOINTS:
        matrix.run(shape, steps=1, restore=CHECKPOINTS)
        shards = sum(sum(seen["restored"]) for seen in matrix.seen[shape.name])
        names = ", ".join(other.name for other in CHECKPOINTS)
        print(f"{shape.name:12} restored {names}: {shards} shards, the same bits", flush=True)
    print(f"{failures} failures")
    return int(failures > 0)


if __name__ == "__main__":
    sys.exit(main())
