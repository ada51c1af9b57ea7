"""Fine-tuning compared with transformers' Trainer, with the same rows, batch size, schedule and initial weights.

    python tests/benchmarks/bench_finetune.py sst2 --model DIR --data DATA [--seeds 3] [--limit 0] [--results FILE]
    python tests/benchmarks/bench_finetune.py sst2 --model DIR --data DATA --turns 14

DIR is a folder in Hugging Face's layout, and DATA has `glue/`, `pos/` and `qa/`. For each seed both sides train one
after the other, each in its own process on all cores; prints a line of JSON for each, and finally the means. Results
are saved in FILE, and results that it has are not measured again. --turns compares only the seconds per step, without
evaluations, of runs that take turns of some seconds: bertjax, and the Trainer with default settings, with a data loader
process, and with torch.compile; its fastest setting counts. The Trainer needs the package `accelerate`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from turns import STEP_SECONDS, Run, in_turns, pool_steps


class Recipe(NamedTuple):
    """A task, its hyperparameters, and its expected result."""

    task: str
    batch: int
    rate: float
    epochs: float
    evaluations: int  # per epoch; the best one's weights are retained (0: the last weights)
    figure: str  # the metric that counts
    least: float


WORK = {
    "sst2": Recipe("sst2", 16, 7e-5, 2.0, 4, "accuracy", 0.88),
    "mrpc": Recipe("mrpc", 16, 5e-5, 3.0, 4, "f1", 0.84),
    "pos": Recipe("pos", 16, 1e-4, 6.0, 0, "accuracy", 0.88),
    "xquad": Recipe("squad", 8, 2e-4, 2.0, 0, "exact_match", 0.1),  # untrained: 0
}
_NEVER = 10**6  # patience of early stopping, in evaluations
_LOG_EVERY = 10  # steps of runs in turns; their mean is logged
_ENDLESS = 10**5  # steps of runs in turns, which are killed long before
SIDES = {  # with their TrainingArguments
    "bertjax": {},
    "transformers": {},
    "transformers, loader": {"dataloader_num_workers": 1},
    "transformers, compiled": {"torch_compile": True},
}


def main() -> None:
    """Compare both sides."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=WORK)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=0, help="stop after this many steps, for a first look")
    parser.add_argument("--results", type=Path, help="file of results; those that it has are not measured again")
    parser.add_argument("--turns", type=int, default=0, help="turns of each side; compare only the seconds of a step")
    parser.add_argument("--folder", type=Path, help="folder for a side's run (default: temporary)")
    parser.add_argument("--side", choices=SIDES, help="run only one seed of one side")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(run_side(arguments)), flush=True)
        return
    if arguments.turns:
        compare_in_turns(arguments)
        return
    results: dict[str, list[dict[str, Any]]] = {"bertjax": [], "transformers": []}
    for seed in range(arguments.seeds):
        for side, side_results in results.items():
            side_results.append(read_result(arguments, side, seed) or measure(arguments, side, seed))
            print(side, seed, json.dumps(side_results[-1]), flush=True)
    for side, side_results in results.items():
        for name in side_results[0]["figures"]:
            values = [result["figures"][name] for result in side_results]
            spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
            print(f"{side:12} {name:12} {100 * statistics.fmean(values):6.2f}{spread}")
        print(f"{side:12} seconds a step {statistics.median(result['step'] for result in side_results):.3f}")
        print(f"{side:12} seconds a seed {statistics.median(result['seconds'] for result in side_results):.0f}")
    recipe = WORK[arguments.work]
    print(f"expected     {recipe.figure:12} {100 * recipe.least:6.2f}")
    pairs = zip(*results.values(), strict=True)
    ratios = [theirs["step"] / ours["step"] for ours, theirs in pairs]  # of the same seed, measured one after the other
    text = " ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"ratio transformers / bertjax in seconds a step: {text}, median {statistics.median(ratios):.2f}")


def compare_in_turns(arguments: argparse.Namespace) -> None:
    """Print the seconds per step of all sides, and their ratios."""
    from bertjax.run.telemetry import METRICS_FILE

    with tempfile.TemporaryDirectory() as folder:
        runs = {}
        for side in SIDES:
            place = Path(folder) / side
            command = [sys.executable, __file__, *sys.argv[1:], "--side", side, "--folder", str(place)]
            runs[side] = Run([*command, "--limit", str(_ENDLESS)], place / "run" / METRICS_FILE)
        measured = in_turns(runs, arguments.turns)
    medians = {side: [statistics.median(steps) for steps in turns] for side, turns in measured.items()}
    means = {}
    for side, turns in measured.items():
        steps = pool_steps(turns)
        means[side] = statistics.fmean(steps)
        print(
            f"{side:22} seconds a step: median {statistics.median(steps):.3f}, mean {means[side]:.3f} "
            f"of {len(steps)} steps in {len(turns)} turns"
        )
    fastest = min((side for side in means if side != "bertjax"), key=means.__getitem__)
    ratios = [theirs / ours for ours, theirs in zip(medians["bertjax"], medians[fastest], strict=True)]
    print(f"fastest of the Trainer: {fastest}")
    print(f"ratio transformers / bertjax: of the means {means[fastest] / means['bertjax']:.2f}; turn by turn", end=" ")
    print(" ".join(f"{ratio:.2f}" for ratio in ratios), f"median {statistics.median(ratios):.2f}")


