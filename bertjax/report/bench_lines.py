"""The figures of a benchmark as text and as JSON."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from bertjax.config import Config, to_dict
from bertjax.run.bench import Machine, StageFigures
from bertjax.run.progress import duration, long_run_warning
from bertjax.runtime.compilation import environment
from bertjax.storage.terminal import three_digits

_GAINS = 1.2  # times the rate in float32 from which on bfloat16 is worth a try


def machine_line(machine: Machine) -> str:
    """The devices and their peak rate, and a hint if bfloat16 multiplies faster than the recipe's float32."""
    sheet = f"; data sheet {machine.data_sheet_flops / 1e12:,.4g} TFLOP/s" if machine.data_sheet_flops else ""
    line = f"{machine.devices} x {machine.device_kind}, each {machine.measured}{sheet}"
    gain = machine.bfloat16.flops / machine.measured.flops if machine.bfloat16 else 0
    return line + (
        f"\nbfloat16 multiplies {gain:.1f} times as fast: --execution.dtype bfloat16" if gain >= _GAINS else ""
    )


def stage_text(figures: StageFigures) -> str:
    """A stage's figures as a table of two columns."""
    stage, steps, program, alone = figures.stage, figures.steps, figures.program, figures.input
    low, high = steps.spread
    sheet = f", {figures.mfu_of_data_sheet:.1%} of the data sheet" if figures.mfu_of_data_sheet is not None else ""
    peak = "not reported by this device" if program.peak_bytes is None else f"{program.peak_bytes / 1e9:,.2f} GB"
    rows = [
        (
            "tokens a second",
            f"{figures.tokens_per_second:,.0f} real, {figures.slots_per_second:,.0f} with padding "
            f"({steps.tokens / steps.slots:.1%} filled)",
        ),
        ("step", f"{_time(steps.median)}, middle half {_time(low)} to {_time(high)}, {len(steps.seconds)} steps"),
        (
            "matmuls alone",
            f"{_time(figures.least_seconds)} a step at the measured rate; the step takes "
            f"{steps.mean / figures.least_seconds:.2f} times that",
        ),
        ("MFU", f"{figures.mfu_of_measured:.1%} of the measured matmul{sheet}"),
        (
            "input alone",
            f"{alone.batches_per_second:,.4g} batches/s, {alone.rows_per_second:,.0f} rows/s "
            f"({alone.engine}, {alone.threads} threads)",
        ),
        ("steps take", f"{1 / steps.mean:,.4g} batches/s; waiting for input {steps.waiting:.1%} of the time"),
        ("limited by", "the input: raise data.threads" if figures.input_limits else "the step"),
        ("compiling", f"{program.compile_seconds:,.1f} s"),
        ("memory", f"{program.compiled_bytes / 1e9:,.2f} GB a device by the compiler; peak {peak}"),
        ("this stage", f"{stage.stop - stage.start:,} steps, {duration(figures.stage_seconds)} at this rate"),
    ]
    return "\n".join([_rows_text(figures), *[f"  {name:16} {value}" for name, value in rows]])


def _rows_text(figures: StageFigures) -> str:
    stage, training = figures.measured, figures.measured.training
    whole, shorter = figures.stage.training, ""
    if stage is not figures.stage:
        shorter = (
            f"\n  (a step of the run has {whole.global_batch_size:,} rows in "
            f"{whole.microbatches} gradient accumulation step{'s' * (whole.microbatches > 1)} "
            "and would take too long here; the shorter ones update more often for the same tokens)"
        )
    return (
        f"\nsteps {stage.start:,} to {stage.stop:,}, measured with {training.global_batch_size:,} rows of "
        f"{stage.data.sequence_length} tokens in {training.microbatches} gradient accumulation "
        f"step{'s' * (training.microbatches > 1)}{shorter}"
    )


def total_line(figures: Sequence[StageFigures]) -> str:
    """The duration of the whole recipe, with a warning if it is impractically long."""
    seconds, steps = sum(f.stage_seconds for f in figures), sum(f.stage.stop - f.stage.start for f in figures)
    line = f"\nthe whole recipe: {duration(seconds)}, without evaluations and checkpoints"
    return "\n".join(filter(None, [line, long_run_warning(seconds / 3600, steps)]))


def as_json(config: Config, text: str, machine: Machine, figures: Sequence[StageFigures]) -> dict[str, Any]:
    """All figures as JSON values."""
    derived = ("tokens_per_second", "slots_per_second", "least_seconds", "input_limits", "stage_seconds")
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
    return f"{three_digits(seconds)} s" if seconds >= 1 else f"{three_digits(seconds * 1000)} ms"
