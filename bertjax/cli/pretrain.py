"""`bertjax pretrain`: everything from text to a reported and exported model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertjax.cli.recipe import add_recipe, configured_unseen
from bertjax.cli.verb import Verb
from bertjax.config import Config, to_dict

if TYPE_CHECKING:
    from bertjax.input.training_data import TrainingData
    from bertjax.model.network import Params
    from bertjax.runtime.processes import Processes
    from bertjax.training.job import Job
    from bertjax.training.trainer import Outcome, Say

COMPLETIONS = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `pretrain`."""
    add_recipe(parser)


def run(arguments: argparse.Namespace) -> int:
    """Run what is missing of the way from text to a trained model, then report and export it.

    Every process of the run does this; the first prints, reports and exports for all.
    """
    from bertjax.cli.recipe import print_now, speaker
    from bertjax.runtime.compilation import keep_compiled_programs
    from bertjax.runtime.processes import Stopped, join

    config, shown = configured_unseen(arguments)
    keep_compiled_programs(config.compilation_cache)
    try:
        with join(config.hosts) as processes:
            say = speaker(processes)
            say(shown)
            return _pretrain(config, processes, say)
    except Stopped as stopped:
        print_now(f"\n{stopped}")
        return stopped.exit_code


def _pretrain(config: Config, processes: Processes, say: Say) -> int:
    from bertjax.cli.recipe import print_now, require_same_config
    from bertjax.convert.sources import require_source
    from bertjax.input.training_data import sizes
    from bertjax.training.job import assemble, describe, describe_process, preflight
    from bertjax.training.trainer import train

    require_same_config(config, processes)
    config = preflight(config)
    if config.init_from:
        require_source(config.init_from)
    content = _open_together(config, processes)
    say(f"{content.name}\n{sizes(content)}")
    job = assemble(config, content)
    say(describe(job))
    if processes.count > 1:
        print_now(describe_process(job))
    outcome = train(job, say, (lambda: _initial_params(job, say)) if config.init_from else None, processes)
    if outcome.exit_code:
        say(
            f"\nstopped by a signal after step {outcome.step:,}; saved in {job.config.directory}.\n"
            "To go on, run the same command again."
        )
        return outcome.exit_code
    processes.finished("stopped by a signal when training was complete; run the same command again for the rest.")
    if processes.first:
        _finish(job.config, content, outcome)
    return 0


def _open_together(config: Config, processes: Processes) -> TrainingData:
    """The data of the run: the first process makes what is missing, then the others open it, or copy or make their own.

    Not all at once: object storage has no locks, and those of a network disk may hold on one host only.
    """
    from bertjax.storage.progress import ProgressLine, no_progress
    from bertjax.training.stages import open_data

    content = open_data(config, ProgressLine()) if processes.first else None
    processes.gather("text is prepared")
    content = content or open_data(config, no_progress)
    processes.require_same(
        "training text",
        content.fingerprint,
        "give every host the same data.sources and data.vocab, or a data.root that they share",
    )
    return content


def _initial_params(job: Job, say: Say) -> Params:
    """The weights that `init_from` names, fitted to the job's model and vocabulary."""
    from bertjax.convert.adapt import adapt
    from bertjax.convert.sources import read_source

    source = job.config.init_from
    params, notes = adapt(read_source(source), job.config.model, job.tokenizer)
    say("\n  ".join([f"starting from the weights of {source}", *notes]))
    return params


def _finish(config: Config, content: TrainingData, outcome: Outcome) -> None:
    """Completions, report and export of a finished run, and the last words on the terminal."""
    from bertjax.convert.huggingface.exporter import export_huggingface
    from bertjax.interpret.fill_mask import held_out_completions
    from bertjax.report.run_report import write_report
    from bertjax.report.run_summary import last_words, summarise
    from bertjax.runtime.compilation import environment
    from bertjax.training.objectives import choose
    from bertjax.training.run_directory import load_run

    model = load_run(config.directory)
    trained = {head for objective in choose(config.training.objectives) for head in objective.heads}
    count = COMPLETIONS if "mlm_head" in trained else 0  # an untrained head would only guess
    completions = held_out_completions(model, content.held_out_text(), count, config.training.seed)
    summary = summarise(config, content, outcome, completions)
    report = write_report(model.directory, summary, to_dict(config), environment())
    exported = export_huggingface(model, model.directory / "huggingface")
    if model.generator:
        export_huggingface(model.generator, model.directory / "huggingface-generator")
    print(last_words(config, summary, report, exported), flush=True)


VERB = Verb(
    add_arguments,
    run,
    example="bertjax pretrain configs/bert_mini.py --data.sources 'text:books/*.txt'",
    takes_keys=True,
)
