"""`bertjax evaluate`: a run's figures on its held-out text, scores of texts, accuracies on minimal pairs."""

from __future__ import annotations

import argparse

from bertjax.cli import score
from bertjax.cli.model_source import add_source, add_texts
from bertjax.cli.verb import Verb, require_unused


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of `evaluate`."""
    add_source(parser)
    add_texts(parser, "a text to score by its pseudo-log-likelihood; without texts: evaluate RUN on its held-out text")
    score.add_options(parser.add_argument_group("scores"))


def run(arguments: argparse.Namespace) -> int:
    """Print a run's held-out figures and the baselines, or scores of texts."""
    if arguments.text or arguments.file or arguments.field or arguments.pairs:
        return score.score(arguments)
    require_unused(arguments, score.OPTIONS, "TEXT, --file or --pairs")
    from bertjax.config import FinetuneConfig
    from bertjax.convert.sources import load_own_run
    from bertjax.convert.teacher import fit_teacher, read_teacher
    from bertjax.finetune.run import RESULTS_FILE
    from bertjax.run.checkpoint import read_metadata
    from bertjax.run.job import evaluate_params
    from bertjax.run.run_directory import data_of
    from bertjax.storage.progress import ProgressLine
    from bertjax.storage.remote import path_of

    model = load_own_run(arguments.run)
    if isinstance(model.config, FinetuneConfig):
        raise ValueError(
            f"{arguments.run} was fine-tuned; its figures are in {model.directory / RESULTS_FILE}. To measure it on "
            "another file, repeat the command that trained it with --test FILE: it trains nothing again"
        )
    found = read_teacher(model.config)
    teacher = None if found is None else fit_teacher(found, model.config, model.tokenizer)
    if teacher is not None and teacher.digest != read_metadata(path_of(arguments.run))["teacher_digest"]:
        raise ValueError(
            f"distillation.teacher={model.config.distillation.teacher!r} is not the model that {arguments.run} learned "
            "from: its weights have another digest; put the original back"
        )
    content = data_of(arguments.run, model.config, ProgressLine())
    figures, baselines = evaluate_params(model.config, content, model.params, model.step, teacher)
    print(f"step {model.step:,} of {model.directory}, held out: {content.size('held_out')}")
    for name, value in figures.items():
        print(f"  {name:20} {value:.4f}")
    for name, value in baselines.items():
        print(f"  {name:20} {value:.4f}")
    return 0


VERB = Verb(
    add_arguments,
    run,
    example="bertjax evaluate runs/quickstart",
    interrupted="nothing was written; run the same command again to start over",
)
