"""Fine-tune for one task, or every task of GLUE, with every setting and seed; figures, tables and exports."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import jax
import numpy as np

from bertjax.config import DistillationConfig, FinetuneConfig, TaskConfig, render, render_all, with_values
from bertjax.config.plugins import as_active, use_plugins, with_entry_points
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.names import class_obstacle
from bertjax.convert.sources import open_source, require_source
from bertjax.convert.teacher import fit_task_teacher, read_task_teacher
from bertjax.finetune.distillation import with_projection
from bertjax.finetune.job import check_before_data
from bertjax.finetune.kinds.kind import TaskContent
from bertjax.finetune.load import load_task
from bertjax.finetune.recipes import TRIED, config_for, make_settings
from bertjax.finetune.run import PREDICTIONS, Result, Start
from bertjax.finetune.run import finetune as finetune_once
from bertjax.finetune.summary import TaskSummary, overall
from bertjax.finetune.tasks import BASE_TEST, OTHERS_DEV, glue_tasks_in, make_task
from bertjax.pipeline.arguments import strings
from bertjax.pipeline.finetune_options import FinetuneOptions
from bertjax.pipeline.notebook import in_cell, tables_and_curves
from bertjax.report.page import Table, text_lines
from bertjax.report.run_report import REPORT_FILE
from bertjax.run.callbacks import Callback
from bertjax.run.hooks import make_hooks
from bertjax.run.loggers import require_loggers
from bertjax.run.run_directory import load_run
from bertjax.run.session import raise_stopped, require_same_config, session
from bertjax.run.train_job import Say
from bertjax.runtime.processes import Processes
from bertjax.storage.remote import to_path
from bertjax.storage.terminal import first_names

GLUE = "glue"
_SHOWN_LABELS, _SHOWN_ANSWERS = 12, 4
_NO_EXPORT = "no export: "  # begins `FinetuneResult.exported` of a network that transformers lacks


@dataclass(frozen=True)
class TaskRequest:
    """The task, the model to start from, and every setting to try."""

    name: str  # of a task, or glue for all of them
    init_from: str
    teacher: str = ""  # a model that was fine-tuned for the task, to learn from
    task: Mapping[str, Any] = field(default_factory=dict)  # keys of TaskConfig that differ from the task's recipe
    tried: Mapping[str, Sequence[float]] = field(default_factory=dict)  # keys of `recipes.TRIED`: values to try
    grid: bool = False  # try the learning rates of the paper
    seeds: int = 1  # runs of each setting
    max_length: int | None = None  # tokens per row
    run_dir: str = ""  # runs/<name>
    change: Callable[[FinetuneConfig], FinetuneConfig] = lambda config: config  # overrides of other keys, applied last
    show_config: bool = False  # print every key, not only those that differ from the task's recipe


def make_request(task: str, init_from: str, options: FinetuneOptions) -> TaskRequest:
    """The request of `bertjax.finetune`."""
    data = {name: str(getattr(options, name)) for name in ("data", "train", "dev", "test", "label")}
    columns: dict[str, tuple] = {
        name: strings(getattr(options, name)) for name in ("text", "labels", "from_text", "positives")
    } | {"dims": tuple(options.dims)}
    tried: dict[str, Sequence[float]] = {
        "learning_rate": options.learning_rates,
        "batch_size": options.batch_sizes,
        "epochs": options.epochs,
    }
    return TaskRequest(
        name=task,
        init_from=init_from,
        teacher=str(options.teacher),
        task={key: value for key, value in {**data, **columns}.items() if value},
        tried={key: values for key, values in tried.items() if values},
        seeds=options.seeds,
        max_length=options.max_length,
        run_dir=str(options.run_dir),
        change=lambda config: with_values(config, options.keys),
    )


@dataclass(frozen=True, repr=False)
class FinetuneResult:
    """Finished runs, by task. A notebook shows their tables and the curves of the best run."""

    summaries: tuple[TaskSummary, ...]  # one for each task
    # For each task the folder with its best model in Hugging Face's layout, or why there is none. Only the first
    # process has them.
    exported: tuple[str, ...]

    @property
    def best(self) -> Result:
        """The best run of the (first) task."""
        return self.summaries[0].best

    @property
    def directory(self) -> str:
        """The directory of the best run, for `bertjax.load`."""
        return self.best.directory

    @property
    def figures(self) -> dict[str, float]:
        """The best run's held-out figures by their names in the log, such as eval/accuracy."""
        return self.best.figures

    def tables(self) -> list[Table]:
        """A table for each task; for several tasks also one with published figures."""
        tables = [summary.table() for summary in self.summaries]
        tables += [table for summary in self.summaries for table in summary.by_language()]
        return [*tables, overall(self.summaries, (OTHERS_DEV, BASE_TEST))] if len(self.summaries) > 1 else tables

    def __repr__(self) -> str:
        """Show the tables, the paths of the results, and commands to try next."""
        lines = []
        for summary, exported in zip(self.summaries, self.exported, strict=True):
            table = summary.table()
            lines += [f"\n{table.title}, {table.note}", *text_lines(table)]
            if published := summary.published_line():
                lines.append(f"  published: {published}")
            lines += [
                f"  best run     {summary.best.directory}",
                f"  report       {to_path(summary.best.directory) / REPORT_FILE}",
                f"  predictions  {to_path(summary.best.directory) / PREDICTIONS}",
                f"  Hugging Face {exported}",
            ]
        for table in self.tables()[len(self.summaries) :]:
            lines += [f"\n{table.title}, {table.note}", *text_lines(table, left=(0, 1))]
        lines += ["\nNext:", *_prediction_commands(self.summaries[0])]
        if not self.exported[0].startswith(_NO_EXPORT):
            lines.append(f"  bertjax export {shlex.quote(self.directory)} --to onnx")
        return "\n".join(lines)

    def _repr_html_(self) -> str:
        return in_cell(tables_and_curves(self.summaries[0].task, self.tables(), to_path(self.directory)))


