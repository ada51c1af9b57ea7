"""A race between recipes: one size, the same text, the same minutes; their encoders are compared on tasks.

    python tests/benchmarks/bench_race.py times --folder DIR --data DATA [--recipes bert electra] [--turns 8]
    python tests/benchmarks/bench_race.py train --folder DIR --data DATA [--size tiny] [--minutes 60] [--seeds 1]
    python tests/benchmarks/bench_race.py tasks --folder DIR --data DATA [--seeds 1] [--tasks sst2 mrpc]
    python tests/benchmarks/bench_race.py table --folder DIR
    python tests/benchmarks/bench_race.py all --folder DIR --data DATA     all phases; finished work is reused

Recipes `alone`, `taught` and `halved` train a student of three layers: without --teacher DIR (MiniLM's, six layers of
width 384), with it, and with it starting from its layers 1, 3 and 5. `times` measures the seconds per step of each
recipe, in turns on an idle machine. They determine the steps of each recipe in the given minutes, so `train` and
`tasks` can run under any load, and the same command continues them after an interruption. `table` prints means and
standard errors over seeds. --record FILE records speeds and the figures of finished runs, and skips recorded work, so
that a race of many hours can run in parts. DATA has wikipedia_en/, books_en/, glue/, glue_subsets/, pos/ and
retrieval/cranfield/. A recipe keeps its objectives, masks, rows, architecture, update rule and schedule; size,
vocabulary, length, batch size and peak rate are the same for all.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

sys.path.insert(0, str(Path(__file__).parent.parent / "search"))
import numpy as np
from bench_retrieval import write_qnli
from cranfield import write_beir
from race_record import RaceRecord, require_same_commit
from sst2_sentences import write_sentences
from turns import Run, in_turns

import bertjax
from bertjax.__main__ import main as verb
from bertjax.config import Config, load_recipe, with_values
from bertjax.config.rescale import rescale
from bertjax.finetune.run import PREDICTIONS
from bertjax.interpret.run_comparison import DevSet
from bertjax.run.run_directory import load_run
from bertjax.search.evaluation import RANKED, evaluate, ndcg, relevant_documents
from bertjax.search.records import read_judgements
from bertjax.storage.files import replace_text

LENGTH = 128


class Size(NamedTuple):
    """The settings that all entrants of a race share."""

    model: Mapping[str, Any]
    rows: int  # per batch
    rate: float  # peak learning rate
    vocabulary: int

    @property
    def layers(self) -> int:
        """The number of layers."""
        return self.model["num_hidden_layers"]


# An hour on a CPU is a few epochs, for which dropout does not help, and models must begin to use context early. That
# takes initial weights of about 1 / sqrt(width), and with four layers also a low rate and scaled-down outputs of
# residual branches. BERT at 4 x 256 still predicts by frequency after 1,300 steps at a rate of 1e-3 (7.2 nats); with
# these settings at 4e-4 it is below that after 200.
SHORT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
MINI = {"hidden_size": 256, "num_hidden_layers": 4, "num_attention_heads": 8, "initializer_range": 0.06}
TINY = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.08}
SIZES: Mapping[str, Size] = {
    "mini": Size(MINI | SHORT | {"initializer": "scaled"}, rows=16, rate=4e-4, vocabulary=8_000),
    "tiny": Size(TINY | SHORT | {"initializer": "truncated"}, rows=32, rate=1e-3, vocabulary=16_384),
}
GATED = 2 / 3  # width of a gated MLP relative to a dense one: it has three matrices instead of two
WARMUP = 0.05  # share of the steps; published shares are for a million steps
DECAY = 0.1  # share of the steps, for warmup_stable_decay
ENDLESS = 100_000
LOSS = "eval/mlm_loss"


class Entrant(NamedTuple):
    """A recipe of the package, the smallest sufficient `max_predictions`, and further keys."""

    recipe: str
    predictions: int = 20
    keys: Mapping[str, Any] = {}
    student: bool = False  # uses the vocabulary of --teacher


STUDENT = {"hidden_size": 384, "num_hidden_layers": 3, "num_attention_heads": 12, "intermediate_size": 1_536}
TEACHER = "hf:TEACHER"  # placeholder for --teacher
ALONE = {f"model.{key}": value for key, value in STUDENT.items()} | {"training.objectives": ["mlm"]}
TAUGHT = ALONE | {"training.objectives": ["mlm", "distil_layers"], "distillation.teacher": TEACHER}
# Like DistilBERT's recipe without soft targets, because a sentence encoder has no MLM head.
HALVED = TAUGHT | {
    "training.objectives": ["mlm", "distil_cosine"],
    "training.objective_weights": [2.0, 1.0],
    "init_from": TEACHER,
    "init_layers": [1, 3, 5],
    "optimizer.learning_rate": 3e-4,
}
RECIPES = {
    "bert": Entrant("bert_mini"),
    "roberta": Entrant("roberta:base"),
    "electra": Entrant("electra:small"),
    "modernbert": Entrant("modernbert:base", 70),
    "deberta": Entrant("deberta:v3-small", keys={"model.generator_layers": 2}),
    "alone": Entrant("bert_mini", keys=ALONE, student=True),
    "taught": Entrant("bert_mini", keys=TAUGHT, student=True),
    "halved": Entrant("bert_mini", keys=HALVED, student=True),
}
FAMILY = [name for name, entrant in RECIPES.items() if not entrant.student]


class Task(NamedTuple):
    """The name and epochs for `bertjax finetune`, and the figure to compare."""

    name: str
    epochs: int
    figure: str


TASKS = {
    "sst2": Task("sst2", 3, "eval/accuracy"),
    "mrpc": Task("mrpc", 4, "eval/f1"),
    "qnli": Task("relevance", 3, "eval/accuracy"),  # 8,999 pairs
    "pos": Task("pos", 6, "eval/accuracy"),  # 900 sentences
}
SENTENCES = 10_000  # training examples of SST-2; its full sentences are about 6,920
RATES = ("1e-4", "3e-4")  # both are tried, and the better result counts
RETRIEVAL = "cranfield"  # nDCG@10 by cosines of mean vectors, without training
ERROR = "standard error"  # of a figure, over its examples
RESAMPLES = 1_000


def make_config(name: str, arguments: argparse.Namespace, seed: int, steps: int, size_name: str = "mini") -> Config:
    """The recipe at the size of the race."""
    entrant, folder = RECIPES[name], arguments.folder
    base = load_recipe(entrant.recipe)
    size = SIZES[size_name]
    hidden = size.model["hidden_size"]
    inner = 4 * hidden if base.model.mlp == "dense" else round(4 * hidden * GATED / 64) * 64
    widths = {"intermediate_size": inner, "embedding_size": 0, "max_position_embeddings": LENGTH}
    shared = load_recipe("bert_mini").data
    data = replace(
        base.data,
        **{key: getattr(shared, key) for key in ("tokenizer", "lowercase", "strip_accents", "prefix_space")},
        special_tokens=shared.special_tokens,
        sources=tuple(f"{kind}:{arguments.data}/{files}" for kind, files in (
            ("wikiextractor", "wikipedia_en/*.xz"), ("text", "books_en/*.xz"))),
        root=str(folder / "data"),
        vocab_size=size.vocabulary,
        held_out=0.005,
        sequence_length=LENGTH,
        max_predictions=entrant.predictions,
    )  # fmt: skip
    optimizer = replace(
        base.optimizer,
        learning_rate=size.rate,
        warmup_steps=round(WARMUP * ENDLESS),
        decay_steps=round(DECAY * ENDLESS) if base.optimizer.schedule == "warmup_stable_decay" else 0,
    )
    training = replace(
        base.training,
        steps=ENDLESS,
        seed=seed,
        global_batch_size=size.rows,
        grad_accum_steps=1,
        eval_rows=2_048,
        eval_every=ENDLESS,
        checkpoint_every=1_000,
        keep_every=0,
        log_every=ENDLESS // 500,
    )
    whole = replace(
        base,
        name=f"{name}_{seed}",
        run_dir=str(folder / "runs" / f"{name}_{seed}"),
        compilation_cache=str(folder / "compiled"),
        model=replace(base.model, **size.model, **widths),
        execution=replace(base.execution, dtype="float32", scan_unroll=size.layers, logits_chunk=256),
        data=data,
        optimizer=optimizer,
        training=training,
        stages=(),
    )
    keys = {key: f"hf:{arguments.teacher}" if value == TEACHER else value for key, value in entrant.keys.items()}
    if entrant.student:
        keys["data.vocab"] = str(arguments.teacher / "vocab.txt")
    return rescale(with_values(whole, keys), steps, {"training.checkpoint_every"})


def times(arguments: argparse.Namespace) -> None:
    """Time the steps of the recipes in turns."""
    record = _record(arguments)
    record.require_speeds(arguments.recipes)
    bertjax.prepare(make_config(arguments.recipes[0], arguments, 0, ENDLESS, arguments.size))
    runs = {}
    for name in arguments.recipes:
        place = arguments.folder / "turns" / name
        words = ["one", name, *_shared_options(arguments), "--run-dir", str(place)]
        runs[name] = Run([sys.executable, __file__, *words], place / "metrics.jsonl")
    measured = in_turns(runs, arguments.turns)
    medians_by_recipe = {name: [statistics.median(turn) for turn in turns] for name, turns in measured.items()}
    for name, medians in medians_by_recipe.items():
        print(f"{name:12} {statistics.median(medians):.4f} s a step (turns {min(medians):.4f} to {max(medians):.4f})")
    seconds = {name: round(statistics.median(medians), 4) for name, medians in medians_by_recipe.items()}
    record.add_speeds(seconds)
    known = _seconds(arguments) | seconds
    replace_text(arguments.folder / "times.json", json.dumps(known, indent=1) + "\n")


def one(arguments: argparse.Namespace) -> None:
    """Train one recipe endlessly, logging each step, for `times`."""
    config = make_config(arguments.name, arguments, 0, ENDLESS, arguments.size)
    training = replace(config.training, log_every=1, eval_every=ENDLESS, checkpoint_every=ENDLESS)
    bertjax.pretrain(replace(config, run_dir=arguments.run_dir, log=(), training=training))


def train(arguments: argparse.Namespace) -> None:
    """Train each recipe with each seed for the minutes, each in its own process."""
    record = _record(arguments)
    for seed, name in itertools.product(range(arguments.seeds), arguments.recipes):
        if not record.has(f"{name}_{seed}", arguments.tasks):
            words = ["seed", name, "--seed", str(seed), "--minutes", str(arguments.minutes)]
            subprocess.run([sys.executable, __file__, *words, *_shared_options(arguments)], check=True)


def seed(arguments: argparse.Namespace) -> None:
    """Train one recipe with one seed, or continue its run."""
    steps = round(arguments.minutes * 60 / _seconds(arguments)[arguments.name])
    print(f"{arguments.name}, seed {arguments.seed}: {steps:,} steps", flush=True)
    bertjax.pretrain(make_config(arguments.name, arguments, arguments.seed, steps, arguments.size))


def tasks(arguments: argparse.Namespace) -> None:
    """Fine-tune every finished run for every task that is missing."""
    folder, record = arguments.folder, _record(arguments)
    for number, name in itertools.product(range(arguments.seeds), arguments.recipes):
        run = folder / "runs" / f"{name}_{number}"
        if record.has(run.name, arguments.tasks):
            continue
        for task in arguments.tasks:
            out = folder / "tasks" / f"{run.name}_{task}"
            if task == RETRIEVAL:
                _search(run, write_beir(arguments.data / "retrieval" / "cranfield", folder / "beir"), out)
            else:
                files = task_files(task, folder, arguments.data, arguments.sentences)
                fine_tune(task, str(run), files, out, arguments.epochs, arguments.rates)
        if arguments.record:
            context = _errors(arguments, run.name) | _baselines(arguments, run.name)
            record.add_run(run.name, _outcome(arguments, run.name) | context)


def task_files(task: str, folder: Path, data: Path, sentences: int = SENTENCES) -> list[str]:
    """The options of `bertjax finetune` for the files of a task. Writes the files of subsets."""
    if task == "sst2":
        subset = folder / f"sst2_{sentences}"
        if not subset.is_dir():
            subset.mkdir()
            write_sentences(data / "glue", subset, sentences)
        return ["--data", str(subset)]
    if task == "qnli":
        return ["--data", str(write_qnli(data / "glue_subsets", folder / "qnli"))]
    return ["--train", str(next((data / "pos").glob("en_*")))] if task == "pos" else ["--data", str(data / "glue")]


def fine_tune(
    task: str, source: str, files: list[str], out: Path, epochs: int | None = None, rates: Sequence[str] = RATES
) -> None:
    """Fine-tune a run, or hf:DIR, at each of the rates, into folders below `out`, unless finished."""
    recipe = ["--learning-rate", *rates, "--batch-size", "32", "--epochs", str(epochs or TASKS[task].epochs)]
    words = ["finetune", TASKS[task].name, "--init-from", source, *files, *recipe, "--run-dir", str(out)]
    assert verb(words) == 0, words


def _search(run: Path, beir: Path, out: Path) -> None:
    results = out.with_suffix(".trec")
    files = ["--documents", str(beir / "corpus.jsonl"), "--queries", str(beir / "queries.jsonl")]
    if not results.exists():
        assert verb(["search", str(run), "--index", str(out), *files, "--output", str(results)]) == 0
    rankings: dict[str, list[str]] = {}
    for line in results.read_text().splitlines():
        query, _, document, *_ = line.split()
        rankings.setdefault(query, []).append(document)
    judgements = read_judgements(str(beir / "qrels.tsv"))
    judged = [query for query in rankings if relevant_documents(judgements.get(query, {}))]
    gains = [ndcg(rankings[query], judgements[query], RANKED) for query in judged]
    error = statistics.stdev(gains) / math.sqrt(len(gains))
    result = {"result": {"figures": {RETRIEVAL: evaluate(rankings, judgements).ndcg, ERROR: error}}}
    (out / "results.json").write_text(json.dumps(result) + "\n")


def table(arguments: argparse.Namespace) -> None:
    """Print the figures of every recipe by task, and each recipe's gains over the first, seed by seed."""
    logs = (arguments.folder / "runs").glob("*/metrics.jsonl")
    finished = [log.parent.name for log in logs if LOSS in log.read_text()]  # a run is evaluated at its end
    known = {run: _outcome(arguments, run) for run in finished} | _record(arguments).runs
    by_seed = {
        (name, figure): {run[len(name) + 1 :]: one[figure] for run, one in known.items()
                         if run.rpartition("_")[0] == name and figure in one}
        for name, figure in itertools.product(arguments.recipes, ("loss", *arguments.tasks))
    }  # fmt: skip
    for name in arguments.recipes:
        figures = "  ".join(f"{task} {format_mean([*by_seed[name, task].values()])}" for task in arguments.tasks)
        print(f"{name:12} held-out MLM loss {format_mean([*by_seed[name, 'loss'].values()], 1)}  {figures}")
    for task in arguments.tasks:
        print_gains(task, {name: by_seed[name, task] for name in arguments.recipes})


