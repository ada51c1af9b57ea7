"""bertjax and transformers' Trainer in equal minutes: the same text, vocabulary, size, batch and machine.

    python tests/benchmarks/bench_pretraining.py times --folder DIR --data DATA [--turns 8] [--rows pairs grouped]
    python tests/benchmarks/bench_pretraining.py train --folder DIR --data DATA [--minutes 30] [--seeds 3]
    python tests/benchmarks/bench_pretraining.py measure --folder DIR --data DATA [--seeds 3]
    python tests/benchmarks/bench_pretraining.py tasks --folder DIR --data DATA [--seeds 3] [--tasks sst2 mrpc]
    python tests/benchmarks/bench_pretraining.py table --folder DIR
    python tests/benchmarks/bench_pretraining.py all --folder DIR --data DATA     all of them; what is done stays

`times` runs on a quiet machine. It measures, in turns, every setting of transformers (float32 or bfloat16 autocast,
torch.compile or not; sentence pairs as they come or grouped by length, or rows full of sentences, which have no
next-sentence prediction) and of bertjax (float32 or bfloat16; pairs, pairs packed, or rows full of sentences), and
chooses transformers' fastest in real tokens a second, then bertjax's fastest with the same objectives. `train` takes as
many steps as fit into the minutes at the measured speed, so that it may run at any load and be interrupted: the same
command goes on. The minutes are of steps alone: neither side's start, compiling, preparation of text, saves nor
evaluations count. Size, text, vocabulary, batch, length, peak rate and dropout are those of bench_race.py for all.
`bertjax` has the other side's recipe: BERT's objectives and masks, and the initial values, AdamW with correction of the
moments' bias and fall of the rate from the end of the warm-up that the Trainer has; `bertjax_third` is the same in a
third of the minutes. `modernbert_third` is bertjax with its own recipe for little time, modern_mini, in a third of the
minutes. `measure` exports every run at twelfths of its minutes to Hugging Face's layout, and computes the loss of the
same masked held-out rows with transformers' class for all. `tasks` fine-tunes the last export of every run by `bertjax
finetune`. DATA has wikipedia_en/, books_en/ and glue/. With --kept FILE, speeds and the outcomes of finished runs are
kept in that file, and what it has is not done again: the races can be run in parts. With --tiny the model is too small
to learn: it shows that every phase works.
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

from bench_race import ENDLESS, LENGTH, SIZES, TASKS, best, config_of, files_of, fine_tune, mean, tell_beyond
from kept import Kept, require_same_commit
from turns import Run, in_turns, steps_of

import bertjax
from bertjax.config import Config, with_values
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.tokenizer_files import tokenizer_texts
from bertjax.input.training_data import TrainingData
from bertjax.run.checkpoint import DIRECTORY as CHECKPOINTS
from bertjax.run.run_directory import load_run
from bertjax.runtime.host_memory import keep_freed_memory
from bertjax.storage.files import replace_text
from bertjax.storage.progress import ProgressLine
from bertjax.training.stages import open_data

ROWS = SIZES["mini"].rows
POINTS = 12  # of a run at which it is measured
HELD_OUT = 2_048  # rows
ROWS_TIMED = 1_000 * ROWS  # that transformers has in `times`; it reads them again after that
SAME_SIZE = 64  # batches of which the real tokens are counted
ROW_KEYS: Mapping[str, Mapping[str, Any]] = {
    "pairs": {},
    "grouped": {},
    "packed": {"data.packing": "pairs"},
    "full_sentences": {"data.rows": "full_sentences", "training.objectives": ["mlm"]},
    "documents": {},
}
WITHOUT_NSP = ("full_sentences", "documents")
THEIRS = {
    # The initial values of transformers' class: it has no smaller ones for the outputs of residual branches.
    "model.initializer": "truncated",
    "model.initializer_range": 0.02,
    # Of the Trainer: with correction of the moments' bias, and a rate that falls from the end of the warm-up.
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
    rows: tuple[str, ...]  # that are tried
    keys: Mapping[str, Any] = {}


SIDES = {
    "transformers": Side("bert", ("pairs", "grouped", "full_sentences"), THEIRS),
    "bertjax": Side("bert", ("pairs", "packed", "full_sentences"), THEIRS),
    "modernbert": Side("modernbert", ("documents",)),
}


class Entrant(NamedTuple):
    """What a side trains."""

    side: str
    share: float  # of the minutes


ENTRANTS = {
    "transformers": Entrant("transformers", 1.0),
    "bertjax": Entrant("bertjax", 1.0),
    "bertjax_third": Entrant("bertjax", 1 / 3),
    "modernbert_third": Entrant("modernbert", 1 / 3),
}
REACHING = {"the same recipe": ("bertjax", "bertjax_third"), "modern_mini": ("modernbert_third",)}


class Setting(NamedTuple):
    """How a side computes, and how its rows are filled."""

    side: str
    rows: str
    dtype: str
    compiled: bool = False

    def __str__(self) -> str:
        return f"{self.side}-{self.rows}-{self.dtype}{'-compiled' * self.compiled}"

    @property
    def objectives(self) -> str:
        """What a side may be compared by: with next-sentence prediction or without."""
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
    """Of a setting."""

    seconds: float  # of a step
    tokens: float  # real ones of a batch

    @property
    def rate(self) -> float:
        """Real tokens a second."""
        return self.tokens / self.seconds


def configured(arguments: argparse.Namespace, setting: Setting, seed: int, steps: int, run: Path) -> Config:
    """The recipe of a side with what a setting asks."""
    side = SIDES[setting.side]
    config = config_of(side.recipe, arguments, seed, steps)
    keys = {**side.keys, **ROW_KEYS[setting.rows], "execution.dtype": setting.dtype, **(TINY if arguments.tiny else {})}
    return with_values(replace(config, run_dir=str(run), log=()), keys)


def times(arguments: argparse.Namespace) -> None:
    """Measure the settings of sides that have no speed yet: in turns, then the fastest ones in turns with the known."""
    known = _chosen(arguments)
    settings = [one for one in SETTINGS if one.side not in known]
    settings = [one for one in settings if one.side != "transformers" or one.rows in arguments.rows]
    bertjax.prepare(configured(arguments, SETTINGS[0], 0, ENDLESS, arguments.folder))
    shutil.rmtree(arguments.folder / "turns", ignore_errors=True)
    fastest = [NAMED[one["setting"]] for one in known.values()]
    for (side, rows), heat in itertools.groupby(settings, lambda setting: (setting.side, setting.rows)):
        fastest.append(_fastest(_speeds(arguments, list(heat), f"{side}_{rows}")))
    final = _speeds(arguments, fastest, "final")
    theirs = _fastest({setting: speed for setting, speed in final.items() if setting.side == "transformers"})
    # What was planned by another hour's speeds stays comparable: a new side is as fast beside transformers as now.
    hour = known["transformers"]["seconds"] / final[theirs].seconds if known else 1.0
    new = {}
    for side in dict.fromkeys(setting.side for setting in settings):
        one = _fastest({setting: speed for setting, speed in final.items() if _may_race(setting, side, theirs)})
        new[side] = {"setting": str(one), "seconds": final[one].seconds * hour, "tokens": final[one].tokens}
    replace_text(arguments.folder / "times.json", json.dumps(known | new, indent=1) + "\n")
    _kept(arguments).add_speeds(new)
    _print_chosen(arguments)


def _may_race(setting: Setting, side: str, theirs: Setting) -> bool:
    """Whether a setting is of a side, and has transformers' objectives if it has its recipe."""
    same = SIDES[side].recipe == SIDES["transformers"].recipe
    return setting.side == side and (not same or setting.objectives == theirs.objectives)