def read_result(arguments: argparse.Namespace, side: str, seed: int) -> dict[str, Any] | None:
    """The result that an earlier command has saved, if any."""
    lines = arguments.results.read_text().splitlines() if arguments.results and arguments.results.is_file() else []
    records = map(json.loads, lines)
    about = _about(arguments, side, seed)
    return next((record["result"] for record in records if record["about"] == about), None)


def measure(arguments: argparse.Namespace, side: str, seed: int) -> dict[str, Any]:
    """Run one seed of one side in its own process, and save the result."""
    command = [sys.executable, __file__, *sys.argv[1:], "--side", side, "--seed", str(seed)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result = json.loads(done.stdout.splitlines()[-1])
    if arguments.results:
        with arguments.results.open("a") as file:
            file.write(json.dumps({"about": _about(arguments, side, seed), "result": result}) + "\n")
    return result


def _about(arguments: argparse.Namespace, side: str, seed: int) -> list[Any]:
    return [arguments.work, *WORK[arguments.work], Path(arguments.model).name, arguments.limit, side, seed]


def run_side(arguments: argparse.Namespace) -> dict[str, Any]:
    """Run one seed of one side in this process."""
    from bertjax.config import TaskConfig
    from bertjax.finetune.job import resolved
    from bertjax.finetune.load import load_task
    from bertjax.finetune.recipes import config_for
    from bertjax.finetune.tasks import make_task
    from bertjax.pipeline.finetuning import read_start
    from bertjax.runtime.processes import alone

    recipe = WORK[arguments.work]
    # Entered before the model is read, as in `bertjax finetune`: its allocator settings help both sides.
    with alone() as processes, tempfile.TemporaryDirectory() as temporary:
        work = arguments.folder or Path(temporary)
        work.mkdir(exist_ok=True)
        start = read_start(f"hf:{arguments.model}")
        task = {"name": recipe.task, "epochs": recipe.epochs, **_files(arguments.work, arguments.data, work)}
        config = config_for(recipe.task, make_task(TaskConfig(**task)), start.origin, start.model, start.tokenizer)
        config = replace(
            config,
            run_dir=str(work / "run"),
            task=replace(config.task, **task, patience=_NEVER if recipe.evaluations else 0),
            optimizer=replace(config.optimizer, name="adamw", learning_rate=recipe.rate),
            training=replace(
                config.training, global_batch_size=recipe.batch, seed=arguments.seed, steps=arguments.limit, log_every=1
            ),
        )
        content = load_task(config, start.tokenizer)
        if arguments.turns:
            # By default one step in up to 50 is logged; the Trainer logs none here.
            periods = {"log_every": _LOG_EVERY, "eval_every": _ENDLESS, "checkpoint_every": _ENDLESS}
            config = replace(config, training=replace(config.training, **periods))
        elif recipe.evaluations:
            epoch = resolved(config, content).training.eval_every
            periods = {"eval_every": epoch // recipe.evaluations, "checkpoint_every": epoch}
            config = replace(config, training=replace(config.training, **periods))
        if arguments.side != "bertjax":
            from their_finetuning import finetune_with_trainer

            return finetune_with_trainer(
                resolved(config, content), content, arguments.model, work / "run", **SIDES[arguments.side]
            )
        return _ours(config, start, content, processes)


def _files(work: str, data: Path, folder: Path) -> dict[str, str]:
    """The paths of a task's files. SST-2 is reduced to 10,000 examples; XQuAD is split into 40 + 8 articles."""
    if work == "sst2":
        from sst2_sentences import write_sentences

        return {"data": str(write_sentences(data / "glue", folder, 10_000))}
    if work == "mrpc":
        return {"data": str(data / "glue")}
    if work == "pos":
        return {"train": str(next((data / "pos").glob("en_*")))}
    xquad = json.loads((data / "qa" / "xquad.en.json").read_text())
    parts = {"train": xquad["data"][:40], "dev": xquad["data"][40:]}
    for name, articles in parts.items():
        (folder / f"{name}.json").write_text(json.dumps({"version": "1.1", "data": articles}))
    return {name: str(folder / f"{name}.json") for name in parts}


def _ours(config: Any, start: Any, content: Any, processes: Any) -> dict[str, Any]:
    from bertjax.finetune.run import finetune
    from bertjax.run.telemetry import METRICS_FILE, read_metrics

    result = finetune(config, start, content, processes, lambda line: print(line, file=sys.stderr))
    records = read_metrics(Path(result.directory) / METRICS_FILE)
    steps = [record[STEP_SECONDS] for record in records if STEP_SECONDS in record]
    figures = {name.removeprefix("eval/"): value for name, value in result.figures.items()}
    return {"figures": figures, "step": statistics.median(steps), "seconds": result.seconds}


if __name__ == "__main__":
    main()