def finetune(request: TaskRequest, *, callbacks: Sequence[Callback] = (), ends_process: bool = False) -> FinetuneResult:
    """Fine-tune for one task, or for every task of GLUE that has data, with every setting and seed, and export.

    Every process of the runs calls this; the first prints, calls the callbacks of each run in turn, and exports for
    all. The same call resumes a stopped run and repeats no finished one. `ends_process` as in `session`. Raises
    ValueError for unsupported requests, and Stopped, a KeyboardInterrupt, if a signal ended a run early.
    """
    # 1. Refuse unsupported requests. Processes must join before the model is read, which uses devices, and the complete
    # config needs the model; this one is enough to join.
    base = FinetuneConfig(task=TaskConfig(**request.task), distillation=DistillationConfig(teacher=request.teacher))
    _check_set_once(request, base)
    early = request.change(base)
    use_plugins(early.plugins)
    make_hooks(early)
    if early.training.budget:
        raise ValueError(
            f"training.budget={early.training.budget!r}: fine-tuning ends after its epochs; set task.epochs, or "
            "training.steps"
        )
    if early.probe.time_share:
        raise ValueError(f"probe={early.probe}: fine-tuning takes no probes; leave it out, or probe pretraining")
    _check_distillation(request, early)
    require_loggers(early.log)
    for source in filter(None, (request.init_from, request.teacher)):
        require_source(source)
    names = _glue_names(request) if request.name == GLUE else (request.name,)
    for name in names:
        make_task(TaskConfig(name=name, **request.task))

    exit_code, summaries, exported = 0, [], []
    with session(early, ends_process=ends_process) as (processes, say):
        # 2. Read the model, and make a config for each task
        start = read_start(request.init_from)
        configs = [_make_config(name, start, request, len(names) > 1) for name in names]
        for config, _ in configs:
            require_same_config(config, processes)

        # 3. Train
        for config, text in configs:
            say(text)
            exit_code, summary = _run_task(config, start, request, processes, say, callbacks)
            if summary is None:
                break
            summaries.append(summary)
        else:
            processes.finish("stopped after training; run the same command again for the rest.")

            # 4. Export the best run of each task
            for summary, (config, _) in zip(summaries, configs, strict=True) if processes.first else ():
                if obstacle := class_obstacle(config.model):
                    exported.append(f"{_NO_EXPORT}{obstacle}; use the run itself, as below")
                else:
                    folder = to_path(config.directory) / "huggingface"
                    exported.append(str(export_huggingface(load_run(summary.best.directory), folder)))
    if exit_code:
        raise_stopped(exit_code, "stopped; to continue, run the same command again.")
    return FinetuneResult(tuple(summaries), tuple(exported))


def _check_set_once(request: TaskRequest, base: FinetuneConfig) -> None:
    """Raise ValueError for an option that an override of the config sets as well."""
    options = {
        "--learning-rate": ("optimizer", "learning_rate", "learning_rate" in request.tried),
        "--grid": ("optimizer", "learning_rate", request.grid),
        "--batch-size": ("training", "global_batch_size", "batch_size" in request.tried),
        "--epochs": ("task", "epochs", "epochs" in request.tried),
        "--max-length": ("data", "sequence_length", request.max_length is not None),
    }
    # Overrides replace an impossible value.
    unset = {part: replace(getattr(base, part), **{key: -1}) for part, key, _ in options.values()}
    config = request.change(replace(base, **unset))
    for option, (part, key, is_given) in options.items():
        value = getattr(getattr(config, part), key)
        if is_given and value != -1:
            raise ValueError(f"{option} and {part}.{key}={value} set the same; give one of them")


def _check_distillation(request: TaskRequest, config: FinetuneConfig) -> None:
    """Raise ValueError for a request that a teacher does not support, and for distillation options without one."""
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
            f"--distil layers with --{several[0].replace('_', '-')}: the run does not train the head, so that the "
            "development set cannot choose a run; leave the option out here, and give it with --distil predictions"
        )


def read_start(source: str) -> Start:
    """Read the model of a source into memory."""
    model, drawn = open_source(source)
    params = jax.tree.map(np.asarray, jax.device_get(model.params))
    task = model.config.task if isinstance(model.config, FinetuneConfig) else None
    labels, plugins = task.labels if task else (), model.config.plugins
    return Start(source, model.config.model, model.tokenizer, params, drawn, labels, model.kind, plugins)


