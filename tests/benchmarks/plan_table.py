"""Compile the plans of the large recipes for every kind of machine, and write launch/plans.md.

    python tests/benchmarks/plan_table.py [--recipes NAME ...] [--topologies NAME ...] [--plans FILE] [--write]
        [--price TOPOLOGY=PRICE ...]

Each plan is made in its own process and saved in FILE, by default plans.json beside this program, so that the same
command continues after an interruption, even on another machine. --again remakes the plans of the chosen recipes and
machines, for example after a change of code; the page names the commit of each plan. GPUs need jax's CUDA plug-in, TPUs
libtpu; the last lines of the output list machines whose compiler is missing. `--write` writes all saved plans to
launch/plans.md, with a recipe's cost where the price of a chip-hour is given.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from bertjax.config.recipes import load_recipe, recipe_names
from bertjax.plan.figures import milliseconds
from bertjax.plan.topologies import GIB, set_environment
from bertjax.storage.files import replace_text

REPOSITORY = Path(__file__).resolve().parents[2]
PAGE = REPOSITORY / "launch" / "plans.md"
PLANS = REPOSITORY / "tests" / "benchmarks" / "plans.json"
TOPOLOGIES = {
    "v5e:4x4": "16 TPU v5e",
    "v4:2x2x4": "16 TPU v4",
    "v5p:2x2x4": "16 TPU v5p",
    "v6e:4x4": "16 TPU v6e",
    "tpu7x:2x2x4": "16 TPU7x (32 devices)",
    "h100:8": "8 H100",
    "h200:8": "8 H200",
    "b200:8": "8 B200",
}
# For one chip or a CPU, not for 16
SMALL = (
    "quickstart",
    "bert_mini",
    "chinese_mini",
    "modern_mini",
    "modern_one_gpu",
    "self_test",
    "dna_mini",
    "molecules_mini",
    "protein_mini",
)
RECIPES = tuple(name for name in recipe_names() if name not in SMALL)
COLUMNS = (
    *("recipe", "memory of a device", "step at best, ms", "limit", "MFU at most", "step by schedule, ms"),
    *("hours", "chip-hours", "cost"),
)
INTRODUCTION = """# Plans of the recipes

What `bertjax plan RECIPE --topology NAME` says of the recipes, each in its first variant, compiled for the machine by
its own compiler. Left out, for they are for one chip or a CPU: {small}.

Memory is the most that a device needs in any stage, of what it has; a step is the least that its compute, memory
traffic or links take by themselves, stage by stage; MFU is the bound that follows; the step by schedule is the TPU
compiler's own: of each instruction the longer of its cycles and its bytes, with all communication in series (–: not
made, or a machine whose compiler writes no schedule); hours are those of the whole recipe
at best, and if nothing that devices send each other is hidden; chip-hours and cost are at best. Memory traffic is what
the compiled kernels read and write: what a GPU's cache keeps from one kernel to the next is counted too, so that its
step may take less than is said here where memory traffic is the limit.