def _chosen(arguments: argparse.Namespace) -> dict[str, Any]:
    """The setting of each side and its speed: those that are kept, else those of the folder."""
    path = arguments.folder / "times.json"
    return (_read(path) if path.is_file() else {}) | _kept(arguments).speeds


def _kept(arguments: argparse.Namespace) -> Kept:
    return Kept(arguments.kept, {"minutes": arguments.minutes, "tiny": arguments.tiny})


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
        words = ["one", str(setting), *_given(arguments), "--run-dir", str(place)]
        runs[str(setting)] = Run([sys.executable, __file__, *words], place / "metrics.jsonl")
    measured = in_turns(runs, arguments.turns)
    speeds = {}
    for setting in settings:
        # The mean, for rows that are grouped by length have steps of many lengths.
        seconds = statistics.fmean(steps_of(measured[str(setting)]))
        speeds[setting] = Speed(seconds, _real_tokens(arguments, setting))
        print(
            f"{heat:27} {setting!s:46} {seconds:.4f} s a step, {speeds[setting].rate:8,.0f} real tokens/s", flush=True
        )
    return speeds


def _real_tokens(arguments: argparse.Namespace, setting: Setting) -> float:
    config = configured(arguments, setting, 0, ENDLESS, arguments.folder)
    batches = _opened(config).train(config.data, 0)
    return statistics.fmean(int((batches.batch(k, ROWS)["sequence_ids"] > 0).sum()) for k in range(SAME_SIZE))