def print_gains(task: str, by_seed: Mapping[str, Mapping[str, float]]) -> None:
    """Print each recipe's gain over the first in a task, over the seeds that both have."""
    (first, theirs), *others = by_seed.items()
    for name, ours in others:
        gains = [ours[seed] - theirs[seed] for seed in sorted(ours.keys() & theirs.keys())]
        if gains:
            gain, base = format_mean(gains, sign="+"), format_mean([*theirs.values()])
            print(f"{name} less {first}, {task}: {gain} points; {first} has {base}")


def _outcome(arguments: argparse.Namespace, run: str) -> dict[str, Any]:
    """The steps and the last held-out loss of a run, and its figures of finished tasks."""
    lines = (arguments.folder / "runs" / run / "metrics.jsonl").read_text().splitlines()
    last = [one for one in map(json.loads, lines) if LOSS in one][-1]
    figures = {task: TASKS[task].figure if task in TASKS else task for task in arguments.tasks}
    values = {task: best(arguments.folder / "tasks" / f"{run}_{task}", figure) for task, figure in figures.items()}
    known = {task: round(value, 5) for task, value in values.items() if value is not None}
    return {"steps": last["step"], "loss": round(last[LOSS], 4), **known}


def _errors(arguments: argparse.Namespace, run: str) -> dict[str, float]:
    """The standard errors of a run's figures, over their examples: {"sst2_error": 0.013}."""
    errors = {}
    for task in arguments.tasks:
        folder = arguments.folder / "tasks" / f"{run}_{task}"
        if task == RETRIEVAL:
            errors[task] = _figures(folder / "results.json")[ERROR]
        else:
            figure = TASKS[task].figure
            best_results = max(folder.rglob("results.json"), key=lambda path: _figures(path)[figure])
            errors[task] = standard_error(best_results.parent, figure.removeprefix("eval/"))
    return {f"{task}_error": round(value, 5) for task, value in errors.items()}


