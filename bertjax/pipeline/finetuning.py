"""Fine-tuning, whole: one task, or every task of GLUE, under every setting and seed; figures, tables and exports."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.config import DistillationConfig, FinetuneConfig, TaskConfig, render, render_all
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.names import has_class
from bertjax.convert.sources import open_source, require_source
from bertjax.convert.teacher import fit_task_teacher, read_task_teacher
from bertjax.finetune.distillation import with_projection
from bertjax.finetune.job import check_before_data
from bertjax.finetune.kinds.kind import Task, TaskContent
from bertjax.finetune.load import load_task
from bertjax.finetune.recipes import TRIED, config_for, settings_of
from bertjax.finetune.run import PREDICTIONS, Result, Start
from bertjax.finetune.run import finetune as finetune_once
from bertjax.finetune.summary import TaskSummary, overall
from bertjax.finetune.tasks import BASE_TEST, OTHERS_DEV, glue_tasks_in, task_for
from bertjax.interpret.probes import is_probed
from bertjax.pipeline.notebook import in_cell, tables_and_curves
from bertjax.report.page import Table, text_lines
from bertjax.run.callbacks import Callback
from bertjax.run.loggers import require_loggers
from bertjax.run.run_directory import load_run
from bertjax.run.session import raise_if_stopped, require_same_config, session
from bertjax.run.trainer import Say
from bertjax.runtime.processes import Processes
from bertjax.storage.remote import path_of

GLUE = "glue"
_SHOWN_LABELS, _SHOWN_ANSWERS = 12, 4


@dataclass(frozen=True)
class TaskRequest:
    """What to fine-tune: the task, the model to start from, and every setting to try."""

    name: str  # of a task, or glue for all of them
    init_from: str
    teacher: str = ""  # a model that was fine-tuned for the task, to learn from
    task: Mapping[str, Any] = field(default_factory=dict)  # keys of TaskConfig that differ from the task's recipe
    tried: Mapping[str, Sequence[float]] = field(default_factory=dict)  # of `recipes.TRIED` -> the values to try
    grid: bool = False  # try the learning rates of the paper
    seeds: int = 1  # runs of each setting
    max_length: int | None = None  # tokens per row
    run_dir: str = ""  # runs/<name>
    change: Callable[[FinetuneConfig], FinetuneConfig] = lambda config: config  # of other keys, made last
    show_config: bool = False  # print every setting, not only those that differ from the task's recipe


@dataclass(frozen=True, repr=False)
class FinetuneResult:
    """Finished runs, by task. In a notebook it shows their tables and the curves of the best run."""

    summaries: tuple[TaskSummary, ...]  # one for each task
    exported: tuple[str, ...]  # for each task, where its best model is in Hugging Face's layout, or why it is not;
    # empty in all processes but the first

    @property
    def best(self) -> Result:
        """The best run of the (first) task."""
        return self.summaries[0].best

    @property
    def directory(self) -> str:
        """Where that run is: `bertjax.load` takes it."""
        return self.best.directory

    @property
    def figures(self) -> dict[str, float]:
        """Its held-out figures by their names in the log, such as eval/accuracy."""
        return self.best.figures

    def tables(self) -> list[Table]:
        """A table for each task, and for several one with published figures."""
        tables = [summary.table() for summary in self.summaries]
        tables += [table for summary in self.summaries for table in summary.by_language()]
        return [*tables, overall(self.summaries, (OTHERS_DEV, BASE_TEST))] if len(self.summaries) > 1 else tables

    def __repr__(self) -> str:
        """Show the tables, the output, and what to do next."""
        return "\n".join(_last_words(self))

    def _repr_html_(self) -> str:
        return in_cell(tables_and_curves(self.summaries[0].task, self.tables(), path_of(self.directory)))


def finetune(request: TaskRequest, *, callbacks: Sequence[Callback] = (), ends_process: bool = False) -> FinetuneResult:
    """Fine-tune for one task, or for every task of GLUE that has data, under every setting and seed, and export.

    Every process of the runs calls this; the first prints, calls the callbacks of each run in turn, and exports for
    all. The same call resumes what was stopped, and repeats nothing. `ends_process` as in `session`. Raises ValueError
    for what cannot be used, and Stopped, a KeyboardInterrupt, if a signal ended a run early.
    """
    # Processes must join before the model is read, which uses devices; the rest of the config needs the model.
    early = request.change(
        FinetuneConfig(task=TaskConfig(**request.task), distillation=DistillationConfig(teacher=request.teacher))
    )
    if early.training.budget:
        raise ValueError(
            f"training.budget={early.training.budget!r}: fine-tuning ends after its epochs; set task.epochs, or "
            "training.steps"
        )
    if is_probed(early):
        raise ValueError(f"probe={early.probe}: a fine-tuned model is not probed; leave it out, or probe pretraining")
    _require_teachable(request, early)
    require_loggers(early.log)
    for source in filter(None, (request.init_from, request.teacher)):
        require_source(source)
    with session(early, ends_process=ends_process) as (processes, say):
        exit_code, result = _finetune(request, processes, say, callbacks)
    raise_if_stopped(exit_code, "stopped by a signal; to continue, run the same command again.")
    assert result is not None, "runs that were not stopped have a result"
    return result


def _finetune(
    request: TaskRequest, processes: Processes, say: Say, callbacks: Sequence[Callback]
) -> tuple[int, FinetuneResult | None]:
    """(0, the result), or (the exit code of a signal, None)."""
    names = _glue_names(request) if request.name == GLUE else (request.name,)
    for name in names:
        task_for(TaskConfig(name=name, **request.task))  # an unknown one is refused before the model is read
    start = read_start(request.init_from)
    configured = [_configured(name, start, request, len(names) > 1) for name in names]
    for base, _ in configured:
        require_same_config(base, processes)
    summaries = []
    for base, shown in configured:
        say(shown)
        exit_code, summary = _run_task(base, start, request, processes, say, callbacks)
        if summary is None:
            return exit_code, None
        summaries.append(summary)
    processes.finished("stopped by a signal when training was complete; run the same command again for the rest.")
    pairs = zip(summaries, configured, strict=True) if processes.first else ()
    exported = tuple(_exported(summary.best.directory, base) for summary, (base, _) in pairs)
    return 0, FinetuneResult(tuple(summaries), exported)


def _require_teachable(request: TaskRequest, config: FinetuneConfig) -> None:
    """Raise ValueError for what cannot be learned from a teacher, and for its options without one."""
    teacher, distil = config.distillation.teacher, config.task.distil
    if config.distillation.temperature != DistillationConfig.temperature:
        raise ValueError(
            f"distillation.temperature={config.distillation.temperature:g} has no effect: a task's predictions are "
            "compared at temperature 1 (TinyBERT); leave it out"
        )
    if not teacher and ("distil" in request.task or distil != TaskConfig.distil):
        raise ValueError(f"task.distil={distil!r} without a teacher; name one (--teacher), or leave it out")
    if teacher and request.name == GLUE:
        raise ValueError(
            f"finetune glue: a teacher is fine-tuned for one task, so {teacher!r} cannot teach them all; give each "
            "task its own: bertjax finetune sst2 --teacher ..."
        )
    if distil != "layers":
        return
    several = [key for key in TRIED if len(request.tried.get(key, ())) > 1]
    several += ["seeds"] * (request.seeds > 1) + ["grid"] * request.grid + ["patience"] * (config.task.patience > 0)
    if several:
        raise ValueError(
            f"--distil layers with --{several[0].replace('_', '-')}: the run does not train the head, so figures of "
            "the development set choose nothing; leave it out here, and give it to the run with --distil predictions"
        )


def read_start(source: str) -> Start:
    """The model of a source, whole."""
    model, drawn = open_source(source)
    params = jax.tree.map(np.asarray, jax.device_get(model.params))
    task = model.config.task if isinstance(model.config, FinetuneConfig) else None
    return Start(source, model.config.model, model.tokenizer, params, drawn, task.labels if task else (), model.kind)


def _glue_names(request: TaskRequest) -> tuple[str, ...]:
    if not (data := request.task.get("data")):
        raise ValueError("finetune glue: --data is missing; give the folder that holds the folders of the tasks")
    names = glue_tasks_in(Path(data))
    if not names:
        raise ValueError(f"finetune glue: {data} holds no training and development set of any task of GLUE")
    return names


def _configured(name: str, start: Start, request: TaskRequest, one_of_several: bool) -> tuple[FinetuneConfig, str]:
    """The recipe of a task with the requested settings, and its text to print."""
    task = task_for(TaskConfig(name=name, **request.task))
    recipe = config_for(name, task, start.origin, start.model, start.tokenizer)
    length = recipe.data.sequence_length if request.max_length is None else request.max_length
    run_dir = request.run_dir or f"runs/{GLUE if one_of_several else name}"
    config = replace(
        recipe,
        run_dir=str(path_of(run_dir) / name) if one_of_several else run_dir,
        data=replace(recipe.data, sequence_length=length),
        task=replace(recipe.task, **request.task),
        distillation=replace(recipe.distillation, teacher=request.teacher),
    )
    config = request.change(config)
    shown = render(config, recipe)
    return config, f"{shown}\n{render_all(config)}" if request.show_config else shown


def _run_task(
    base: FinetuneConfig,
    start: Start,
    request: TaskRequest,
    processes: Processes,
    say: Say,
    callbacks: Sequence[Callback],
) -> tuple[int, TaskSummary | None]:
    """Every run of a task, in turn; runs that were finished before are not repeated. As `_finetune` returns it."""
    task = task_for(base.task)
    found = read_task_teacher(base, task.kind)
    base = with_projection(base, None if found is None else found.config)
    settings = settings_of(base, _tried(task, request), request.seeds)
    for config in (setting.runs[0] for setting in settings):
        check_before_data(config, task.kind)
    content, is_described = None, False
    results: dict[str, list[Result]] = {}
    for setting in settings:
        for config in setting.runs:
            if content is None or config.task.examples:  # the seed draws which examples
                content = load_task(config, start.tokenizer)
                same = f"{content.fingerprint} {content.measured_by}"
                processes.require_same("data of the task", same, "give every host the same files")
            if not is_described:
                is_described = True
                say(described(base.name, start, content))
            say(f"\n{config.directory}")
            teacher = None
            if found is not None:
                teacher = fit_task_teacher(found, config, start.tokenizer, content.kind, content.labels)
                processes.require_same("teacher", teacher.digest, "give every host the same weights")
            result = finetune_once(config, start, content, processes, say, callbacks, teacher)
            if result.exit_code:
                return result.exit_code, None
            results.setdefault(setting.name, []).append(result)
            say(_figures_line(result))
    assert content is not None, "there is a setting, and a seed"
    return 0, TaskSummary(
        base.name,
        content.metrics,
        results,
        task.paper,
        content.kind,
        content.example,
        content.labels,
        content.averaged,
    )


def _tried(task: Task, request: TaskRequest) -> dict[str, Sequence[float]]:
    """The values to try for each hyperparameter of `TRIED` that has any."""
    tried = {key: request.tried[key] for key in TRIED if key in request.tried}
    if request.grid and "learning_rate" in tried:
        rates = " ".join(f"{rate:g}" for rate in tried["learning_rate"])
        raise ValueError(f"--grid and --learning-rate {rates}: give one of them")
    if request.grid:
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


def _last_words(result: FinetuneResult) -> list[str]:
    lines = []
    for summary, exported in zip(result.summaries, result.exported, strict=True):
        table = summary.table()
        lines += [f"\n{table.title}, {table.note}", *text_lines(table)]
        if published := summary.published_line():
            lines.append(f"  published: {published}")
        lines += [
            f"  best run     {summary.best.directory}",
            f"  predictions  {path_of(summary.best.directory) / PREDICTIONS}",
            f"  Hugging Face {exported}",
        ]
    for table in result.tables()[len(result.summaries) :]:
        lines += [f"\n{table.title}, {table.note}", *text_lines(table, left=(0, 1))]
    best = result.directory
    lines.append("\nNext:")
    lines += _to_predict(result.summaries[0])
    if result.exported[0] != _NO_CLASS:
        lines.append(f"  bertjax export {shlex.quote(best)} --to onnx")
    return lines


def _to_predict(summary: TaskSummary) -> list[str]:
    """Commands that use the best run, with an example of the task's own."""
    best, kind = summary.best.directory, summary.kind
    assert kind is not None, "a task that was run has a kind"
    if kind.no_prediction:
        return [f"  bertjax embed {shlex.quote(best)} TEXTS.txt --output vectors.npy --normalize    # a vector a line"]
    texts = summary.example or ("A text.",)
    answers = ", ".join(summary.labels[:_SHOWN_ANSWERS]) + (" ..." if len(summary.labels) > _SHOWN_ANSWERS else "")
    return [
        f"  {shlex.join(['bertjax', 'predict', best, *texts])}{answers and f'    # {answers}'}",
        f"  in Python: bertjax.load({best!r}).predict({kind.input_of(texts)!r})",
    ]


_NO_CLASS = "has no network of layers' features or a BiLSTM: use the run itself, as below"


def _exported(best: str, base: FinetuneConfig) -> str:
    """The directory that the best run of a task is exported to, or why there is none."""
    if not has_class(base.model):
        return _NO_CLASS
    return str(export_huggingface(load_run(best), path_of(base.directory) / "huggingface"))
