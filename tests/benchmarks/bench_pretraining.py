"""Compare bertjax with transformers' Trainer after equal minutes, on the same text, size, batch and machine.

    python tests/benchmarks/bench_pretraining.py times --folder DIR --data DATA [--turns 8] [--rows pairs grouped]
    python tests/benchmarks/bench_pretraining.py train --folder DIR --data DATA [--minutes 30] [--seeds 3]
    python tests/benchmarks/bench_pretraining.py measure --folder DIR --data DATA [--seeds 3]
    python tests/benchmarks/bench_pretraining.py tasks --folder DIR --data DATA [--seeds 3] [--tasks sst2 mrpc]
    python tests/benchmarks/bench_pretraining.py table --folder DIR
    python tests/benchmarks/bench_pretraining.py all --folder DIR --data DATA     all phases; finished work is reused

`times` needs an idle machine. It measures, in turns, every setting of transformers (float32 or bfloat16 autocast, with
and without torch.compile; sentence pairs in random order or grouped by length, or rows full of sentences without
next-sentence prediction) and of bertjax (float32 or bfloat16; pairs, packed pairs, or rows full of sentences). It
chooses transformers' fastest setting in real tokens/s, and then bertjax's fastest with the same objectives. `train`
takes as many steps as fit into the minutes at the measured speed, so it can run under any load, and the same command
continues it after an interruption. The minutes count steps only: no start, compilation, text preparation, saves or
evaluations. Size, text, vocabulary, batch, length, peak rate and dropout are those of bench_race.py for all.
`bertjax` uses the other side's recipe: BERT's objectives and masks, and the Trainer's initial values, AdamW with bias
correction, and decay from the end of the warm-up; `bertjax_third` is the same in a third of the minutes.
`modernbert_third` is bertjax with its own recipe for short runs, modern_mini, in a third of the minutes. `measure`
exports every run at twelfths of its minutes to Hugging Face's layout, and computes the loss on the same masked held-out
rows with transformers' class. `tasks` fine-tunes the last export of every run with `bertjax finetune`. DATA has
wikipedia_en/, books_en/ and glue/. --record FILE records speeds and the outcomes of finished runs, and skips recorded
work, so that races can run in parts. With --tiny the model is too small to learn, and the phases are only tested.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import shutil
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from bench_race import (
    ENDLESS,
    LENGTH,
    SIZES,
    TASKS,
    best,
    fine_tune,
    format_mean,
    make_config,
    print_gains,
    task_files,
)
from race_record import RaceRecord, require_same_commit
from turns import Run, in_turns, pool_steps

import bertjax
from bertjax.config import Config, with_values
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.tokenizer_files import tokenizer_texts
from bertjax.run.checkpoint import DIRECTORY as CHECKPOINTS
from bertjax.run.run_data import open_data
from bertjax.run.run_directory import load_run
from bertjax.runtime.host_memory import keep_freed_memory
from bertjax.storage.files import replace_text
from bertjax.storage.progress import ProgressLine

ROWS = SIZES["mini"].rows
POINTS = 12  # measurements of a run
HELD_OUT = 2_048  # rows
ROWS_TIMED = 1_000 * ROWS  # transformers' data set in `times`, which it repeats
SAMPLED_BATCHES = 64  # to estimate the real tokens of a batch
ROW_KEYS: Mapping[str, Mapping[str, Any]] = {
    "pairs": {},
    "grouped": {},
    "packed": {"data.packing": "pairs"},
    "full_sentences": {"data.rows": "full_sentences", "training.objectives": ["mlm"]},
    "documents": {},
}
WITHOUT_NSP = ("full_sentences", "documents")
THEIRS = {
    # The initial values of transformers' class, which does not scale down the outputs of residual branches.
    "model.initializer": "truncated",
    "model.initializer_range": 0.02,
    # The Trainer's optimizer: AdamW with bias correction, and a rate that decays from the end of the warm-up.
    "optimizer.name": "adamw",
    "optimizer.schedule": "linear_after_warmup",
}
TINY = {
    "model.hidden_size": 32,
    "model.num_attention_heads": 2,
    "model.intermediate_size": 64,
    "data.vocab_size": 2_000,
}


class Side(NamedTuple):
    """A program with a recipe of bench_race.py."""

    recipe: str
    rows: tuple[str, ...]  # kinds of rows to try
    keys: Mapping[str, Any] = {}


SIDES = {
    "transformers": Side("bert", ("pairs", "grouped", "full_sentences"), THEIRS),
    "bertjax": Side("bert", ("pairs", "packed", "full_sentences"), THEIRS),
    "modernbert": Side("modernbert", ("documents",)),
}


class Entrant(NamedTuple):
    """One competitor: a side and its share of the minutes."""

    side: str
    share: float


ENTRANTS = {
    "transformers": Entrant("transformers", 1.0),
    "bertjax": Entrant("bertjax", 1.0),
    "bertjax_third": Entrant("bertjax", 1 / 3),
    "modernbert_third": Entrant("modernbert", 1 / 3),
}
REACHING = {"the same recipe": ("bertjax", "bertjax_third"), "modern_mini": ("modernbert_third",)}


class Setting(NamedTuple):
    """A side's precision and compilation, and its kind of rows."""

    side: str
    rows: str
    dtype: str
    compiled: bool = False

    def __str__(self) -> str:
        return f"{self.side}-{self.rows}-{self.dtype}{'-compiled' * self.compiled}"

    @property
    def objectives(self) -> str:
        """The objectives, which must match for a comparison."""
        return "mlm" if self.rows in WITHOUT_NSP else "mlm and nsp"