def _baselines(arguments: argparse.Namespace, run: str) -> dict[str, float]:
    """The figures of the most frequent answer in every task: {"sst2_baseline": 0.509}."""
    baselines = {}
    for task in (task for task in arguments.tasks if task in TASKS):
        folder = arguments.folder / "tasks" / f"{run}_{task}"
        results = json.loads(next(folder.rglob("results.json")).read_text())["result"]
        baselines[f"{task}_baseline"] = round(results["baselines"][TASKS[task].figure.replace("eval/", "baseline/")], 5)
    return baselines


def standard_error(run: Path, metric: str) -> float:
    """The standard error of a metric of a fine-tuned run, by resampling its development examples."""
    model = load_run(str(run))
    dev = DevSet.of(model.config)
    measured = dev.task.kind.load_measures(dev.task, dev.name, dev.examples, model.directory / PREDICTIONS)[metric]
    draw, count = np.random.default_rng(0), len(dev.examples)
    return statistics.stdev(float(measured(draw.integers(count, size=count))) for _ in range(RESAMPLES))


def all_phases(arguments: argparse.Namespace) -> None:
    """Run every phase, reusing work of the same commit."""
    require_same_commit(arguments.folder)
    if not {*arguments.recipes} <= _seconds(arguments).keys():
        times(arguments)
    for phase in (train, tasks, table):
        phase(arguments)