def _opened(config: Config) -> TrainingData:
    return open_data(config, ProgressLine())


def one(arguments: argparse.Namespace) -> None:
    """Train with one setting without an end, for `times`."""
    setting, run = NAMED[arguments.name], Path(arguments.run_dir)
    config = configured(arguments, setting, 0, ENDLESS, run)
    if setting.side == "transformers":
        _train_theirs(arguments, config, setting, run, count=ROWS_TIMED, every=0)
        return
    often = replace(config.training, log_every=1, eval_every=ENDLESS, checkpoint_every=ENDLESS)
    bertjax.pretrain(replace(config, training=often))


def _train_theirs(
    arguments: argparse.Namespace, config: Config, setting: Setting, run: Path, *, count: int, every: int
) -> None:
    keep_freed_memory()  # as bertjax does: it helps both sides
    from their_trainer import LaidOut, pretrain

    content = _opened(config)
    rows = LaidOut(
        content.train(config.data, config.training.seed),
        count,
        content.tokenizer,
        pairs="nsp" in config.training.objectives,
    )
    tokenizer = arguments.folder / "tokenizer"
    tokenizer.mkdir(exist_ok=True)
    for name, text in tokenizer_texts(content.tokenizer, LENGTH, config.model.family).items():
        (tokenizer / name).write_bytes(text if isinstance(text, bytes) else text.encode())
    # The size of the vocabulary follows from the text.
    fitted = replace(config, model=replace(config.model, vocab_size=content.tokenizer.vocab_size))
    exports = arguments.folder / "exports" / run.name
    grouped = setting.rows == "grouped"
    pretrain(fitted, rows, run, exports, tokenizer, compiled=setting.compiled, grouped=grouped, every=every)


def train(arguments: argparse.Namespace) -> None:
    """Train every entrant with each seed for its minutes, each in a process of its own."""
    kept = _kept(arguments)
    for seed, name in itertools.product(range(arguments.seeds), ENTRANTS):
        if not kept.has(f"{name}_{seed}", ["losses", *arguments.tasks]):
            words = ["seed", name, "--seed", str(seed), "--minutes", str(arguments.minutes)]
            subprocess.run([sys.executable, __file__, *words, *_given(arguments)], check=True)


