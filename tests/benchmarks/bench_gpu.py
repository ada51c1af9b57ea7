"""Tokens/s and MFU of BERT-Base and Large at 128 and 512 in bfloat16, compared with transformers on the same GPU.

    python tests/benchmarks/bench_gpu.py --output bench_gpu.json
    python tests/benchmarks/bench_gpu.py --sizes tiny --lengths 128 --tokens 512 --device cpu --steps 2   # a rehearsal

The other side is transformers' BertForPreTraining with SDPA, torch.compile, autocast and fused AdamW. The sides of a
table row are processes that take turns on the device, with several steps per turn; the median of the rounds counts.
Compares the paper's dropout with no attention dropout (which allows fused attention), packed rows of four pairs with
half-empty rows, and measures the cost of `deterministic`. Batches are random ids, so that neither text nor tokenizer is
needed. MFU uses bertjax.training.flops over real tokens, and the peak of the data sheet.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from types import SimpleNamespace

from sides import Side, Work

from bertjax.config import ExecutionConfig, ModelConfig
from bertjax.model.attention.choice import choose_attention, compute_capability
from bertjax.training.flops import peak_flops, train_flops_per_token

SIZES = {  # name: (layers, hidden, heads)
    "tiny": (2, 128, 2),
    "base": (12, 768, 12),
    "large": (24, 1024, 16),
}
PREDICTIONS = {128: 20, 512: 76}
HALF_FULL = 0.55  # the share of text in rows of 512 tokens of Wikipedia, by tests/benchmarks/bench_packing.py


@dataclass(frozen=True)
class Row:
    """One comparison: sides that take turns, where the first is the baseline."""

    name: str
    sides: dict[str, tuple[str, Work]]


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    """Yield the chosen comparisons."""
    for size in arguments.sizes:
        layers, hidden, heads = SIZES[size]
        for length in arguments.lengths:
            model = ModelConfig(
                hidden_size=hidden,
                num_hidden_layers=layers,
                num_attention_heads=heads,
                intermediate_size=4 * hidden,
            )
            work = Work(
                model,
                max(1, arguments.tokens // length),
                length=length,
                predictions=PREDICTIONS.get(length, max(1, length * 3 // 20)),
                device=arguments.device,
                compiled=arguments.compile,
                execution=ExecutionConfig(dtype="bfloat16", scan_unroll=layers if arguments.unroll else 1),
            )
            yield from comparisons(f"{size} {length}", work)


def comparisons(name: str, work: Work) -> Iterator[Row]:
    """Yield the comparisons for one model and length."""
    plain = replace(work, model=replace(work.model, attention_probs_dropout_prob=0.0))
    for label, one in (("dropout 0.1", work), ("no attention dropout", plain)):
        yield Row(f"{name}, {label}", {"bertjax": ("bertjax", one), "transformers": ("transformers", one)})
    yield Row(
        f"{name}, deterministic",
        {"bertjax": ("bertjax", plain), "deterministic": ("bertjax", replace(plain, deterministic=True))},
    )
    if work.length >= 512:
        padded, packed = replace(plain, filled=HALF_FULL), replace(plain, pairs=4)
        sides = {"packed": ("bertjax", packed), "unpacked": ("bertjax", padded)}
        yield Row(f"{name}, rows half of text", sides | {"transformers": ("transformers", padded)})


def measure(row: Row, steps: int, rounds: int) -> list[dict]:
    """Let the sides take turns, and return their figures."""
    sides = {name: Side(side, work) for name, (side, work) in row.sides.items()}
    try:
        kinds = {name: side.ready() for name, side in sides.items()}
        for _ in range(rounds):
            for side in sides.values():
                side.turn(steps)
    finally:
        for side in sides.values():
            side.close()
    kind = next(iter(kinds.values()))
    results = []
    for name, side in sides.items():
        program, work = row.sides[name]
        seconds = statistics.median(side.times)
        rate, peak = work.tokens / seconds, peak_flops(kind)
        flops = train_flops_per_token(work.model, work.length // work.pairs, work.predictions / work.pairs)
        attention = "sdpa"
        if program == "bertjax":
            platform = "cpu" if work.device == "cpu" else "gpu"
            capability = compute_capability(SimpleNamespace(platform=platform, device_kind=kind))
            attention = str(
                choose_attention(work.model, work.execution, platform, work.length, work.pairs > 1, capability)
            )
        results.append(
            {
                "row": row.name,
                "side": name,
                "batch": f"{work.rows} x {work.length}",
                "device": kind,
                "attention": attention,
                "seconds": seconds,
                "times": side.times,
                "tokens_per_second": rate,
                "mfu": rate * flops / peak if peak else None,
            }
        )
    for figures in results:
        figures["times_the_first"] = figures["tokens_per_second"] / results[0]["tokens_per_second"]
    return results


def format_line(figures: dict) -> str:
    """A line of the table."""
    mfu = "     -" if figures["mfu"] is None else f"{figures['mfu']:6.1%}"
    return (
        f"{figures['row']:38} {figures['side']:14} {figures['batch']:>9} {figures['seconds'] * 1e3:9.1f} ms "
        f"{figures['tokens_per_second']:12,.0f} tok/s  MFU {mfu}  x{figures['times_the_first']:.2f}  "
        f"{figures['attention']}"
    )


def versions() -> dict[str, str]:
    """The versions of Python and the relevant packages."""
    installed = {d.metadata["Name"].lower(): d.version for d in metadata.distributions()}
    names = ("jax", "jaxlib", "flax", "torch", "transformers")
    return {name: installed[name] for name in names if name in installed} | {"python": platform.python_version()}


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=SIZES, default=["large", "base"])
    parser.add_argument("--lengths", nargs="+", type=int, default=[128, 512])
    parser.add_argument("--tokens", type=int, default=32_768, help="tokens of a batch (%(default)s)")
    parser.add_argument("--steps", type=int, default=15, help="steps of a turn (%(default)s)")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", default="", help="run only comparisons whose name contains this")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument(
        "--unroll", action=argparse.BooleanOptionalAction, default=True, help="unroll the scan over layers"
    )
    parser.add_argument(
        "--compile", action=argparse.BooleanOptionalAction, default=True, help="run transformers under torch.compile"
    )
    parser.add_argument("--output", type=Path, default=Path("bench_gpu.json"))
    return parser.parse_args(words)


def main() -> int:
    """Measure the chosen comparisons, print each one, and write all to a file. Returns the exit code."""
    arguments = parse()
    # Two processes share the GPU's memory.
    os.environ["XLA_PYTHON_CLIENT_PREALLOCATE"] = "false"
    os.environ["JAX_PLATFORMS"] = arguments.device
    figures: list[dict] = []
    failed = False
    for row in rows(arguments):
        if arguments.only not in row.name:
            continue
        try:
            results = measure(row, arguments.steps, arguments.rounds)
        except EOFError:
            print(f"{row.name:38} a side died; its error is printed above", flush=True)
            failed = True
            continue
        figures += results
        print(*map(format_line, results), sep="\n", flush=True)
        # Write after each comparison, because a lent machine may be taken back.
        arguments.output.write_text(json.dumps({"versions": versions(), "figures": figures}, indent=1))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
