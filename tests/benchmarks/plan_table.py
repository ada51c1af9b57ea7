"""The plan of each large recipe on a machine of every kind, compiled for it, as tables in launch/plans.md.

    python tests/benchmarks/plan_table.py [--recipes NAME ...] [--topologies NAME ...] [--plans FILE] [--write]
        [--price TOPOLOGY=PRICE ...]

Each plan is made in a process of its own and kept in FILE, by default plans.json beside this program, so that the same
command goes on where it was interrupted, on another machine too; a plan of other code or another recipe is made again
with --again, for the given recipes and machines alone: the page names the commit of each. GPUs need jax's CUDA plug-in,
TPUs libtpu; a machine whose compiler is missing is left out, which the last lines say. `--write` writes what is known
to launch/plans.md, with what a recipe costs where the price of a chip-hour is given.
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
    """The figures of one plan, or why there is none."""
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
        made = make_plan(config, where, say=lambda line: print(line, file=sys.stderr))
    except ValueError as error:
        return about | {"refused": str(error).splitlines()[0]}
    bounds = [stage.bound for stage in made.stages]
    return about | {
        "fits": made.fits,
        "needed": max(stage.needed or 0 for stage in made.stages),
        "capacity": made.stages[0].capacity,
        "steps": [stage.steps for stage in made.stages],
        "seconds": [bound and bound.overlapped for bound in bounds],
        "limits": [bound and bound.limited_by for bound in bounds],
        "mfu": [stage.mfu_bound for stage in made.stages],
        "hours": made.hours,
        "estimates": [stage.estimate for stage in made.stages],
        "chips": where.chips,
    }


def row(recipe: str, found: Mapping[str, Any], price: float | None) -> str:
    """One recipe on one machine, at a price of a chip-hour."""
    if "refused" in found:
        return f"| {recipe} | {found['refused']} | | | | | | | |"
    memory = f"{found['needed'] / GIB:.2f} of {found['capacity'] / GIB:.1f} GiB"
    if not found["fits"]:
        return f"| {recipe} | {memory}: does not fit | | | | | | | |"
    low, high = found["hours"]
    steps = " / ".join(map(milliseconds, found["seconds"]))
    limits = " / ".join(dict.fromkeys(found["limits"]))
    mfu = " / ".join(f"{one:.0%}" for one in found["mfu"])
    span = f"{low:,.1f}" if f"{low:,.1f}" == f"{high:,.1f}" else f"{low:,.1f} to {high:,.1f}"
    chip_hours = low * found["chips"]
    cost = "" if price is None else f"{price * chip_hours:,.0f}"
    # Plans of earlier versions have no estimate, as those for GPUs have none.
    estimates = " / ".join("–" if one is None else milliseconds(one) for one in found.get("estimates") or [None])
    return f"| {recipe} | {memory} | {steps} | {limits} | {mfu} | {estimates} | {span} | {chip_hours:,.0f} | {cost} |"


def page(plans: Mapping[str, Mapping[str, Any]], prices: Mapping[str, float]) -> str:
    """All plans, "bert_base on v5e:4x4": figures, a table for each machine; `prices` of a chip-hour by topology."""
    parts = []
    for topology, title in TOPOLOGIES.items():
        known = {name: plans[key] for name in recipe_names() if (key := _key(name, topology)) in plans}
        if not known:
            continue
        price = prices.get(topology)
        parts.append(f"## {title}: `{topology}`" + ("" if price is None else f" at {price:g} a chip-hour") + "\n")
        parts.append(f"| {' | '.join(COLUMNS)} |\n|{'---|' * len(COLUMNS)}")
        parts += [row(name, found, price) for name, found in known.items()]
        parts.append(f"\n{versions(known)}\n")
        if absent := [name for name in RECIPES if name not in known]:
            parts.append(f"Not compiled for this machine: {', '.join(absent)}.\n")
    given = "".join(f" --price {topology}={price:g}" for topology, price in prices.items())
    return "\n".join([INTRODUCTION.format(small=", ".join(SMALL), prices=given), *parts])


def versions(known: Mapping[str, Mapping[str, Any]]) -> str:
    """With what the plans of a machine were made; those of a version that fewer have are named."""
    by_version: dict[str, list[str]] = {}
    for name, found in known.items():
        by_version.setdefault(f"jax {found['jax']} at commit {found['commit']}", []).append(name)
    most, *others = sorted(by_version, key=lambda version: -len(by_version[version]))
    return "; ".join([f"With {most}", *(f"with {one}: {', '.join(by_version[one])}" for one in others)]) + "."


def priced(written: str) -> tuple[str, float]:
    """A topology and its price, of TOPOLOGY=PRICE."""
    topology, _, price = written.rpartition("=")
    if topology not in TOPOLOGIES:
        raise argparse.ArgumentTypeError(f"{written!r}: write TOPOLOGY=PRICE with one of {', '.join(TOPOLOGIES)}")
    return topology, float(price)


def make(recipes: Sequence[str], topologies: Sequence[str], path: Path, again: bool) -> list[str]:
    """Make the plans that are not in the file. Returns what could not be made, a line for each."""
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
            lines = (f"{json.dumps(key)}: {json.dumps(found)}" for key, found in sorted(known.items()))
            replace_text(path, "{\n" + ",\n".join(lines) + "\n}\n")
    return failed


def read_plans(path: Path) -> dict[str, Any]:
    """What was planned, by recipe and machine."""
    return json.loads(path.read_text()) if path.exists() else {}


def _key(recipe: str, topology: str) -> str:
    return f"{recipe} on {topology}"


def main() -> int:
    """Make plans, and write the page if it is asked for."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    parser.add_argument("--recipes", nargs="+", default=RECIPES, choices=recipe_names())
    parser.add_argument("--topologies", nargs="*", default=list(TOPOLOGIES), choices=TOPOLOGIES)
    parser.add_argument("--plans", type=Path, default=PLANS)
    parser.add_argument("--again", action="store_true", help="make plans anew that are there")
    parser.add_argument("--price", nargs="+", default=[], type=priced, metavar="TOPOLOGY=PRICE", help="of a chip-hour")
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