def seed(arguments: argparse.Namespace) -> None:
    """Train one entrant with one seed, or go on with it."""
    name = f"{arguments.name}_{arguments.seed}"
    run, plan = arguments.folder / "runs" / name, arguments.folder / "plans" / f"{name}.json"
    entrant = ENTRANTS[arguments.name]
    chosen = _chosen(arguments)[entrant.side]
    setting, minutes = NAMED[chosen["setting"]], arguments.minutes * entrant.share
    steps = POINTS * max(round(minutes * 60 / chosen["seconds"] / POINTS), 1)
    about = {"setting": str(setting), "minutes": minutes, "steps": steps}
    if plan.exists() and _read(plan) != about:
        raise SystemExit(f"{run} was begun as {_read(plan)}, and this is {about}; give another --folder")
    plan.parent.mkdir(parents=True, exist_ok=True)
    replace_text(plan, json.dumps(about) + "\n")
    if (arguments.folder / "exports" / name / str(steps)).is_dir():
        return
    print(f"{name}: {steps:,} steps of {setting}", flush=True)
    config, every = configured(arguments, setting, arguments.seed, steps, run), steps // POINTS
    if setting.side == "transformers":
        _train_theirs(arguments, config, setting, run, count=steps * ROWS, every=every)
        return
    kept = replace(config.training, checkpoint_every=every, keep_every=every, eval_every=steps, eval_rows=256)
    bertjax.pretrain(replace(config, training=kept))
    for step in range(every, steps + 1, every):
        export_huggingface(load_run(run / CHECKPOINTS / str(step)), arguments.folder / "exports" / name / str(step))


def measure(arguments: argparse.Namespace) -> None:
    """Compute the held-out loss of every export of the finished runs; what is measured is not measured again."""
    from their_trainer import held_out_loss

    setting = NAMED[_chosen(arguments)["transformers"]["setting"]]
    config = configured(arguments, setting, 0, ENDLESS, arguments.folder)
    rows = _opened(config).held_out(config.data, 0)["eval"]
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
    """Fine-tune the last export of every run for every task; what is done already is not done again."""
    kept = _kept(arguments)
    for plan in _plans(arguments):
        for task in arguments.tasks:
            export = arguments.folder / "exports" / plan.stem / str(_read(plan)["steps"])
            files = files_of(task, arguments.folder, arguments.data)
            fine_tune(task, f"hf:{export}", files, arguments.folder / "tasks" / f"{plan.stem}_{task}")
        if len((outcome := _outcome(arguments, plan.stem))["losses"]) == POINTS:
            kept.add_run(plan.stem, outcome)


def _outcome(arguments: argparse.Namespace, run: str) -> dict[str, Any]:
    """How a measured run was planned, its losses by step, and its figure of every task that is done."""
    folder = arguments.folder / "tasks"
    of_tasks = {task: best(folder / f"{run}_{task}", TASKS[task].figure) for task in arguments.tasks}
    known = {task: round(value, 5) for task, value in of_tasks.items() if value is not None}
    path = arguments.folder / "measured" / f"{run}.json"
    losses = _read(path) if path.exists() else {}
    return _read(arguments.folder / "plans" / f"{run}.json") | {"losses": losses} | known


def _outcomes(arguments: argparse.Namespace, name: str) -> dict[str, dict[str, Any]]:
    """Of the measured runs of an entrant, here or kept, by seed."""
    here = [path.stem for path in (arguments.folder / "measured").glob("*.json")]
    known = {run: _outcome(arguments, run) for run in here} | _kept(arguments).runs
    return {run.rpartition("_")[2]: known[run] for run in sorted(known) if run.rpartition("_")[0] == name}


def table(arguments: argparse.Namespace) -> None:
    """Print what every side reached: losses over the minutes, the minutes to transformers' last loss, the tasks."""
    outcomes = {name: _outcomes(arguments, name) for name in ENTRANTS}
    curves = {name: {seed: _curve(one) for seed, one in found.items()} for name, found in outcomes.items()}
    _print_chosen(arguments)
    for name, found in curves.items():
        points = [
            [point for curve in found.values() for point in curve[number : number + 1]] for number in range(POINTS)
        ]
        losses = (f"{at[0].minutes:.3g} min {mean([point.loss for point in at], 1)}" for at in points if at)
        print(f"{name:16} held-out MLM loss after {', '.join(losses)}")
    for task in arguments.tasks:
        by_seed = {
            name: {seed: one[task] for seed, one in found.items() if task in one} for name, found in outcomes.items()
        }
        for name, values in by_seed.items():
            print(f"{name:16} {task} {TASKS[task].figure.removeprefix('eval/')} {mean([*values.values()])}")
        tell_beyond(task, by_seed)
    for recipe, entrants in REACHING.items():
        _tell_minutes(curves, entrants, recipe)


