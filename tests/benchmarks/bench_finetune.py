"""Fine-tuning beside transformers' own Trainer, on the same rows, batch size, schedule and weights.

    python tests/benchmarks/bench_finetune.py sst2 --model DIR --data DATA [--seeds 3] [--limit 0] [--results FILE]
    python tests/benchmarks/bench_finetune.py sst2 --model DIR --data DATA --turns 14

DIR is a folder in Hugging Face's layout, DATA a folder with GLUE's `glue/`, `pos/` and `qa/`. For each seed both sides
train in turn, each in a process of its own on all cores; a line of JSON is printed for each, and at the end the means.
With FILE every result is kept there, and what it has is not run again. With --turns only the seconds of a step are
compared, without evaluations, of runs that have the machine in turns of some seconds: ours, the Trainer's as it is,
with a process that makes its batches, and with torch.compile, of which the fastest counts.
`accelerate`, which the Trainer needs, has to be installed.
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

from turns import STEP_SECONDS, Run, in_turns, steps_of


class Recipe(NamedTuple):
    """A task, how it is learned, and what should come of it."""

    task: str
    batch: int
    rate: float
    epochs: float
    evaluations: int  # an epoch, of which the best's weights are kept; 0: the last are
    figure: str  # the one that counts
    least: float


WORK = {
    "sst2": Recipe("sst2", 16, 7e-5, 2.0, 4, "accuracy", 0.88),
    "mrpc": Recipe("mrpc", 16, 5e-5, 3.0, 4, "f1", 0.84),
    "pos": Recipe("pos", 16, 1e-4, 6.0, 0, "accuracy", 0.88),
    "xquad": Recipe("squad", 8, 2e-4, 2.0, 0, "exact_match", 0.1),  # untrained: 0
}
_NEVER = 10**6  # evaluations without a better one, after which a run would stop early
_LOGGED = 10  # steps, of whose mean each measured second is then one
_ENDLESS = 10**5  # steps of runs in turns, which are ended by then
SIDES = {  # with what TrainingArguments takes
    "bertjax": {},
    "transformers": {},
    "transformers, loader": {"dataloader_num_workers": 1},
    "transformers, compiled": {"torch_compile": True},
}


def main() -> None:
    """Both sides in turn."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("work", choices=WORK)
    parser.add_argument("--model", required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--limit", type=int, default=0, help="stop after so many steps, for a first look")
    parser.add_argument("--results", type=Path, help="keep what was measured in this file, and go on from it")
    parser.add_argument("--turns", type=int, default=0, help="of each side; compare only the seconds of a step")
    parser.add_argument("--folder", type=Path, help="where a side's run is; a temporary folder if not given")
    parser.add_argument("--side", choices=SIDES, help="run only one seed of one side")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    if arguments.side:
        print(json.dumps(one(arguments)), flush=True)
        return
    if arguments.turns:
        compare_in_turns(arguments)
        return
    results: dict[str, list[dict[str, Any]]] = {"bertjax": [], "transformers": []}
    for seed in range(arguments.seeds):
        for side, found in results.items():
            found.append(kept(arguments, side, seed) or measured(arguments, side, seed))
            print(side, seed, json.dumps(found[-1]), flush=True)
    for side, found in results.items():
        for name in found[0]["figures"]:
            values = [result["figures"][name] for result in found]
            spread = f" ± {100 * statistics.stdev(values):.2f}" if len(values) > 1 else ""
            print(f"{side:12} {name:12} {100 * statistics.fmean(values):6.2f}{spread}")
        print(f"{side:12} seconds a step {statistics.median(result['step'] for result in found):.3f}")
        print(f"{side:12} seconds a seed {statistics.median(result['seconds'] for result in found):.0f}")
    recipe = WORK[arguments.work]
    print(f"wanted       {recipe.figure:12} {100 * recipe.least:6.2f}")
    pairs = zip(*results.values(), strict=True)
    ratios = [theirs["step"] / ours["step"] for ours, theirs in pairs]  # of a seed, one right after the other
    listed = " ".join(f"{ratio:.2f}" for ratio in ratios)
    print(f"ratio transformers / bertjax in seconds a step: {listed}, median {statistics.median(ratios):.2f}")


def compare_in_turns(arguments: argparse.Namespace) -> None:
    """Print the seconds of a step of both sides, and their ratios."""
    from bertjax.run.telemetry import METRICS_FILE

    with tempfile.TemporaryDirectory() as folder:
        runs = {}
        for side in SIDES:
            place = Path(folder) / side
            command = [sys.executable, __file__, *sys.argv[1:], "--side", side, "--folder", str(place)]
            runs[side] = Run([*command, "--limit", str(_ENDLESS)], place / "run" / METRICS_FILE)
        found = in_turns(runs, arguments.turns)
    of_turns = {side: [statistics.median(steps) for steps in turns] for side, turns in found.items()}
    means = {}
    for side, turns in found.items():
        steps = steps_of(turns)
        means[side] = statistics.fmean(steps)
        print(
            f"{side:22} seconds a step: median {statistics.median(steps):.3f}, mean {means[side]:.3f} "
            f"of {len(steps)} steps in {len(turns)} turns"
        )
    fastest = min((side for side in means if side != "bertjax"), key=means.__getitem__)
    ratios = [theirs / ours for ours, theirs in zip(of_turns["bertjax"], of_turns[fastest], strict=True)]
    print(f"fastest of the Trainer: {fastest}")
    print(f"ratio transformers / bertjax: of the means {means[fastest] / means['bertjax']:.2f}; turn by turn", end=" ")
    print(" ".join(f"{ratio:.2f}" for ratio in ratios), f"median {statistics.median(ratios):.2f}")


def kept(arguments: argparse.Namespace, side: str, seed: int) -> dict[str, Any] | None:
    """What an earlier run has measured of it."""
    lines = arguments.results.read_text().splitlines() if arguments.results and arguments.results.is_file() else []
    records = map(json.loads, lines)
    about = _about(arguments, side, seed)
    return next((record["result"] for record in records if record["about"] == about), None)


def measured(arguments: argparse.Namespace, side: str, seed: int) -> dict[str, Any]:
    """In a process of its own."""
    command = [sys.executable, __file__, *sys.argv[1:], "--side", side, "--seed", str(seed)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    result = json.loads(done.stdout.splitlines()[-1])
    if arguments.results:
        with arguments.results.open("a") as file:
            file.write(json.dumps({"about": _about(arguments, side, seed), "result": result}) + "\n")
    return result


def _about(arguments: argparse.Namespace, side: str, seed: int) -> list[Any]:
    return [arguments.work, *WORK[arguments.work], Path(arguments.model).name, arguments.limit, side, seed]


def one(arguments: argparse.Namespace) -> dict[str, Any]:
    """One seed of one side."""
    from bertjax.config import TaskConfig
    from bertjax.finetune.job import resolved
    from bertjax.finetune.load import load_task
    from bertjax.finetune.recipes import config_for
    from bertjax.finetune.tasks import make_task
    from bertjax.pipeline.finetuning import read_start
    from bertjax.runtime.processes import alone

    recipe = WORK[arguments.work]
    # Entered before the model is read, as `bertjax finetune` does: what it tells the C library helps both sides.
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
            # A user's log has one step in up to 50; the Trainer has none here.
            seldom = {"log_every": _LOGGED, "eval_every": _ENDLESS, "checkpoint_every": _ENDLESS}
            config = replace(config, training=replace(config.training, **seldom))
        elif recipe.evaluations:
            an_epoch = resolved(config, content).training.eval_every
            often = {"eval_every": an_epoch // recipe.evaluations, "checkpoint_every": an_epoch}
            config = replace(config, training=replace(config.training, **often))
        if arguments.side != "bertjax":
            from their_finetuning import theirs

            return theirs(resolved(config, content), content, arguments.model, work / "run", **SIDES[arguments.side])
        return _ours(config, start, content, processes)


def _files(work: str, data: Path, folder: Path) -> dict[str, str]:
    """Where a task's files are: 10,000 sentences of SST-2; of XQuAD 40 articles to train on, 8 others to measure."""
    if work == "sst2":
        from sst2_sentences import write_sentences

        return {"data": str(write_sentences(data / "glue", folder, 10_000))}
    if work == "mrpc":
        return {"data": str(data / "glue")}
    if work == "pos":
        return {"train": str(next((data / "pos").glob("en_*")))}
    whole = json.loads((data / "qa" / "xquad.en.json").read_text())
    parts = {"train": whole["data"][:40], "dev": whole["data"][40:]}
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
