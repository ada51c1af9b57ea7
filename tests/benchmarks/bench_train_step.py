"""Tokens/s of the train step beside transformers' class of the member with torch AdamW, alternating in one run.

    python tests/benchmarks/bench_train_step.py base          # BERT-Base, 8 x 128, 20 predictions
    python tests/benchmarks/bench_train_step.py tiny          # BERT-Tiny, vocabulary 30,522, 64 x 128
    python tests/benchmarks/bench_train_step.py albert        # ALBERT-Base v2, MLM and sentence order
    python tests/benchmarks/bench_train_step.py distilbert    # DistilBERT, MLM
    python tests/benchmarks/bench_train_step.py electra       # ELECTRA-Small, generator and discriminator

Both sides: the same batches, fp32, the member's dropout, forward, backward, clip and update. Prints each round, the
ratio of the medians, and the rate that the matmuls alone would allow at this machine's measured matmul speed.
"""

from __future__ import annotations

import argparse
import statistics
from dataclasses import replace

from sides import SIDES, Side, Work

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.model.families.albert import ALBERT
from bertjax.model.families.distilbert import DISTILBERT
from bertjax.model.families.electra import ELECTRA, GENERATOR_WIDTHS
from bertjax.training.flops import measured_peak_flops, train_flops_per_token


def bert(layers: int, hidden: int, heads: int, forward: int) -> ModelConfig:
    """A BERT of another size."""
    return ModelConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=forward
    )


WORK = {  # name: (model, rows, objectives)
    "tiny": (bert(2, 128, 2, 512), 64, ("mlm", "nsp")),
    "mini": (bert(4, 256, 4, 1024), 32, ("mlm", "nsp")),
    "base": (ModelConfig(), 8, ("mlm", "nsp")),
    "albert": (ALBERT.presets["base-v2"], 8, ("mlm", "sop")),
    "distilbert": (DISTILBERT.presets["base"], 8, ("mlm",)),
    "electra": (replace(ELECTRA.presets["small"], generator_width=GENERATOR_WIDTHS["small"]), 16, ("mlm", "rtd")),
}


def main() -> None:
    """Alternate the two sides and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=WORK)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    config, rows, objectives = WORK[arguments.size]
    execution = ExecutionConfig(scan_unroll=config.num_hidden_layers, logits_chunk=320)
    work = Work(config, rows, objectives, execution=execution)
    sides = {name: Side(name, work) for name in SIDES}
    for side in sides.values():
        side.ready()
    peak = measured_peak_flops(2048)
    for number in range(arguments.rounds):
        print(number, *(f"{name} {side.turn(1):.3f} s" for name, side in sides.items()), flush=True)
    for side in sides.values():
        side.close()
    medians = {name: statistics.median(side.times) for name, side in sides.items()}
    bound = work.tokens * train_flops_per_token(config, work.length, work.predictions) / peak
    for name, seconds in medians.items():
        print(f"{name}: {seconds:.3f} s a step, {work.tokens / seconds:,.0f} tokens/s")
    print(f"matmuls alone at {peak / 1e9:.0f} GFLOP/s: {bound:.3f} s a step, {work.tokens / bound:,.0f} tokens/s")
    print(f"ratio bertjax / transformers in tokens/s: {medians['transformers'] / medians['bertjax']:.2f}")


if __name__ == "__main__":
    main()
