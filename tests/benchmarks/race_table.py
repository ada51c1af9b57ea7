"""Format the race between recipes as a table, from the record of `bench_race.py --record race.json`."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

# (figure of a run, title, factor, format)
COLUMNS = (
    ("steps", "steps", 1, ",.0f"),
    ("sst2", "SST-2", 100, ".1f"),
    ("mrpc", "MRPC F1", 100, ".1f"),
    ("qnli", "QNLI", 100, ".1f"),
    ("pos", "POS", 100, ".1f"),
    ("cranfield", "Cranfield nDCG@10", 100, ".1f"),
)
CAPTION = (
    "Recipes at 4 layers of width 256, each for as many steps as two cores take in 60 minutes, on the same text, then "
    "fine-tuned at two rates (the better one counts); ± is the standard error of the means over seeds, or of "
    "one seed over its examples (`bench_race.py all --data DATA --folder DIR --record FILE`, {commits}):"
)
BASELINE = "most frequent answer"


def race_table(record: Mapping[str, Any]) -> list[str]:
    """The lines of the table, with means over seeds; [] while no run is finished."""
    by_recipe: dict[str, list[Mapping[str, Any]]] = {name: [] for name in record["speeds"]}
    for run, outcome in record["runs"].items():
        by_recipe.setdefault(run.rpartition("_")[0], []).append(outcome)
    rows = [
        f"| {recipe} | {' | '.join(_cell(runs, *column) for column in COLUMNS)} |"
        for recipe, runs in by_recipe.items()
        if runs
    ]
    if not rows:
        return []
    titles = ("", *(title for _, title, _, _ in COLUMNS))
    runs = [run for recipe_runs in by_recipe.values() for run in recipe_runs]
    answers = (_cell(runs[:1], f"{figure}_baseline", *others) for figure, *others in COLUMNS)
    baseline = f"| {BASELINE} | {' | '.join(answers)} |"
    caption = CAPTION.format(commits=", ".join(sorted({run["commit"] for run in runs})))
    return ["", caption, "", f"| {' | '.join(titles)} |", "|---" * len(titles) + "|", baseline, *rows]


def _cell(runs: Sequence[Mapping[str, Any]], figure: str, _: str, factor: float, form: str) -> str:
    """The mean over seeds and its standard error: over several seeds, or else over the examples."""
    values = [factor * run[figure] for run in runs if figure in run]
    if not values:
        return ""
    mean, error = f"{statistics.fmean(values):{form}}", f"{figure}_error"
    if len(values) > 1:
        return f"{mean} ± {statistics.stdev(values) / len(values) ** 0.5:{form}}"
    return f"{mean} ± {factor * runs[0][error]:{form}}" if error in runs[0] else mean
