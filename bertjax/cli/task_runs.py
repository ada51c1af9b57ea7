"""The runs of `bertjax finetune`: one task, or every task of GLUE, with their figures, tables and exports."""

from __future__ import annotations

import argparse
import shlex
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import jax
import numpy as np

from bertjax.cli.recipe import require_same_config, speaker
from bertjax.config import FinetuneConfig, TaskConfig, override, render
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.names import has_class
from bertjax.convert.sources import open_source
from bertjax.finetune.kinds.kind import Task, TaskContent
from bertjax.finetune.load import load_task
from bertjax.finetune.recipes import TRIED, config_for, settings_of
from bertjax.finetune.run import PREDICTIONS, Result, Start, finetune
from bertjax.finetune.summary import TaskSummary, overall
from bertjax.finetune.tasks import BASE_TEST, OTHERS_DEV, glue_tasks_in, task_for
from bertjax.report.page import text_lines
from bertjax.runtime.processes import Processes
from bertjax.storage.remote import place_of
from bertjax.training.run_directory import load_run
from bertjax.training.trainer import Say

GLUE = "glue"
# Options of the verb, and the keys of the config that they set.
_TASK_KEYS = ("data", "train", "dev", "test", "text", "label", "id", "labels", "patience", "layer_decay")
_SWITCHES = ("balanced", "strict_length")
_SHOWN_LABELS = 12


class Interrupted(Exception):
    """A signal ended a run early, with this exit code."""

    def __init__(self, exit_code: int) -> None:
        super().__init__()
        self.exit_code = exit_code


def finetune_all(arguments: argparse.Namespace, processes: Processes) -> None:
    """Fine-tune for one task, or for every task of GLUE that has data, and report; every process does this.

    Raises Interrupted where a signal ended a run early.
    """
    say = speaker(processes)
    start = read_start(arguments.init_from)
    names = _glue_names(arguments) if arguments.config == GLUE else (arguments.config,)
    configured = [_configured(name, start, arguments, len(names) > 1) for name in names]
    for base, _ in configured:
        require_same_config(base, processes)
    summaries = [_run_task(base, shown, start, arguments, processes, say) for base, shown in configured]
    processes.finished("stopped by a signal when training was complete; run the same command again for the rest.")
    if processes.first:
        _last_words(summaries, [base for base, _ in configured], say)


def read_start(source: str) -> Start:
    """The model of a source, whole."""
    model, drawn = open_source(source)
    params = jax.tree.map(np.asarray, jax.device_get(model.params))
    task = model.config.task if isinstance(model.config, FinetuneConfig) else None
    return Start(source, model.config.model, model.tokenizer, params, drawn, task.labels if task else (), model.kind)


def _glue_names(arguments: argparse.Namespace) -> tuple[str, ...]:
    if not arguments.data:
        raise ValueError("finetune glue: --data is missing; give the folder that holds the folders of the tasks")
    names = glue_tasks_in(Path(arguments.data))
    if not names:
        raise ValueError(f"finetune glue: {arguments.data} holds no training and development set of any task of GLUE")
    return names


def _configured(
    name: str, start: Start, arguments: argparse.Namespace, one_of_several: bool
) -> tuple[FinetuneConfig, str]:
    """The recipe of a task with the options of the command line, and its text to print."""
    options = {key: getattr(arguments, key) for key in (*_TASK_KEYS, *_SWITCHES)}
    given = {
        key: tuple(value) if isinstance(value, list) else value
        for key, value in options.items()
        if value is not None and value is not False
    }
    task = task_for(TaskConfig(name=name, **given))
    recipe = config_for(name, task, start.origin, start.model, start.tokenizer)
    length = recipe.data.sequence_length if arguments.max_length is None else arguments.max_length
    run_dir = arguments.run_dir or f"runs/{GLUE if one_of_several else name}"
    config = replace(
        recipe,
        run_dir=str(place_of(run_dir) / name) if one_of_several else run_dir,
        data=replace(recipe.data, sequence_length=length),
        task=replace(recipe.task, **given),
    )
    config = override(config, arguments.overrides, f"bertjax finetune {name}")
    return config, render(config, recipe)