SETTINGS = [
    Setting(name, rows, dtype, compiled)
    for name, side in SIDES.items()
    for rows in side.rows
    for dtype in ("float32", "bfloat16")
    for compiled in ((False, True) if name == "transformers" else (False,))
]
NAMED = {str(setting): setting for setting in SETTINGS}


class Speed(NamedTuple):
    """The speed of a setting."""

    seconds: float  # per step
    tokens: float  # real tokens per batch

    @property
    def rate(self) -> float:
        """Real tokens/s."""
        return self.tokens / self.seconds


def make_run_config(arguments: argparse.Namespace, setting: Setting, seed: int, steps: int, run: Path) -> Config:
    """The recipe of a side with the keys of a setting."""
    side = SIDES[setting.side]
    config = make_config(side.recipe, arguments, seed, steps)
    keys = {**side.keys, **ROW_KEYS[setting.rows], "execution.dtype": setting.dtype, **(TINY if arguments.tiny else {})}
    return with_values(replace(config, run_dir=str(run), log=()), keys)


def times(arguments: argparse.Namespace) -> None:
    """Time the settings of sides without a known speed in turns, then the fastest ones and the known sides."""
    known = _chosen(arguments)
    settings = [one for one in SETTINGS if one.side not in known]
    settings = [one for one in settings if one.side != "transformers" or one.rows in arguments.rows]
    bertjax.prepare(make_run_config(arguments, SETTINGS[0], 0, ENDLESS, arguments.folder))
    shutil.rmtree(arguments.folder / "turns", ignore_errors=True)
    fastest = [NAMED[one["setting"]] for one in known.values()]
    for (side, rows), heat in itertools.groupby(settings, lambda setting: (setting.side, setting.rows)):
        fastest.append(_fastest(_speeds(arguments, list(heat), f"{side}_{rows}")))
    final = _speeds(arguments, fastest, "final")
    theirs = _fastest({setting: speed for setting, speed in final.items() if setting.side == "transformers"})
    # Earlier runs were planned with the speeds of another day. Scale the new speeds to that day's transformers.
    scale = known["transformers"]["seconds"] / final[theirs].seconds if known else 1.0
    new = {}
    for side in dict.fromkeys(setting.side for setting in settings):
        one = _fastest({setting: speed for setting, speed in final.items() if _may_race(setting, side, theirs)})
        new[side] = {"setting": str(one), "seconds": final[one].seconds * scale, "tokens": final[one].tokens}
    replace_text(arguments.folder / "times.json", json.dumps(known | new, indent=1) + "\n")
    _record(arguments).add_speeds(new)
    _print_chosen(arguments)


def _may_race(setting: Setting, side: str, theirs: Setting) -> bool:
    """Whether a setting belongs to a side, and matches transformers' objectives if the recipes are equal."""
    same = SIDES[side].recipe == SIDES["transformers"].recipe
    return setting.side == side and (not same or setting.objectives == theirs.objectives)


def _chosen(arguments: argparse.Namespace) -> dict[str, Any]:
    """The setting and speed of each side, from the record or else from the folder."""
    path = arguments.folder / "times.json"
    return (_read(path) if path.is_file() else {}) | _record(arguments).speeds


def _record(arguments: argparse.Namespace) -> RaceRecord:
    return RaceRecord(arguments.record, {"minutes": arguments.minutes, "tiny": arguments.tiny})