def best(folder: Path, figure: str) -> float | None:
    """The best value of a figure among the fine-tuned models below a folder."""
    return max((_figures(path)[figure] for path in folder.rglob("results.json")), default=None)


def _figures(results: Path) -> dict[str, float]:
    return json.loads(results.read_text())["result"]["figures"]


def format_mean(values: list[float], scale: float = 100, sign: str = "") -> str:
    """Format the mean and standard error times `scale`; `sign="+"` always shows the mean's sign."""
    if not values:
        return "-"
    error = f" ± {scale * statistics.stdev(values) / math.sqrt(len(values)):.2f}" if len(values) > 1 else ""
    return f"{scale * statistics.fmean(values):{sign}.2f}{error}"


def _shared_options(arguments: argparse.Namespace) -> list[str]:
    names = ("folder", "data", "teacher", "size", "record")
    options = {name: getattr(arguments, name) for name in names}
    return [word for name, value in options.items() if value for word in (f"--{name}", str(value))]


def _seconds(arguments: argparse.Namespace) -> dict[str, float]:
    """The seconds per step of every timed recipe."""
    path = arguments.folder / "times.json"
    return (json.loads(path.read_text()) if path.is_file() else {}) | _record(arguments).speeds


def _record(arguments: argparse.Namespace) -> RaceRecord:
    return RaceRecord(arguments.record, {"minutes": arguments.minutes, "size": arguments.size})


