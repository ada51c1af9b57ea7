"""Tokens/s of the train step, alternating with transformers' class of the same family with torch's fused AdamW.

    python tests/benchmarks/bench_train_step.py base          # BERT-Base, 8 x 128, 20 predictions
    python tests/benchmarks/bench_train_step.py base --dtypes float32 bfloat16    # each side's faster dtype counts
    python tests/benchmarks/bench_train_step.py tiny          # BERT-Tiny, vocabulary 30,522, 64 x 128
    python tests/benchmarks/bench_train_step.py quickstart    # the quickstart recipe's model and rows
    python tests/benchmarks/bench_train_step.py albert        # ALBERT-Base v2, MLM and sentence order
    python tests/benchmarks/bench_train_step.py distilbert    # DistilBERT, MLM
    python tests/benchmarks/bench_train_step.py electra       # ELECTRA-Small, generator and discriminator
    python tests/benchmarks/bench_train_step.py modernbert-512    # ModernBERT-Base, 2 x 512, 30 % predicted
    python tests/benchmarks/bench_train_step.py modernbert-4096   # six of its layers, 1 x 4,096
    python tests/benchmarks/bench_train_step.py longformer-512    # Longformer-Base, 2 x 512, no global token
    python tests/benchmarks/bench_train_step.py longformer-4096   # three of its layers, 1 x 4,096
    python tests/benchmarks/bench_train_step.py bigbird-4096      # three layers of BigBird-Base, 1 x 4,096
    python tests/benchmarks/bench_train_step.py deberta-512       # DeBERTa-Base, 2 x 512
    python tests/benchmarks/bench_train_step.py deberta-4096      # two of its layers, 1 x 4,096

Both sides have the same batches and dropout, and do forward, backward, clip and update, by default in float32; bfloat16
is autocast in torch. With --compile transformers' class also runs under torch.compile. With --gathered it also runs
with a hook that restricts its MLM head to the predicted positions, so that both sides do the same work. With --keras
PYTHON, an interpreter with keras-hub and jax (`python -m venv keras; keras/bin/pip install keras-hub jax`), KerasHub's
BERT is another side, on jax, with heads only at the predicted positions, with and without our allocator settings, and
with mixed_bfloat16 where ours is bfloat16. Prints each round; the ratio of the medians of each side's fastest setting,
for each dtype and overall, with the range over the rounds; and for each dtype the rate that the matmuls alone would
allow at this machine's speed (measured in every round), with the share that bertjax reaches.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import replace
from statistics import median

from sides import HEADS, KerasSide, Side, Work

from bertjax.config import DEFAULT_EXECUTION, ExecutionConfig, ModelConfig, load_recipe
from bertjax.families.albert import ALBERT
from bertjax.families.bigbird import BIGBIRD
from bertjax.families.deberta import DEBERTA
from bertjax.families.distilbert import DISTILBERT
from bertjax.families.electra import ELECTRA, GENERATOR_WIDTHS
from bertjax.families.longformer import LONGFORMER
from bertjax.families.modernbert import MODERNBERT
from bertjax.training.flops import measured_peak_flops, train_flops_per_token


def bert(layers: int, hidden: int, heads: int, forward: int) -> ModelConfig:
    """A BERT of the given size."""
    return ModelConfig(
        hidden_size=hidden, num_hidden_layers=layers, num_attention_heads=heads, intermediate_size=forward
    )


def long_work(model: ModelConfig, layers: int, predictions: int = 614) -> Work:
    """A few layers on one row of 4,096 tokens, by default with 15 % predictions."""
    return Work(replace(model, num_hidden_layers=layers), 1, ("mlm",), length=4096, predictions=predictions)


def quickstart() -> Work:
    """The work of the quickstart recipe."""
    config = load_recipe("quickstart")
    data, training = config.data, config.training
    return Work(
        replace(config.model, vocab_size=data.vocab_size),
        training.global_batch_size,
        training.objectives,
        length=data.sequence_length,
        predictions=data.max_predictions,
        execution=config.execution,
    )


WORK = {
    "tiny": Work(bert(2, 128, 2, 512), 64),
    "quickstart": quickstart(),
    "mini": Work(bert(4, 256, 4, 1024), 32),
    "base": Work(ModelConfig(), 8),
    "albert": Work(ALBERT.presets["base-v2"], 8, ("mlm", "sop")),
    "distilbert": Work(DISTILBERT.presets["base"], 8, ("mlm",)),
    "electra": Work(replace(ELECTRA.presets["small"], generator_width=GENERATOR_WIDTHS["small"]), 16, ("mlm", "rtd")),
    "modernbert-512": Work(MODERNBERT.presets["base"], 2, ("mlm",), length=512, predictions=154),
    "modernbert-4096": long_work(MODERNBERT.presets["base"], 6, predictions=1229),
    "longformer-512": Work(LONGFORMER.presets["base"], 2, ("mlm",), length=512, predictions=77),
    "longformer-4096": long_work(LONGFORMER.presets["base"], 3),
    # transformers' block-sparse attention has no dropout.
    "bigbird-4096": long_work(replace(BIGBIRD.presets["base"], attention_probs_dropout_prob=0.0), 3),
    "deberta-512": Work(DEBERTA.presets["base"], 2, ("mlm",), length=512, predictions=77),
    "deberta-4096": long_work(DEBERTA.presets["base"], 2),
}


def main() -> None:
    """Alternate the two sides and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("size", choices=WORK)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--dtypes", nargs="+", choices=("float32", "bfloat16"), default=["float32"])
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--gathered", action="store_true")
    parser.add_argument("--keras", metavar="PYTHON", help="an interpreter with keras-hub and jax, as another side")
    arguments = parser.parse_args()
    work = WORK[arguments.size]
    config = work.model
    if arguments.gathered and config.family not in HEADS:
        parser.error(f"--gathered is not supported for {config.family} ({arguments.size}), only for {', '.join(HEADS)}")
    if work.execution is DEFAULT_EXECUTION:
        work = replace(work, execution=ExecutionConfig(scan_unroll=config.num_hidden_layers, logits_chunk=320))
    sides = {}
    for dtype in arguments.dtypes:
        one = replace(work, execution=replace(work.execution, dtype=dtype))
        sides["bertjax", dtype] = Side("bertjax", one)
        for gathered in (False, True)[: 1 + arguments.gathered]:
            for compiled in (False, True)[: 1 + arguments.compile]:
                key = "transformers" + " gathered" * gathered, dtype + " compiled" * compiled
                sides[key] = Side("transformers", replace(one, compiled=compiled, gathered=gathered))
        for keeps_memory in (False, True) if arguments.keras else ():
            key = "keras-hub", dtype + " with our allocator" * keeps_memory
            try:
                sides[key] = KerasSide(arguments.keras, one, keeps_memory=keeps_memory)
            except ValueError as error:
                parser.error(f"--keras: {error}")
    for side in sides.values():
        side.ready()
    peaks: dict[str, list[float]] = {dtype: [] for dtype in arguments.dtypes}
    for number in range(arguments.rounds):
        for dtype, values in peaks.items():
            values.append(measured_peak_flops(2048, dtype=dtype))
        print(number, *(f"{' '.join(key)} {side.turn(1):.3f} s" for key, side in sides.items()), flush=True)
    for side in sides.values():
        side.close()
    times = {key: side.times for key, side in sides.items()}
    medians = {key: median(seconds) for key, seconds in times.items()}
    for key, seconds in medians.items():
        print(f"{' '.join(key)}: {seconds:.3f} s a step, {work.tokens / seconds:,.0f} tokens/s")
    for dtype, values in peaks.items():
        peak = median(values)
        bound = work.tokens * train_flops_per_token(config, work.length, work.predictions) / peak
        print(f"matmuls alone in {dtype}, {peak / 1e9:.0f} GFLOP/s: {bound:.3f} s, {work.tokens / bound:,.0f} tokens/s")
        print(f"share of the rate of the matmuls: bertjax {bound / medians['bertjax', dtype]:.1%} in {dtype}")
    for other in dict.fromkeys(side for side, _ in sides if side != "bertjax"):
        for dtype in arguments.dtypes:
            print(f"ratio bertjax / {other} in tokens/s in {dtype}: {ratio(times, other, dtype)}")
        print(f"ratio bertjax / {other} in tokens/s: {ratio(times, other)}")


def ratio(times: Mapping[tuple[str, str], Sequence[float]], other: str, dtype: str = "") -> str:
    """Format the ratio in tokens/s between each side's fastest setting (in one dtype, if given), and its range."""
    ours, theirs = (
        min(
            (seconds for (side, how), seconds in times.items() if (side, how[: len(dtype)]) == (name, dtype)),
            key=median,
        )
        for name in ("bertjax", other)
    )
    rounds = [their_time / our_time for our_time, their_time in zip(ours, theirs, strict=True)]
    return f"{median(theirs) / median(ours):.2f} ({min(rounds):.2f} to {max(rounds):.2f} in a round)"


if __name__ == "__main__":
    main()