def _print_chosen(arguments: argparse.Namespace) -> None:
    chosen_by_side = _chosen(arguments)
    rates = {side: Speed(one["seconds"], one["tokens"]).rate for side, one in chosen_by_side.items()}
    for side, one in chosen_by_side.items():
        setting = NAMED[one["setting"]]
        print(
            f"chosen: {setting} ({setting.objectives}), {one['seconds']:.4f} s a step, {rates[side]:,.0f} real tokens/s"
        )
    print(f"ratio bertjax / transformers in real tokens/s: {rates['bertjax'] / rates['transformers']:.2f}")


def _fastest(speeds: Mapping[Setting, Speed]) -> Setting:
    return max(speeds, key=lambda setting: speeds[setting].rate)


def _speeds(arguments: argparse.Namespace, settings: Sequence[Setting], heat: str) -> dict[Setting, Speed]:
    runs = {}
    for setting in settings:
        place = arguments.folder / "turns" / heat / str(setting)
        words = ["one", str(setting), *_shared_options(arguments), "--run-dir", str(place)]
        runs[str(setting)] = Run([sys.executable, __file__, *words], place / "metrics.jsonl")
    measured = in_turns(runs, arguments.turns)
    speeds = {}
    for setting in settings:
        # The mean, because steps on rows grouped by length vary.
        seconds = statistics.fmean(pool_steps(measured[str(setting)]))
        speeds[setting] = Speed(seconds, _real_tokens(arguments, setting))
        print(
            f"{heat:27} {setting!s:46} {seconds:.4f} s a step, {speeds[setting].rate:8,.0f} real tokens/s", flush=True
        )
    return speeds


def _real_tokens(arguments: argparse.Namespace, setting: Setting) -> float:
    config = make_run_config(arguments, setting, 0, ENDLESS, arguments.folder)
    batches = open_data(config, ProgressLine()).train(config.data, 0)
    return statistics.fmean(int((batches.batch(k, ROWS)["sequence_ids"] > 0).sum()) for k in range(SAMPLED_BATCHES))


def one(arguments: argparse.Namespace) -> None:
    """Train with one setting endlessly, for `times`."""
    setting, run = NAMED[arguments.name], Path(arguments.run_dir)
    config = make_run_config(arguments, setting, 0, ENDLESS, run)
    if setting.side == "transformers":
        _train_theirs(arguments, config, setting, run, count=ROWS_TIMED, every=0)
        return
    training = replace(config.training, log_every=1, eval_every=ENDLESS, checkpoint_every=ENDLESS)
    bertjax.pretrain(replace(config, training=training))


