"""`bertjax pretrain`: everything from text to a reported and exported model."""

from __future__ import annotations

import argparse

from bertjax.cli.recipe import configured_unseen
from bertjax.cli.together import print_now, require_same_config, speaker
from bertjax.config import Config, to_dict
from bertjax.convert.adapt import adapt
from bertjax.convert.huggingface.exporter import export_huggingface
from bertjax.convert.sources import read_source, require_source
from bertjax.input.training_data import TrainingData, open_training_data, sizes
from bertjax.interpret.fill_mask import held_out_completions
from bertjax.model.bert import Params
from bertjax.report.run_report import Completion, Summary, write_report
from bertjax.runtime.compilation_cache import environment, keep_compiled_programs
from bertjax.runtime.processes import Processes, Stopped, join
from bertjax.storage.progress import ProgressLine, no_progress
from bertjax.storage.remote import Place, place_of
from bertjax.training.job import Job, assemble, describe, describe_process, preflight
from bertjax.training.run_directory import load_run
from bertjax.training.stages import stages_of
from bertjax.training.trainer import Outcome, Say, train

COMPLETIONS = 5


def pretrain(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Run what is missing of the way from text to a trained model, then report and export it.

    Every process of the run does this; the first speaks, reports and exports for all.
    """
    config, shown = configured_unseen(arguments, overrides)
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
    outcome = train(job, say, (lambda: initial_params(job, say)) if config.init_from else None, processes)
    if outcome.exit_code:
        say(
            f"\nstopped by a signal after step {outcome.step:,}; saved in {job.config.directory}.\n"
            "To go on, run the same command again."
        )
        return outcome.exit_code
    processes.finished("stopped by a signal when training was complete; run the same command again for the rest.")
    if processes.first:
        finish(job.config, content, outcome)
    return 0


def _open_together(config: Config, processes: Processes) -> TrainingData:
    """The run's data. The first process makes what is missing, then the others find it, or copy or make their own.

    Not all at once: object storage has no locks, and those of a network disk may be for one host alone.
    """
    stages = [stage.data for stage in stages_of(config)]
    content = open_training_data(stages, ProgressLine(), config.training.objectives) if processes.first else None
    processes.gather("text is prepared")
    content = content or open_training_data(stages, no_progress, config.training.objectives)
    processes.require_same(
        "training text",
        content.fingerprint,
        "give every host the same data.sources and data.vocab, or a data.root that they share",
    )
    return content


def initial_params(job: Job, say: Say) -> Params:
    """The weights that `init_from` names, fitted to the job's model and vocabulary."""
    source = job.config.init_from
    params, notes = adapt(read_source(source), job.config.model, job.tokenizer)
    say("\n  ".join([f"starting from the weights of {source}", *notes]))
    return params


def finish(config: Config, content: TrainingData, outcome: Outcome) -> None:
    """Completions, report and export of a finished run, and the last words on the terminal."""
    model = load_run(config.directory)
    completions = held_out_completions(model, content.held_out_text(), COMPLETIONS, config.training.seed)
    summary = summarise(config, content, outcome, completions)
    report = write_report(model.directory, summary, to_dict(config), environment())
    exported = export_huggingface(model, model.directory / "huggingface")
    print(last_words(config, summary, report, exported), flush=True)


def summarise(config: Config, content: TrainingData, outcome: Outcome, completions: tuple[Completion, ...]) -> Summary:
    """The run in figures."""
    figures, baselines = outcome.evaluation, outcome.baselines
    return Summary(
        name=config.name,
        about=f"{', '.join(config.data.sources)}: {content.size('train')} to train on",
        steps=outcome.step,
        tokens_seen=round(outcome.tokens),
        wall_seconds=outcome.seconds,
        tokens_per_second=outcome.tokens_per_second,
        mfu=outcome.mfu,
        peak=str(outcome.peak),
        mlm_loss=figures["eval/mlm_loss"],
        mlm_accuracy=figures["eval/mlm_accuracy"],
        unigram_loss=baselines["baseline/unigram_loss"],
        unigram_accuracy=baselines["baseline/unigram_accuracy"],
        nsp_accuracy=figures.get("eval/nsp_accuracy"),
        majority_accuracy=baselines["baseline/majority_accuracy"] if "eval/nsp_accuracy" in figures else None,
        completions=completions,
    )


def last_words(config: Config, summary: Summary, report: Place, exported: Place) -> str:
    """What the run reached, where everything is, and what to do next."""
    held_out = [
        f"  MLM loss      {summary.mlm_loss:6.3f}    unigram {summary.unigram_loss:.3f}"
        f"    ({summary.unigram_loss - summary.mlm_loss:+.3f} nats gained)",
        f"  MLM accuracy  {summary.mlm_accuracy:6.1%}    most frequent token {summary.unigram_accuracy:.1%}",
    ]
    if summary.nsp_accuracy is not None:
        held_out.append(f"  NSP accuracy  {summary.nsp_accuracy:6.1%}    majority {summary.majority_accuracy:.1%}")
    filled = [
        f"  {completion.text}\n      {', '.join(f'{token} {share:.0%}' for token, share in completion.guesses)}"
        f"   (was: {completion.answer})"
        for completion in summary.completions
    ]
    run = place_of(config.directory)
    return "\n".join(
        [
            f"\nheld-out text, after {summary.steps:,} steps and {summary.tokens_seen:,} tokens:",
            *held_out,
            *(["\nwhat the model puts for [MASK] in held-out sentences:", *filled] if filled else []),
            "\nwhere everything is:",
            f"  report        {report}",
            f"  Hugging Face  {exported}",
            f"  checkpoints   {run / 'checkpoints'}",
            "\nwhat to try next:",
            f"  bertjax fill-mask {run} 'The [MASK] returns a new array.'",
            "  bertjax pretrain configs/bert_mini.py --data.sources 'text:my_texts/**/*.txt'    # your own text",
            "  pip install -e '.[cuda]' && bertjax pretrain configs/bert_base.py ...            # the same on a GPU",
            f"  bertjax export {run} --to huggingface --output my_bert                           # take it away",
        ]
    )
