"""`bertjax run average`: the mean of a run's last checkpoints, or its moving average."""

from __future__ import annotations

import argparse
import shlex

from bertjax.cli.verb import Verb

_CHECKPOINTS = 5  # to average


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("run", metavar="RUN", help="a run's directory")
    parser.add_argument(
        "--last", type=int, metavar="N", help=f"number of newest checkpoints to average ({_CHECKPOINTS})"
    )
    parser.add_argument(
        "--moving", action="store_true", help="write the moving average that optimizer.average_decay keeps instead"
    )
    parser.add_argument("--output", default="", metavar="DIR", help="directory of the run to write (RUN-average)")


def run(arguments: argparse.Namespace) -> int:
    """Write the mean as a new run."""
    from bertjax.run.averaging import average, write_moving_average

    if arguments.moving and arguments.last is not None:
        raise ValueError(
            f"--last {arguments.last} with --moving: the newest checkpoint has that average; leave one out"
        )
    if arguments.moving:
        result = write_moving_average(arguments.run, arguments.output)
        print(f"{result.directory}: the moving average at step {result.steps[0]}")
    else:
        result = average(arguments.run, _CHECKPOINTS if arguments.last is None else arguments.last, arguments.output)
        print(f"{result.directory}: the mean of {len(result.steps)} checkpoints, {', '.join(map(str, result.steps))}")
    quoted = shlex.quote(str(result.directory))
    print(f"next: bertjax evaluate {quoted}")
    print(f"next: bertjax export {quoted} --to huggingface")
    return 0


AVERAGE = Verb(
    add_arguments,
    run,
    example="bertjax run average runs/quickstart --last 2",
    interrupted="nothing was averaged; run the same command again to start over",
)
