"""`bertjax pretrain`: everything from text to a reported and exported model."""

from __future__ import annotations

import argparse
from pathlib import Path

import jax

from bertjax.analyze.fill_mask import held_out_completions
from bertjax.cli.recipe import configured
from bertjax.config import Config, to_dict
from bertjax.convert.adapt import adapt
from bertjax.convert.huggingface import export_huggingface
from bertjax.convert.sources import read_source, require_source
from bertjax.input.training_data import TrainingData, open_training_data, sizes
from bertjax.model.bert import Params
from bertjax.parallel.compilation_cache import keep_compiled_programs
from bertjax.text.progress import ProgressLine
from bertjax.training.environment import environment
from bertjax.training.job import Job, assemble, describe, preflight
from bertjax.training.report import Completion, Summary, write_report
from bertjax.training.run_directory import load_run
from bertjax.training.stages import stages_of
from bertjax.training.trainer import Outcome, train

COMPLETIONS = 5


def pretrain(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Run what is missing of the way from text to a trained model, then report and export it."""
    config = configured(arguments, overrides)
    keep_compiled_programs(config.compilation_cache)
    config = preflight(config)
    if config.init_from:
        require_source(config.init_from)
    content = open_training_data([stage.data for stage in stages_of(config)], ProgressLine())
    print(f"{content.name}\n{sizes(content)}", flush=True)
    job = assemble(config, content)
    print(describe(job), flush=True)
    outcome = train(job, _say, (lambda: initial_params(job)) if config.init_from else None)
    if outcome.exit_code:
        print(
            f"\nstopped by a signal after step {outcome.step:,}; saved in {job.config.directory}.\n"
            "To go on, run the same command again.",
            flush=True,
        )
    elif jax.process_index() == 0:
        finish(job.config, content, outcome)
    return outcome.exit_code


def initial_params(job: Job) -> Params:
    """The weights that `init_from` names, fitted to the job's model and vocabulary."""
    source = job.config.init_from
    params, notes = adapt(read_source(source), job.config.model, job.tokenizer)
    _say("\n  ".join([f"starting from the weights of {source}", *notes]))
    return params


def _say(line: str) -> None:
    print(line, flush=True)


def finish(config: Config, content: TrainingData, outcome: Outcome) -> None:
    """Completions, report and export of a finished run, and the last words on the terminal."""
    model = load_run(config.directory)
    completions = held_out_completions(model, content.held_out_text(), COMPLETIONS, config.training.seed)
    summary = summarise(config, content, outcome, completions)
    report = write_report(config.directory, summary, to_dict(config), environment())
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
        unigram_loss=baselines.unigram_loss,
        unigram_accuracy=baselines.unigram_accuracy,
        nsp_accuracy=figures.get("eval/nsp_accuracy"),
        majority_accuracy=baselines.majority_accuracy if "eval/nsp_accuracy" in figures else None,
        completions=completions,
    )


def last_words(config: Config, summary: Summary, report: Path, exported: Path) -> str:
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
    run = config.directory
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