def _run_task(
    base: FinetuneConfig, shown: str, start: Start, arguments: argparse.Namespace, processes: Processes, say: Say
) -> TaskSummary:
    """Every run of a task, in turn; runs that were finished before are not repeated."""
    task = task_for(base.task)
    settings = settings_of(base, _tried(task, arguments), arguments.seeds)
    say(shown)
    content, told = None, False
    results: dict[str, list[Result]] = {}
    for setting in settings:
        for config in setting.runs:
            if content is None or config.task.examples:  # the seed draws which examples
                content = load_task(config, start.tokenizer)
                same = f"{content.fingerprint} {content.measured_by}"
                processes.require_same("data of the task", same, "give every host the same files")
            if not told:
                told = True
                say(described(base.name, start, content))
            say(f"\n{config.directory}")
            result = finetune(config, start, content, processes, say)
            if result.exit_code:
                say("stopped by a signal; to go on, run the same command again.")
                raise Interrupted(result.exit_code)
            results.setdefault(setting.name, []).append(result)
            say(_figures_line(result))
    return TaskSummary(base.name, content.metrics, results, task.paper)


def _tried(task: Task, arguments: argparse.Namespace) -> dict[str, Sequence[float]]:
    """The values to try for each hyperparameter that the command line gives."""
    tried = {key: values for key in TRIED if (values := getattr(arguments, key))}
    if arguments.grid and arguments.learning_rate:
        rates = " ".join(f"{rate:g}" for rate in arguments.learning_rate)
        raise ValueError(f"--grid and --learning-rate {rates}: give one of them")
    if arguments.grid:
        tried = {"learning_rate": task.recipe.learning_rates} | tried
    return tried


def described(name: str, start: Start, content: TaskContent) -> str:
    """The data and the starting point of a task, as lines for the log."""
    sets = [f"{split} {len(of.rows):,}" for split, of in {**content.dev, **content.test}.items()]
    lines = [f"{name}: rows: train {len(content.train):,}, {', '.join(sets)}", *content.notes]
    if content.labels:
        shown = ", ".join(content.labels[:_SHOWN_LABELS])
        more = len(content.labels) - _SHOWN_LABELS
        lines.append(f"labels: {shown}{f' and {more} more' if more > 0 else ''}")
    if missing := [module for module in start.drawn if module == "pooler"]:
        lines.append(f"{start.origin} has no {missing[0]}; it is initialized at random")
    return "\n".join(lines)


def _figures_line(result: Result) -> str:
    shown = {name.removeprefix("eval/"): value for name, value in result.figures.items()}
    return f"step {result.step:,}: " + ", ".join(f"{name} {value:.4f}" for name, value in shown.items())


def _last_words(summaries: list[TaskSummary], bases: list[FinetuneConfig], say: Say) -> None:
    """Print the tables, export the best run of each task, and print where everything is and what to do next."""
    for summary, base in zip(summaries, bases, strict=True):
        table = summary.table()
        say("\n".join([f"\n{table.title} {table.note}", *text_lines(table)]))
        if published := summary.published_line():
            say(f"  published: {published}")
        say(f"  best run     {summary.best.directory}")
        say(f"  predictions  {place_of(summary.best.directory) / PREDICTIONS}")
        say(f"  Hugging Face {_exported(summary.best.directory, base)}")
    if len(summaries) > 1:
        table = overall(summaries, (OTHERS_DEV, BASE_TEST))
        say("\n".join([f"\n{table.title}, {table.note}", *text_lines(table, left=(0, 1))]))
    best = summaries[0].best.directory
    say("\nwhat to try next:")
    say(
        f"  bertjax predict {shlex.quote(best)} 'A text.'        "
        f"# in Python: bertjax.load({best!r}).predict(['A text.'])"
    )
    if has_class(bases[0].model):
        say(f"  bertjax export {shlex.quote(best)} --to onnx")


def _exported(best: str, base: FinetuneConfig) -> str:
    """The directory that the best run of a task is exported to, or why there is none."""
    if not has_class(base.model):
        return "has no network of layers' features or a BiLSTM: use the run itself, as below"
    return str(export_huggingface(load_run(best), place_of(base.directory) / "huggingface"))