def _train_theirs(
    arguments: argparse.Namespace, config: Config, setting: Setting, run: Path, *, count: int, every: int
) -> None:
    keep_freed_memory()  # as bertjax does; helps both sides
    from their_trainer import UnmaskedRows, pretrain

    content = open_data(config, ProgressLine())
    rows = UnmaskedRows(
        content.train(config.data, config.training.seed),
        count,
        content.tokenizer,
        pairs="nsp" in config.training.objectives,
    )
    tokenizer = arguments.folder / "tokenizer"
    tokenizer.mkdir(exist_ok=True)
    for name, text in tokenizer_texts(content.tokenizer, LENGTH, config.model.family).items():
        (tokenizer / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    # The vocabulary size depends on the text.
    fitted = replace(config, model=replace(config.model, vocab_size=content.tokenizer.vocab_size))
    exports = arguments.folder / "exports" / run.name
    grouped = setting.rows == "grouped"
    pretrain(fitted, rows, run, exports, tokenizer, compiled=setting.compiled, grouped=grouped, every=every)


def train(arguments: argparse.Namespace) -> None:
    """Train every entrant with each seed for its minutes, each in its own process."""
    record = _record(arguments)
    for seed, name in itertools.product(range(arguments.seeds), ENTRANTS):
        if not record.has(f"{name}_{seed}", ["losses", *arguments.tasks]):
            words = ["seed", name, "--seed", str(seed), "--minutes", str(arguments.minutes)]
            subprocess.run([sys.executable, __file__, *words, *_shared_options(arguments)], check=True)


def seed(arguments: argparse.Namespace) -> None:
    """Train one entrant with one seed, or continue its run."""
    name = f"{arguments.name}_{arguments.seed}"
    run, plan = arguments.folder / "runs" / name, arguments.folder / "plans" / f"{name}.json"
    entrant = ENTRANTS[arguments.name]
    chosen = _chosen(arguments)[entrant.side]
    setting, minutes = NAMED[chosen["setting"]], arguments.minutes * entrant.share
    steps = POINTS * max(round(minutes * 60 / chosen["seconds"] / POINTS), 1)
    about = {"setting": str(setting), "minutes": minutes, "steps": steps}
    if plan.exists() and _read(plan) != about:
        raise SystemExit(f"{run} was started as {_read(plan)}, not as {about}; give another --folder")
    plan.parent.mkdir(parents=True, exist_ok=True)
    replace_text(plan, json.dumps(about) + "\n")
    if (arguments.folder / "exports" / name / str(steps)).is_dir():
        return
    print(f"{name}: {steps:,} steps of {setting}", flush=True)
    config, every = make_run_config(arguments, setting, arguments.seed, steps, run), steps // POINTS
    if setting.side == "transformers":
        _train_theirs(arguments, config, setting, run, count=steps * ROWS, every=every)
        return
    training = replace(config.training, checkpoint_every=every, keep_every=every, eval_every=steps, eval_rows=256)
    bertjax.pretrain(replace(config, training=training))
    for step in range(every, steps + 1, every):
        export_huggingface(load_run(run / CHECKPOINTS / str(step)), arguments.folder / "exports" / name / str(step))


def measure(arguments: argparse.Namespace) -> None:
    """Compute the missing held-out losses of the exports of finished runs."""
    from their_trainer import held_out_loss

    setting = NAMED[_chosen(arguments)["transformers"]["setting"]]
    config = make_run_config(arguments, setting, 0, ENDLESS, arguments.folder)
    rows = open_data(config, ProgressLine()).held_out(config.data, 0)["eval"]
    count = min(HELD_OUT, rows.rows_per_epoch)
    batches = [rows.batch(k, ROWS, slice(count - k * ROWS)) for k in range(math.ceil(count / ROWS))]
    for plan in _plans(arguments):
        path = arguments.folder / "measured" / plan.name
        path.parent.mkdir(exist_ok=True)
        losses = _read(path) if path.exists() else {}
        steps = _read(plan)["steps"]
        for step in range(steps // POINTS, steps + 1, steps // POINTS):
            if str(step) not in losses:
                losses[str(step)] = held_out_loss(arguments.folder / "exports" / plan.stem / str(step), batches)
                replace_text(path, json.dumps(losses) + "\n")
                print(f"{plan.stem}: step {step:,}, held-out MLM loss {losses[str(step)]:.4f}", flush=True)


def tasks(arguments: argparse.Namespace) -> None:
    """Fine-tune the last export of every run for every task that is missing."""
    record = _record(arguments)
    for plan in _plans(arguments):
        for task in arguments.tasks:
            export = arguments.folder / "exports" / plan.stem / str(_read(plan)["steps"])
            files = task_files(task, arguments.folder, arguments.data)
            fine_tune(task, f"hf:{export}", files, arguments.folder / "tasks" / f"{plan.stem}_{task}")
        if len((outcome := _outcome(arguments, plan.stem))["losses"]) == POINTS:
            record.add_run(plan.stem, outcome)


def _outcome(arguments: argparse.Namespace, run: str) -> dict[str, Any]:
    """The plan of a measured run, its losses by step, and its figures of finished tasks."""
    folder = arguments.folder / "tasks"
    figures = {task: best(folder / f"{run}_{task}", TASKS[task].figure) for task in arguments.tasks}
    known = {task: round(value, 5) for task, value in figures.items() if value is not None}
    path = arguments.folder / "measured" / f"{run}.json"
    losses = _read(path) if path.exists() else {}
    return _read(arguments.folder / "plans" / f"{run}.json") | {"losses": losses} | known


def _outcomes(arguments: argparse.Namespace, name: str) -> dict[str, dict[str, Any]]:
    """The outcomes of an entrant's measured runs by seed, from the folder and the record."""
    local = [path.stem for path in (arguments.folder / "measured").glob("*.json")]
    known = {run: _outcome(arguments, run) for run in local} | _record(arguments).runs
    return {run.rpartition("_")[2]: known[run] for run in sorted(known) if run.rpartition("_")[0] == name}


def table(arguments: argparse.Namespace) -> None:
    """Print the losses over the minutes, the tasks' figures, and the minutes to transformers' last loss."""
    outcomes = {name: _outcomes(arguments, name) for name in ENTRANTS}
    curves = {name: {seed: _curve(one) for seed, one in seeds.items()} for name, seeds in outcomes.items()}
    _print_chosen(arguments)
    for name, seeds in curves.items():
        points = [
            [point for curve in seeds.values() for point in curve[number : number + 1]] for number in range(POINTS)
        ]
        losses = (f"{at[0].minutes:.3g} min {format_mean([point.loss for point in at], 1)}" for at in points if at)
        print(f"{name:16} held-out MLM loss after {', '.join(losses)}")
    for task in arguments.tasks:
        by_seed = {
            name: {seed: one[task] for seed, one in seeds.items() if task in one} for name, seeds in outcomes.items()
        }
        for name, values in by_seed.items():
            print(f"{name:16} {task} {TASKS[task].figure.removeprefix('eval/')} {format_mean([*values.values()])}")
        print_gains(task, by_seed)
    for recipe, entrants in REACHING.items():
        _print_minutes(curves, entrants, recipe)


def _print_minutes(curves: Mapping[str, Mapping[str, Sequence[Point]]], entrants: Sequence[str], recipe: str) -> None:
    """Print the minutes in which the best of these runs reaches transformers' last loss with the same seed."""
    results = []
    for number, theirs in curves["transformers"].items():
        loss, whole = theirs[-1].loss, theirs[-1].minutes
        if not (ours := [curves[name][number] for name in entrants if number in curves[name]]):
            continue
        minutes = min(_minutes_to(loss, curve) for curve in ours)
        reached = f"bertjax has transformers' last loss of {loss:.4f} after {minutes:.2f}"
        print(f"{recipe}, seed {number}: {reached} of {whole:.2f} minutes")
        results.append((minutes, minutes / whole))
    if any(math.isinf(minutes) for minutes, _ in results):
        print(f"{recipe}: bertjax does not reach transformers' last loss with every seed")
    elif results:
        mean_minutes = format_mean([minutes for minutes, _ in results], 1)
        print(f"{recipe}: minutes of bertjax to transformers' last loss: {mean_minutes}")
        share = format_mean([share for _, share in results])
        print(f"{recipe}: minutes of bertjax to that loss, of transformers' minutes: {share} %")


class Point(NamedTuple):
    """A point of a loss curve."""

    minutes: float
    loss: float


def _curve(outcome: Mapping[str, Any]) -> list[Point]:
    minutes, steps = outcome["minutes"], outcome["steps"]
    return sorted(Point(minutes * int(step) / steps, loss) for step, loss in outcome["losses"].items())


def _minutes_to(loss: float, curve: Sequence[Point]) -> float:
    """The minutes until a curve reaches a loss, by linear interpolation; infinite if it never does."""
    if curve[0].loss <= loss:
        return curve[0].minutes
    for before, after in itertools.pairwise(curve):
        if after.loss <= loss:
            share = (before.loss - loss) / (before.loss - after.loss)
            return before.minutes + share * (after.minutes - before.minutes)
    return math.inf


def everything(arguments: argparse.Namespace) -> None:
    """Run all phases, timing once. Results of another commit count only in --record FILE."""
    require_same_commit(arguments.folder)
    if not SIDES.keys() <= _chosen(arguments).keys():
        times(arguments)
    for phase in (train, measure, tasks, table):
        phase(arguments)


def _plans(arguments: argparse.Namespace) -> list[Path]:
    """The plans of finished runs."""
    plans = sorted((arguments.folder / "plans").glob("*.json"))
    return [plan for plan in plans if (arguments.folder / "exports" / plan.stem / str(_read(plan)["steps"])).is_dir()]


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _shared_options(arguments: argparse.Namespace) -> list[str]:
    record = ["--record", str(arguments.record)] if arguments.record else []
    tiny = ["--tiny"] if arguments.tiny else []
    return ["--folder", str(arguments.folder), "--data", str(arguments.data), *record, *tiny]


def main() -> None:
    """Run one phase."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    phases = {phase.__name__: phase for phase in (times, train, measure, tasks, table, one, seed)} | {"all": everything}
    parser.add_argument("phase", choices=phases)
    parser.add_argument("name", nargs="?", choices=(*ENTRANTS, *NAMED))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", type=int, default=8)
    rows = SIDES["transformers"].rows
    parser.add_argument("--rows", nargs="+", choices=rows, default=rows, help="kinds of rows of transformers")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["sst2", "mrpc"])
    parser.add_argument("--record", type=Path, help="record of speeds and outcomes, which are not measured again")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--run-dir", default="")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    phases[arguments.phase](arguments)


if __name__ == "__main__":
    main()