Made by `python tests/benchmarks/plan_table.py --write{prices}`, which makes what is
missing, and with `--again` all.
"""


def plan(recipe: str, topology: str) -> dict[str, Any]:
    """The figures of one plan, or the reason why it was refused."""
    with tempfile.TemporaryDirectory(prefix="bertjax-plan-") as folder:
        return _plan(recipe, topology, Path(folder))


def _plan(recipe: str, topology: str, dump: Path) -> dict[str, Any]:
    set_environment(topology, dump)
    from dataclasses import replace

    import jax

    from bertjax.plan.estimates import make_plan
    from bertjax.plan.topologies import open_topology
    from bertjax.text.trained_vocabulary import vocabulary_size

    config = load_recipe(recipe)
    config = replace(config, model=replace(config.model, vocab_size=vocabulary_size(config.data)[0]))
    where = open_topology(topology, 1)
    words = ["git", "-C", str(REPOSITORY), "describe", "--always", "--dirty"]
    commit = subprocess.run(words, capture_output=True, text=True, check=False).stdout.strip()
    about = {"jax": jax.__version__, "commit": commit or "unknown"}
    try:
        plan = make_plan(config, where, say=lambda line: print(line, file=sys.stderr))
    except ValueError as error:
        return about | {"refused": str(error).splitlines()[0]}
    bounds = [stage.bound for stage in plan.stages]
    return about | {
        "fits": plan.fits,
        "needed": max(stage.needed or 0 for stage in plan.stages),
        "capacity": plan.stages[0].capacity,
        "steps": [stage.steps for stage in plan.stages],
        "seconds": [bound and bound.overlapped for bound in bounds],
        "limits": [bound and bound.limited_by for bound in bounds],
        "mfu": [stage.mfu_bound for stage in plan.stages],
        "hours": plan.hours,
        "estimates": [stage.estimate for stage in plan.stages],
        "chips": where.chips,
    }


def row(recipe: str, figures: Mapping[str, Any], price: float | None) -> str:
    """The table row of one recipe on one machine, at a price per chip-hour."""
    if "refused" in figures:
        return f"| {recipe} | {figures['refused']} | | | | | | | |"
    memory = f"{figures['needed'] / GIB:.2f} of {figures['capacity'] / GIB:.1f} GiB"
    if not figures["fits"]:
        return f"| {recipe} | {memory}: does not fit | | | | | | | |"
    low, high = figures["hours"]
    steps = " / ".join(map(milliseconds, figures["seconds"]))
    limits = " / ".join(dict.fromkeys(figures["limits"]))
    mfu = " / ".join(f"{one:.0%}" for one in figures["mfu"])
    span = f"{low:,.1f}" if f"{low:,.1f}" == f"{high:,.1f}" else f"{low:,.1f} to {high:,.1f}"
    chip_hours = low * figures["chips"]
    cost = "" if price is None else f"{price * chip_hours:,.0f}"
    # Plans of earlier versions and plans for GPUs have no estimate.
    estimates = " / ".join("–" if one is None else milliseconds(one) for one in figures.get("estimates") or [None])
    return f"| {recipe} | {memory} | {steps} | {limits} | {mfu} | {estimates} | {span} | {chip_hours:,.0f} | {cost} |"


def page(plans: Mapping[str, Mapping[str, Any]], prices: Mapping[str, float]) -> str:
    """Format all plans {"bert_base on v5e:4x4": figures} as a table per machine; `prices` are per chip-hour."""
    parts = []
    for topology, title in TOPOLOGIES.items():
        known = {name: plans[key] for name in recipe_names() if (key := _key(name, topology)) in plans}
        if not known:
            continue
        price = prices.get(topology)
        parts.append(f"## {title}: `{topology}`" + ("" if price is None else f" at {price:g} a chip-hour") + "\n")
        parts.append(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
        parts += [row(name, figures, price) for name, figures in known.items()]
        parts.append(f"\n{versions(known)}\n")
        if absent := [name for name in RECIPES if name not in known]:
            parts.append(f"Not compiled for this machine: {', '.join(absent)}.\n")
    options = "".join(f" --price {topology}={price:g}" for topology, price in prices.items())
    return "\n".join([INTRODUCTION.format(small=", ".join(SMALL), prices=options), *parts])


def versions(known: Mapping[str, Mapping[str, Any]]) -> str:
    """The versions of a machine's plans; lists the recipes of all but the most common version."""
    by_version: dict[str, list[str]] = {}
    for name, figures in known.items():
        by_version.setdefault(f"jax {figures['jax']} at commit {figures['commit']}", []).append(name)
    most, *others = sorted(by_version, key=lambda version: -len(by_version[version]))
    return "; ".join([f"With {most}", *(f"with {one}: {', '.join(by_version[one])}" for one in others)]) + "."


def parse_price(text: str) -> tuple[str, float]:
    """Parse TOPOLOGY=PRICE."""
    topology, _, price = text.rpartition("=")
    if topology not in TOPOLOGIES:
        raise argparse.ArgumentTypeError(f"{text!r}: write TOPOLOGY=PRICE with one of {', '.join(TOPOLOGIES)}")
    return topology, float(price)


def make(recipes: Sequence[str], topologies: Sequence[str], path: Path, again: bool) -> list[str]:
    """Make the plans that the file lacks. Returns a line for each failure."""
    failed = []
    for topology in topologies:
        for name in recipes:
            key = _key(name, topology)
            if key in read_plans(path) and not again:
                continue
            print(key, flush=True)
            words = [sys.executable, __file__, "--one", name, topology]
            ended = subprocess.run(words, capture_output=True, text=True, cwd=REPOSITORY, check=False)
            if ended.returncode:
                failed.append(f"{key}: {(ended.stderr.strip().splitlines() or ['no message'])[-1]}")
                continue
            known = read_plans(path) | {key: json.loads(ended.stdout.splitlines()[-1])}
            lines = (f"{json.dumps(key)}: {json.dumps(figures)}" for key, figures in sorted(known.items()))
            replace_text(path, "{\n" + ",\n".join(lines) + "\n}\n")
    return failed


def read_plans(path: Path) -> dict[str, Any]:
    """The saved plans by recipe and machine."""
    return json.loads(path.read_text()) if path.exists() else {}


def _key(recipe: str, topology: str) -> str:
    return f"{recipe} on {topology}"


def main() -> int:
    """Make plans, and optionally write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--recipes", nargs="+", default=RECIPES, choices=recipe_names())
    parser.add_argument("--topologies", nargs="*", default=list(TOPOLOGIES), choices=TOPOLOGIES)
    parser.add_argument("--plans", type=Path, default=PLANS)
    parser.add_argument("--again", action="store_true", help="remake saved plans")
    parser.add_argument(
        "--price", nargs="+", default=[], type=parse_price, metavar="TOPOLOGY=PRICE", help="price of a chip-hour"
    )
    parser.add_argument("--write", action="store_true", help="write launch/plans.md")
    arguments = parser.parse_args()
    if arguments.one:
        print(json.dumps(plan(*arguments.one)))
        return 0
    failed = make(arguments.recipes, arguments.topologies, arguments.plans, arguments.again)
    if arguments.write:
        replace_text(PAGE, page(read_plans(arguments.plans), dict(arguments.price)))
        print(PAGE)
    for line in failed:
        print(line)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
