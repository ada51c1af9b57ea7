"""`bertjax run replay`: repeat one step of a run and show its rows, to find the cause of a loss spike."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING

from bertjax.cli.verb import Verb

if TYPE_CHECKING:
    from bertjax.pipeline.replay import ReplayOfRun

DIFFERENT = 3  # exit code

_EXIT_CODES = f"Exit code 0: the figures equal those in the log, or the log has none; {DIFFERENT}: they differ."


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help=f"a pretraining run's directory. {_EXIT_CODES}")
    parser.add_argument(
        "--step", type=int, required=True, metavar="N", help="the step, counted as in the log (the first is 1)"
    )
    parser.add_argument(
        "--rows", type=int, default=8, metavar="K", help="rows shown, those with the most loss first (%(default)s)"
    )


def run(arguments: argparse.Namespace) -> int:
    """Rebuild the step from the checkpoint before it, and print its figures and rows."""
    if arguments.rows < 0:
        raise ValueError(f"--rows {arguments.rows}: give 0 or more")
    from bertjax.pipeline.replay import replay_step
    from bertjax.runtime.host_memory import keep_freed_memory
    from bertjax.storage.progress import ProgressLine

    keep_freed_memory()
    replay = replay_step(arguments.run, arguments.step, ProgressLine())
    print(*_lines(replay, arguments.run, arguments.rows), sep="\n")
    return DIFFERENT if replay.replayed.comparison.different else 0


def _lines(replay: ReplayOfRun, directory: str, rows: int) -> list[str]:
    step = replay.replayed
    origin = f"the checkpoint of step {step.start:,}" if step.start else "the run's first state"
    lines = [f"step {step.step:,} of {directory}, rebuilt from {origin}"]
    lines += [f"note: {notice}" for notice in replay.notices] + _comparison_lines(replay)
    figures = {name: value for name, value in step.figures.items() if not name.startswith("skipped")}
    lines += ["", *(f"  {name:22} {value:.6g}" for name, value in figures.items())]
    lines += ["", "norm of the gradient, before clipping", *(f"  {name:22} {x:.4g}" for name, x in step.layers.items())]
    by_share = sorted(step.rows, key=lambda row: -row.share)[:rows]
    lines += ["", f"{len(by_share)} of {len(step.rows)} rows, those with the largest share of the loss first"]
    for row in by_share:
        losses = ", ".join(f"{name} {loss:.4f}" for name, loss in row.losses.items())
        lines.append(
            f"  row {row.number}: {row.share / step.figures['loss']:.1%} of the loss; {losses}; norm of its gradient "
            f"{row.gradient_norm:.4g}"
        )
        text = replay.texts[row.number]
        lines += [f"    {origin}" for origin in text.origins] + [f"      {line}" for line in text.text.splitlines()]
    return lines


def _comparison_lines(replay: ReplayOfRun) -> list[str]:
    """Describe the comparison with the log."""
    comparison = replay.replayed.comparison
    if not comparison.compared:
        return ["the log has no record of these steps alone, so nothing was compared"]
    first, last = comparison.compared[0], comparison.compared[-1]
    compared = f"{len(comparison.compared)} record(s) of the log, at steps {first:,} to {last:,}"
    if not comparison.different:
        return [f"{compared}: every training figure is the same to its last digit"]
    lines = [f"{compared}: {len(comparison.different)} DIFFER"]
    for step, figures in comparison.different.items():
        lines += [f"  step {step:,}  {name}: logged {was}, here {now}" for name, (was, now) in figures.items()]
    return lines


REPLAY = Verb(
    add_arguments,
    run,
    example="bertjax run replay runs/quickstart --step 1200",
    interrupted="nothing was written; run the same command again to start over",
)
