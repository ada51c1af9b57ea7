"""`bertjax bench`: how fast this machine trains a recipe, and what limits it."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path

from bertjax.cli.recipe import configured
from bertjax.config import Config, to_dict
from bertjax.input.made_up_text import ABOUT, made_up_batches
from bertjax.input.training_data import open_training_data
from bertjax.runtime.compilation_cache import environment
from bertjax.runtime.host_memory import keep_freed_memory
from bertjax.storage.files import replace_text
from bertjax.storage.progress import ProgressLine
from bertjax.text.sources.registry import parse_source, source_files
from bertjax.text.trained_vocabulary import vocabulary_size
from bertjax.training.bench import Input, Machine, MakeRows, StageFigures, bench, slots
from bertjax.training.job import preflight
from bertjax.training.progress import duration
from bertjax.training.stages import stages_of

_MADE_UP_STEPS = 64  # steps that made-up text is enough for, within these limits
_MADE_UP_TOKENS = (2_000_000, 50_000_000)


def run_bench(arguments: argparse.Namespace, overrides: list[str]) -> int:
    """Print the figures of every stage of a recipe."""
    keep_freed_memory()
    config = preflight(configured(arguments, overrides))
    if arguments.seconds <= 0:
        raise ValueError(f"--seconds {arguments.seconds}: give a time above 0")
    config, make_rows, text = rows_of(config, arguments.made_up)
    print(f"\ntext: {text}", flush=True)
    machine, figures = bench(config, make_rows, arguments.seconds)
    print("\n".join([told_machine(machine), *map(told_stage, figures), told_total(figures)]))
    if arguments.json:
        replace_text(Path(arguments.json), json.dumps(as_json(config, text, machine, figures), indent=2) + "\n")
        print(f"written to {arguments.json}")
    return 0


def rows_of(config: Config, made_up: bool) -> tuple[Config, MakeRows, str]:
    """The config with its vocabulary's size, what makes its rows, and what they are made of: its text, if there."""
    objectives = config.training.objectives
    missing = "--made-up" if made_up else why_there_is_no_text(config.data.sources)
    if missing:
        size, vocabulary = vocabulary_size(config.data)
        steps = max(slots(stage) for stage in stages_of(config))
        least, most = _MADE_UP_TOKENS
        tokens = min(max(_MADE_UP_STEPS * steps, least), most)
        config = replace(config, model=replace(config.model, vocab_size=size))
        about = f"{ABOUT}, {tokens:,} of them ({missing}); {vocabulary}"
        return config, lambda data, seed: made_up_batches(data, seed, tokens, objectives), about
    content = open_training_data([stage.data for stage in stages_of(config)], ProgressLine(), objectives)
    config = replace(config, model=replace(config.model, vocab_size=content.tokenizer.vocab_size))
    return config, content.train, f"{content.name}, {content.size('train')}"


def why_there_is_no_text(sources: Sequence[str]) -> str:
    """What is missing of a recipe's sources; empty if nothing is."""
    if not sources:
        return "the recipe names no data.sources"
    for source in sources:
        try:
            source_files(parse_source(source))
        except (ValueError, OSError, ModuleNotFoundError) as error:
            return f"no text: {str(error).splitlines()[0].partition('. ')[0]}"
    return ""


def told_machine(machine: Machine) -> str:
    """The devices and what they can do at most."""
    sheet = f"; data sheet {machine.data_sheet_flops / 1e12:,.4g} TFLOP/s" if machine.data_sheet_flops else ""
    return f"{machine.devices} x {machine.device_kind}, each {machine.measured}{sheet}"


def told_stage(figures: StageFigures) -> str:
    """A stage's figures as a table of two columns."""
    stage, steps, program = figures.stage, figures.steps, figures.program
    low, high = steps.spread
    sheet = f", {figures.mfu_of_data_sheet:.1%} of the data sheet" if figures.mfu_of_data_sheet is not None else ""
    peak = "not told by this device" if program.peak_bytes is None else f"{program.peak_bytes / 1e9:,.2f} GB"
    rows = [
        (
            "tokens a second",
            f"{figures.tokens_per_second:,.0f} real, {figures.slots_per_second:,.0f} with padding "
            f"({steps.tokens / steps.slots:.1%} filled)",
        ),
        ("step", f"{_time(steps.median)}, middle half {_time(low)} to {_time(high)}, {len(steps.seconds)} steps"),
        ("MFU", f"{figures.mfu_of_measured:.1%} of the measured matmul{sheet}"),
        ("input alone", _told_input(figures.input)),
        ("a step takes", f"{1 / steps.mean:,.4g} batches/s; waiting for them: {steps.waiting:.1%} of the time"),
        ("what limits", "the input: raise data.threads" if figures.input_limits else "the step"),
        ("compiling", f"{program.compile_seconds:,.1f} s"),
        ("memory", f"{program.compiled_bytes / 1e9:,.2f} GB a device by the compiler; peak {peak}"),
        ("this stage", f"{stage.stop - stage.start:,} steps, {duration(figures.stage_seconds)} at this rate"),
    ]
    return "\n".join([_told_rows(figures), *[f"  {name:16} {value}" for name, value in rows]])


def _told_rows(figures: StageFigures) -> str:
    stage, training = figures.measured, figures.measured.training
    whole, shorter = figures.stage.training, ""
    if stage is not figures.stage:
        shorter = (
            f"\n  (a step of the run has {whole.global_batch_size:,} rows in {whole.grad_accum_steps} microbatch(es) "
            "and would take too long here; the shorter ones update more often for the same tokens)"
        )
    return (
        f"\nsteps {stage.start:,} to {stage.stop:,}, measured with {training.global_batch_size:,} rows of "
        f"{stage.data.sequence_length} tokens in {training.grad_accum_steps} microbatch(es){shorter}"
    )


def _told_input(input_alone: Input) -> str:
    return (
        f"{input_alone.batches_per_second:,.4g} batches/s, {input_alone.rows_per_second:,.0f} rows/s "
        f"({input_alone.engine}, {input_alone.threads} threads)"
    )


def told_total(figures: Sequence[StageFigures]) -> str:
    """How long the recipe would take."""
    return f"\nthe whole recipe: {duration(sum(f.stage_seconds for f in figures))}, without evaluations and checkpoints"


def as_json(config: Config, text: str, machine: Machine, figures: Sequence[StageFigures]) -> dict:
    """All of it for a program to read."""
    derived = ("tokens_per_second", "slots_per_second", "input_limits", "stage_seconds")
    return {
        "config": to_dict(config),
        "environment": environment(),
        "text": text,
        "machine": asdict(machine),
        "stages": [
            asdict(f) | {name: getattr(f, name) for name in derived} | {"step_seconds_median": f.steps.median}
            for f in figures
        ],
    }


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{seconds * 1000:.3g} ms"
