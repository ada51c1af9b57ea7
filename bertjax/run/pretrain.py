"""Pretrain a model: from a config to a trained, evaluated, reported and exported model.

`pretrain` is the script of a run and reads top to bottom; the loop over steps is `bertjax.run.loop.train`.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from bertjax.config import Config, to_dict
from bertjax.config.plugins import use_plugins, with_entry_points
from bertjax.convert.adapt import adapt, require_same_shape, untrained_modules
from bertjax.convert.foreign import ForeignModel
from bertjax.convert.huggingface.config import to_config_json
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.huggingface.names import class_obstacle, has_class, tensor_table
from bertjax.convert.sources import read_source, require_source
from bertjax.convert.teacher import fit_teacher, read_teacher
from bertjax.families.registry import trained_networks
from bertjax.input.training_data import TrainingData, sizes
from bertjax.interpret.fill_mask import held_out_completions
from bertjax.interpret.probes import make_probes, read_probe_files
from bertjax.model.network import Params
from bertjax.pipeline.notebook import in_cell
from bertjax.pipeline.vocabulary import vocabulary_line, with_vocabulary
from bertjax.report.run_report import REPORT_FILE, write_report
from bertjax.report.run_summary import Summary, final_lines, summarise
from bertjax.run.callbacks import Callback, merge_gradient_metrics
from bertjax.run.checkpoint import saved_steps
from bertjax.run.checkpoint_metadata import DRAWN
from bertjax.run.checks import preflight
from bertjax.run.describe import describe, describe_process
from bertjax.run.hooks import make_hooks
from bertjax.run.job import Job, assemble
from bertjax.run.loop import Outcome
from bertjax.run.reference_curve import reference_for
from bertjax.run.resume_choices import keep_choices
from bertjax.run.run_directory import data_to_resume, load_run, require_own_run, seal
from bertjax.run.session import print_now, raise_stopped, require_same_config, session
from bertjax.run.time_budget import fit_to_budget, keep_decided_length, seconds_of_this_process
from bertjax.run.train_job import Say, train_job
from bertjax.runtime.compilation import environment
from bertjax.runtime.processes import Processes
from bertjax.storage.lean_import import tensorflow_ahead
from bertjax.storage.progress import SIGNS, ProgressLine, no_progress
from bertjax.storage.remote import AnyPath, to_path
from bertjax.text.prepare import require_sources
from bertjax.text.store.manifest import MANIFEST_FILE
from bertjax.training.flops import Peak
from bertjax.training.objectives import choose
from bertjax.training.stages import make_stages

_COMPLETIONS, _GUESSES = 5, 3  # held-out sentences with [MASK] in the report, and predictions for each
_EXPORT = "huggingface"  # folder in the run's directory


@dataclass(frozen=True, repr=False)
class PretrainResult:
    """A finished run. A notebook displays its report."""

    config: Config  # resolved, with the values that depend on the data
    directory: AnyPath
    step: int
    figures: dict[str, float]  # held-out figures by their names in the log, such as eval/mlm_loss
    baselines: dict[str, float]  # figures of predictions without context, such as baseline/no_context_loss
    report: AnyPath  # an HTML page
    exported: AnyPath | None  # the model in Hugging Face's layout; None if transformers has no class for it
    summary: Summary | None  # None in all processes but 0

    def __repr__(self) -> str:
        """The final figures, the output files, and the next commands."""
        if self.summary is None:
            return f"step {self.step:,} of {self.directory}"
        return final_lines(self.config, self.summary, self.report, self.exported)

    def _repr_html_(self) -> str | None:
        return None if self.summary is None else in_cell(self.report.read_text(encoding="utf-8"))


def pretrain(
    config: Config,
    *,
    callbacks: Sequence[Callback] = (),
    user_keys: Collection[str] = (),
    announce: str = "",
    ends_process: bool = False,
) -> PretrainResult:
    """Run the remaining steps from text to a trained model, then report and export it.

    Every process of the run calls this. Process 0 prints (first `announce`, once the config is valid), reports and
    exports. The same call resumes a run that was stopped. `ends_process` as in `session`.

    With `training.budget`, the recipe is scaled to as many steps as fit; the keys in `user_keys` keep their values. The
    time counts from this call, or with `ends_process` from the start of the process.

    Raises ValueError for a config, text or run directory that cannot be used, and Stopped, a KeyboardInterrupt, if a
    signal ended the run: at once if nothing would be lost, otherwise after the current step was saved.
    """
    start = time.monotonic()
    clock = seconds_of_this_process if ends_process else lambda: time.monotonic() - start
    with session(config, ends_process=ends_process) as (processes, say):
        # 1. Config: checked before text is prepared, which may take hours
        config = replace(config, plugins=use_plugins(config.plugins))
        require_same_config(config, processes)
        with SIGNS.doing("checking the config"):
            requested_data = config.data
            config = with_vocabulary(preflight(config))
            obstacles = {name: class_obstacle(model) for name, model in trained_networks(config.model).items()}
            if not obstacles[""]:
                tensor_table(config.model)  # fails now instead of in the export if a head has no table
            require_sources(config.data)
            config = keep_decided_length(config, user_keys)  # a resumed run keeps what was decided at its start
            config = keep_choices(config, processes)
            callbacks = [*callbacks, *make_hooks(config)]
            config = replace(config, plugins=with_entry_points(config.plugins))
            require_own_run(config)
            initial_model = _read_initial_model(config)
            teacher_model = read_teacher(config)
            probe_files = read_probe_files(config)
        if announce:
            say(announce)
        if config.data != requested_data:
            say(vocabulary_line(config.data))
        for owner, obstacle in obstacles.items():
            if obstacle:
                say(f"note: no export to Hugging Face{' of the generator' if owner else ''}: {obstacle}")

        # 2. Data
        with SIGNS.doing("opening the training text"):
            content = _open_data(config, processes)
        if not obstacles[""]:
            to_config_json(config.model, content.tokenizer.special)  # fails now instead of in the export

        with tensorflow_ahead():
            # 3. Mesh, networks and programs
            with SIGNS.doing("assembling the run"):
                teacher = None if teacher_model is None else fit_teacher(teacher_model, config, content.tokenizer)
                gradient_metrics = merge_gradient_metrics(callbacks)
                job = assemble(config, content, teacher=teacher, gradient_metrics=gradient_metrics, processes=processes)
                probes = make_probes(job, content, probe_files, processes)
            processes.require_same("teacher", job.metadata["teacher_digest"], "give every host the same weights")
            if config.training.budget:
                finish = functools.partial(_finish_untrained, content)
                job = fit_to_budget(job, user_keys, clock, finish, processes, say)
            if (reference := reference_for(job.metadata)) is not None:
                job = replace(job, remark=reference.remark(job.progress_columns))
                runs = f"{len(reference.seeds)} runs of {reference.name} on the same text"
                say(f"held-out losses are compared with {runs}")
            notes = [f"note: {note}" for note in content.notes]
            say(describe(job, [content.name, *sizes(content).splitlines(), *notes]))
            if processes.count > 1:
                print_now(describe_process(job))

            # 4. State, hooks and training
            make_params = functools.partial(_initial_params, initial_model, job, say) if config.init_from else None
            if initial_model is not None:
                job = replace(job, metadata=job.metadata | {DRAWN: untrained_modules(initial_model, job.config.model)})
            outcome = train_job(job, processes, say, make_params, [*callbacks, *probes])
        for probe in probes:
            say(str(probe))

        # 5. Report and export
        result = None
        if not outcome.exit_code:
            processes.finish("stopped when training was complete; run the same command again for the rest.")
            with SIGNS.doing("writing the report and the export"):
                result = _finish(outcome.config, content, outcome, processes.first)
                if processes.first:
                    seal(result.directory)
    if result is None:  # raise outside of the session, which all processes leave together
        raise_stopped(
            outcome.exit_code,
            f"stopped after step {outcome.step:,}; checkpoint saved in {outcome.config.directory}.\n"
            "To continue, run the same command again.",
        )
    return result


def _open_data(config: Config, processes: Processes) -> TrainingData:
    """Open the run's data: process 0 prepares a missing token store, then the others open it or prepare their own.

    They take turns because object storage has no locks, and locks on a network disk may hold on one host only. A host
    that can read process 0's store opens it without reading the sources.
    """
    content = data_to_resume(config, ProgressLine()) if processes.first else None
    location = processes.broadcast("token store", content.location if content else "")
    if content is None:
        shared = bool(location) and (to_path(location) / MANIFEST_FILE).is_file()
        data = replace(config.data, store=(location,)) if shared else config.data
        content = data_to_resume(replace(config, data=data), no_progress)
    processes.require_same(
        "training text",
        content.fingerprint,
        "give every host the same data.sources, data.vocab and data.similar_words, or a data.root that they share",
    )
    return content


def _read_initial_model(config: Config) -> ForeignModel | None:
    """Read the model that `init_from` names; None if it is empty or the run has a checkpoint.

    Raises ValueError if the model cannot be read or its shape differs from the config's.
    """
    if not config.init_from:
        return None
    require_source(config.init_from)
    if saved_steps(config.directory):
        return None
    model = read_source(config.init_from)
    require_same_shape(model, config.model, config.init_layers)
    return model


def _initial_params(model: ForeignModel | None, job: Job, say: Say) -> Params:
    """Fit the weights of `init_from` to the job's model and vocabulary.

    `model` is None if the run had a checkpoint when it was resumed. If a loss spike then leads back to step 0, the
    weights are read here.
    """
    model = read_source(job.config.init_from) if model is None else model
    params, notes = adapt(model, job.config.model, job.tokenizer, job.config.init_layers)
    say("\n  ".join([f"starting from the weights of {job.config.init_from}", *notes]))
    return params


def _finish_untrained(content: TrainingData, config: Config) -> None:
    """Write the report and the export of an untrained run, to measure how long they take."""
    _finish(config, content, Outcome(config, 0, {}, {}, 0.0, 0.0, 0.0, 0.0, Peak(0.0, ""), 0), first=True)


def _finish(config: Config, content: TrainingData, outcome: Outcome, first: bool) -> PretrainResult:
    """Return the result of a finished run; process 0 (`first`) writes its report and its export."""
    directory, summary = to_path(config.directory), None
    report = directory / REPORT_FILE
    exported = directory / _EXPORT if has_class(config.model) else None
    if first:
        model = load_run(config.directory)
        names = {name for stage in make_stages(config) for name in stage.training.objectives}
        trained_heads = {head for objective in choose(sorted(names)) for head in objective.heads}
        count = _COMPLETIONS if "mlm_head" in trained_heads else 0
        completions = held_out_completions(model, content.held_out_text(), count, config.training.seed, _GUESSES)
        summary = summarise(config, content, outcome, completions)
        write_report(directory, summary, to_dict(config), environment())
        if exported is not None:
            export_huggingface(model, exported)
        if model.generator and has_class(model.generator.config.model):
            export_huggingface(model.generator, directory / f"{_EXPORT}-generator")
    return PretrainResult(
        config, directory, outcome.step, outcome.evaluation, outcome.baselines, report, exported, summary
    )