def _tell_minutes(curves: Mapping[str, Mapping[str, Sequence[Point]]], entrants: Sequence[str], recipe: str) -> None:
    """The minutes that bertjax needs to transformers' last loss with the same seed, in the best of these runs."""
    found = []
    for number, theirs in curves["transformers"].items():
        loss, whole = theirs[-1].loss, theirs[-1].minutes
        if not (ours := [curves[name][number] for name in entrants if number in curves[name]]):
            continue
        minutes = min(_minutes_to(loss, curve) for curve in ours)
        reached = f"bertjax has transformers' last loss of {loss:.4f} after {minutes:.2f}"
        print(f"{recipe}, seed {number}: {reached} of {whole:.2f} minutes")
        found.append((minutes, minutes / whole))
    if any(math.isinf(minutes) for minutes, _ in found):
        print(f"{recipe}: bertjax does not reach transformers' last loss with every seed")
    elif found:
        print(f"{recipe}: minutes of bertjax to transformers' last loss: {mean([minutes for minutes, _ in found], 1)}")
        share = mean([share for _, share in found])
        print(f"{recipe}: minutes of bertjax to that loss, of transformers' minutes: {share} %")


class Point(NamedTuple):
    """Of a curve."""

    minutes: float
    loss: float


def _curve(outcome: Mapping[str, Any]) -> list[Point]:
    minutes, steps = outcome["minutes"], outcome["steps"]
    return sorted(Point(minutes * int(step) / steps, loss) for step, loss in outcome["losses"].items())


def _minutes_to(loss: float, curve: Sequence[Point]) -> float:
    """When a curve first is as low, on straight lines between its points; infinite if it never is."""
    if curve[0].loss <= loss:
        return curve[0].minutes
    for before, after in itertools.pairwise(curve):
        if after.loss <= loss:
            share = (before.loss - loss) / (before.loss - after.loss)
            return before.minutes + share * (after.minutes - before.minutes)
    return math.inf


def everything(arguments: argparse.Namespace) -> None:
    """All phases; the speeds are measured once. What another commit measured counts only where --kept FILE names it."""
    require_same_commit(arguments.folder)
    if not SIDES.keys() <= _chosen(arguments).keys():
        times(arguments)
    for phase in (train, measure, tasks, table):
        phase(arguments)


def _plans(arguments: argparse.Namespace) -> list[Path]:
    """Those of the runs that are finished."""
    plans = sorted((arguments.folder / "plans").glob("*.json"))
    return [plan for plan in plans if (arguments.folder / "exports" / plan.stem / str(_read(plan)["steps"])).is_dir()]


def _read(path: Path) -> Any:
    return json.loads(path.read_text())


def _given(arguments: argparse.Namespace) -> list[str]:
    kept = ["--kept", str(arguments.kept)] if arguments.kept else []
    tiny = ["--tiny"] if arguments.tiny else []
    return ["--folder", str(arguments.folder), "--data", str(arguments.data), *kept, *tiny]


def main() -> None:
    """Run one phase."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    phases = {made.__name__: made for made in (times, train, measure, tasks, table, one, seed)} | {"all": everything}
    parser.add_argument("phase", choices=phases)
    parser.add_argument("name", nargs="?", choices=(*ENTRANTS, *NAMED))
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--minutes", type=float, default=30.0)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", type=int, default=8)
    rows = SIDES["transformers"].rows
    parser.add_argument("--rows", nargs="+", choices=rows, default=rows, help="of transformers")
    parser.add_argument("--tasks", nargs="+", choices=TASKS, default=["sst2", "mrpc"])
    parser.add_argument("--kept", type=Path, help="file of speeds and outcomes that are not measured again")
    parser.add_argument("--tiny", action="store_true")
    parser.add_argument("--run-dir", default="")
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    phases[arguments.phase](arguments)


if __name__ == "__main__":
    main()
