"""Held-out loss of shuffling in windows compared with shuffling the whole text, for several seeds.

    python tests/benchmarks/bench_shuffle.py 'wikiextractor:wiki/*.xz' jsonl:chapters.jsonl --folder DIR

For each seed, trains the quickstart's model on the sources, once in windows and once in a single window, which is the
whole text. Relative to the run, the windows are as short as those of a large text: with the defaults a window lasts 64
steps, and its 16 parts are 8,192 consecutive tokens each. Documents should be shorter than such a part, as in large
texts: a window of one novel is at first worse than text from everywhere. Prints means with standard errors, and the
mean difference of runs with the same seed. Runs in the folder are continued.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Iterable
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

from bertjax.config import load_recipe
from bertjax.input import training_data
from bertjax.run.pretrain import pretrain

ORDERS = ("whole", "windows")


def main() -> None:
    """Train and print the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sources", nargs="+")
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--vocab", default="", help="a vocabulary (default: train one on the sources)")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--steps", type=int, default=2_400)
    parser.add_argument("--window", type=int, default=1 << 17, help="tokens (%(default)s)")
    options = parser.parse_args()
    losses = {order: [train(options, order, seed) for seed in range(options.seeds)] for order in ORDERS}
    print(f"\n| step | {' | '.join(ORDERS)} | difference |\n|---:|---:|---:|---:|")
    for step in losses[ORDERS[0]][0]:
        whole, windows = ([run[step] for run in losses[order]] for order in ORDERS)
        differences = [ours - theirs for ours, theirs in zip(windows, whole, strict=True)]
        print(f"| {step:,} | {format_mean(whole)} | {format_mean(windows)} | {format_mean(differences, '+')} |")


def format_mean(values: Iterable[float], sign: str = "") -> str:
    """Format the mean and standard error."""
    values = list(values)
    error = statistics.stdev(values) / len(values) ** 0.5 if len(values) > 1 else float("nan")
    return f"{statistics.fmean(values):{sign}.3f} ± {error:.3f}"


def train(options: argparse.Namespace, order: str, seed: int) -> dict[int, float]:
    """Train or continue one run; returns its held-out loss by step."""
    recipe = load_recipe("quickstart")
    run = options.folder / f"{order}-{seed}"
    config = replace(
        recipe,
        run_dir=str(run),
        data=replace(
            recipe.data,
            sources=tuple(options.sources),
            root=str(options.folder / "data"),
            vocab=options.vocab,
            held_out=0.02,
        ),
        training=replace(
            recipe.training, steps=options.steps, eval_every=options.steps // 6, eval_rows=8_192, seed=seed
        ),
    )
    with patch.object(training_data, "WINDOW_TOKENS", options.window if order == "windows" else 1 << 62):
        pretrain(config)
    lines = map(json.loads, (run / "metrics.jsonl").read_text().splitlines())
    return {line["step"]: line["eval/mlm_loss"] for line in lines if "eval/mlm_loss" in line}


if __name__ == "__main__":
    main()