def _glue_names(request: TaskRequest) -> tuple[str, ...]:
    if not (data := request.task.get("data")):
        raise ValueError("finetune glue: --data is missing; give the folder that holds the folders of the tasks")
    names = glue_tasks_in(Path(data))
    if not names:
        raise ValueError(f"finetune glue: {data} has no task of GLUE with a training and a development set")
    return names


def _make_config(name: str, start: Start, request: TaskRequest, one_of_several: bool) -> tuple[FinetuneConfig, str]:
    """The recipe of a task with the requested overrides, and its text to print."""
    task = make_task(TaskConfig(name=name, **request.task))
    recipe = config_for(name, task, start.origin, start.model, start.tokenizer)
    length = recipe.data.sequence_length if request.max_length is None else request.max_length
    run_dir = request.run_dir or f"runs/{GLUE if one_of_several else name}"
    config = replace(
        recipe,
        run_dir=str(to_path(run_dir) / name) if one_of_several else run_dir,
        data=replace(recipe.data, sequence_length=length),
        task=replace(recipe.task, **request.task),
        distillation=replace(recipe.distillation, teacher=request.teacher),
    )
    config = task.kind.completed(request.change(config))
    plugins = dict.fromkeys((*as_active(start.plugins), *use_plugins(config.plugins)))
    config = replace(config, plugins=with_entry_points(tuple(plugins)))
    text = render(config, recipe)
    return config, f"{text}\n{render_all(config)}" if request.show_config else text


def _run_task(
    base: FinetuneConfig,
    start: Start,
    request: TaskRequest,
    processes: Processes,
    say: Say,
    callbacks: Sequence[Callback],
) -> tuple[int, TaskSummary | None]:
    """Run every setting and seed of a task in turn: (0, its summary), or (the exit code of a signal, None)."""
    # 1. The settings
    task = make_task(base.task)
    teacher_source = read_task_teacher(base, task.kind)
    base = with_projection(base, None if teacher_source is None else teacher_source.config)
    tried = {key: request.tried[key] for key in TRIED if key in request.tried}
    if request.grid and "learning_rate" in tried:
        rates = " ".join(f"{rate:g}" for rate in tried["learning_rate"])
        raise ValueError(f"--grid and --learning-rate {rates}: give one of them")
    if request.grid:
        tried = {"learning_rate": task.recipe.learning_rates} | tried
    settings = make_settings(base, tried, request.seeds)
    for setting in settings:
        check_before_data(setting.runs[0], task.kind)

    # 2. Their runs
    content = None
    results: dict[str, list[Result]] = {}
    for setting in settings:
        for config in setting.runs:
            first = content is None
            if content is None or config.task.examples:  # the seed selects the examples
                content = load_task(config, start.tokenizer)
                same = f"{content.fingerprint} {content.measured_by}"
                processes.require_same("data of the task", same, "give every host the same files")
            if first:
                say(_describe_data(base.name, start, content))
            say(f"\n{config.directory}")
            teacher = None
            if teacher_source is not None:
                teacher = fit_task_teacher(teacher_source, config, start.tokenizer, content.kind, content.labels)
                processes.require_same("teacher", teacher.digest, "give every host the same weights")
            hooks = [*callbacks, *make_hooks(config)]
            result = finetune_once(config, start, content, processes, say, hooks, teacher)
            if result.exit_code:
                return result.exit_code, None
            results.setdefault(setting.name, []).append(result)
            figures = (f"{name.removeprefix('eval/')} {value:.4f}" for name, value in result.figures.items())
            say(f"step {result.step:,}: {', '.join(figures)}")
    assert content is not None, "no setting was run"
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


def _describe_data(name: str, start: Start, content: TaskContent) -> str:
    """The data and the starting point of a task, as lines for the log."""
    sets = [f"{split} {len(data.rows):,}" for split, data in {**content.dev, **content.test}.items()]
    lines = [f"{name}: rows: train {len(content.train):,}, {', '.join(sets)}", *content.notes]
    if content.labels:
        lines.append(f"labels: {first_names(content.labels, _SHOWN_LABELS)}")
    if "pooler" in start.untrained:
        lines.append(f"{start.origin} has no pooler; it is initialised at random")
    return "\n".join(lines)


def _prediction_commands(summary: TaskSummary) -> list[str]:
    """Commands that use the best run, with an example of the task."""
    best, kind = summary.best.directory, summary.kind
    assert kind is not None, "a finished task has a kind"
    if kind.no_prediction:
        return [f"  bertjax embed {shlex.quote(best)} TEXTS.txt --output vectors.npy --normalize    # a vector a line"]
    texts = summary.example or ("A text.",)
    answers = ", ".join(summary.labels[:_SHOWN_ANSWERS]) + (" ..." if len(summary.labels) > _SHOWN_ANSWERS else "")
    return [
        f"  {shlex.join(['bertjax', 'predict', best, *texts])}{answers and f'    # {answers}'}",
        f"  in Python: bertjax.load({best!r}).predict({kind.make_input(texts)!r})",
    ]