def main() -> None:
    """Run one phase."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    phases = {phase.__name__: phase for phase in (times, train, tasks, table, one, seed)} | {"all": all_phases}
    parser.add_argument("phase", choices=phases)
    parser.add_argument("name", nargs="?", choices=RECIPES)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--recipes", nargs="+", choices=RECIPES, default=FAMILY)
    parser.add_argument("--tasks", nargs="+", choices=(*TASKS, RETRIEVAL), default=[*TASKS, RETRIEVAL])
    parser.add_argument(
        "--teacher", type=Path, default="", help="teacher of the students, a folder in Hugging Face's layout"
    )
    parser.add_argument("--sentences", type=int, default=SENTENCES, help="training examples of SST-2")
    parser.add_argument("--epochs", type=int, help="epochs of fine-tuning (default: by task)")
    parser.add_argument(
        "--rates", nargs="+", default=RATES, help="learning rates of fine-tuning; the better result counts"
    )
    parser.add_argument("--size", choices=SIZES, default="mini", help="size of the models; use one folder per size")
    parser.add_argument("--minutes", type=float, default=60.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--turns", type=int, default=8)
    parser.add_argument("--record", type=Path, help="record of speeds and outcomes, which are not measured again")
    parser.add_argument("--run-dir", default="")
    arguments = parser.parse_args()
    phases[arguments.phase](arguments)


if __name__ == "__main__":
    main()
