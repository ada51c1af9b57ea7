"""Send signals to one of three processes at random moments: all stop at one step, and the run ends with the same bits.

python tests/run/check_preemption.py [--terms 20] [--kills 5] [--seed 0]

Every moment is drawn between the start of the processes and the usual end of the run, so that it falls into joining,
preparation, compilation, steps, evaluations and saves. Prints a line for each, and a summary at the end.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parent.parent / "training"))

from fake_devices import xla_flags

# As in the tests, before JAX is imported.
os.environ["XLA_FLAGS"] = xla_flags(devices=1)
os.environ.setdefault("JAX_PLATFORMS", "cpu")

from generated_corpus import write_corpus
from several_processes import Group
from tiny_runs import checkpoints, command, digests, write_recipe

PROCESSES = 3
GRACE = 30  # seconds to stop after SIGTERM
NOTICE_SECONDS = 60  # to exit after another process was killed
MOMENTS = [  # (text in the log, activity that it shows), latest first
    ("training is complete", "report"),
    ("held out", "step, eval or save"),
    ("pretraining  ", "step, eval or save"),
    ("data pipeline: ", "compile"),
    ("reads rows", "restore"),
    ("Gloo", "preparation"),
]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--terms", type=int, default=20)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    rng = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="preemption-") as name:
        folder = Path(name)
        os.environ["JAX_COMPILATION_CACHE_DIR"] = str(folder / "compiled")
        os.environ["JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS"] = "0"
        os.environ["JAX_PERSISTENT_CACHE_MIN_ENTRY_SIZE_BYTES"] = "0"
        return check(folder, options.terms, options.kills, rng)


def check(folder: Path, terms: int, kills: int, rng: random.Random) -> int:
    recipe, source = write_recipe(folder), write_corpus(folder / "corpus.txt", 300)
    overrides = ["--training.steps", "24", "--optimizer.warmup-steps", "5", "--training.log-every", "1"]
    overrides += ["--training.eval-every", "8", "--training.checkpoint-every", "6"]
    overrides += ["--training.global-batch-size", "12"]  # a multiple of three

    def start(run_dir: Path) -> Group:
        return Group(command(recipe, source, run_dir, *overrides), PROCESSES, run_dir.with_suffix(".log"))

    with start(folder / "whole") as group:  # fills the cache
        group.finish()
    shutil.rmtree(folder / "whole")
    start_time = time.monotonic()
    with start(folder / "whole") as group:
        group.finish()
    usual = time.monotonic() - start_time
    expected = digests(folder / "whole")
    print(f"an undisturbed run takes {usual:.0f} s", flush=True)

    worst, moments, failures = {signal.SIGTERM: 0.0, signal.SIGKILL: 0.0}, Counter(), 0
    while (number := moments.total()) < terms + kills:
        kind = signal.SIGTERM if number < terms else signal.SIGKILL
        run_dir = folder / f"run-{number}"
        victim, moment = rng.randrange(PROCESSES), rng.uniform(0.05, 0.95) * usual
        with start(run_dir) as group:
            time.sleep(moment)
            if any(code is not None for code in group.ended()):
                print(f"{number}: ended before {moment:.1f} s; drawn again", flush=True)
                shutil.rmtree(run_dir)
                continue
            log = "".join(group.logs)
            at = next((name for text, name in MOMENTS if text in log), "start")
            if at == "start":
                # The others would wait hosts.join_seconds for a process that has not connected.
                print(f"{number}: not all had joined after {moment:.1f} s; drawn again", flush=True)
                continue
            group.send(victim, kind)
            sent_at = time.monotonic()
            try:
                codes = group.wait(GRACE if kind == signal.SIGTERM else NOTICE_SECONDS)
            except AssertionError as error:
                codes, failures = [str(error)], failures + 1
            took = time.monotonic() - sent_at
            worst[kind] = max(worst[kind], took)
            moments[kind.name, at] += 1
            steps = [name for name in checkpoints(run_dir) if name.isdecimal()]
            others = [log for index, log in enumerate(group.logs) if index != victim]
        is_expected = check_exits(kind, codes, victim, others, steps)
        same = True
        if (
            steps or number % 5 == 0
        ):  # without a checkpoint, the next start is an undisturbed run; test a fifth of these
            with start(run_dir) as group:
                group.finish()
            same = digests(run_dir) == expected
        failures += not (is_expected and same)
        verdict = ("as expected" if is_expected else f"WRONG: {others}") + ("" if same else "; restarted: OTHER BITS")
        print(
            f"{number}: {kind.name} to {victim} after {moment:.1f} s ({at}): codes {codes} in {took:.1f} s, "
            f"saved {steps}, {verdict}",
            flush=True,
        )
        shutil.rmtree(run_dir, ignore_errors=True)
    print(f"{dict(moments)}; longest: {[f'{kind.name} {seconds:.1f} s' for kind, seconds in worst.items()]}")
    print(f"{failures} failures")
    return int(failures > 0)


def check_exits(kind: signal.Signals, codes: list[int], victim: int, logs: list[str], steps: list[str]) -> bool:
    """Whether all exited correctly: after SIGTERM with the code to resume, after SIGKILL naming the lost process."""
    if kind == signal.SIGTERM:
        return set(codes) == {75} and (steps or all("before the first step" in log for log in logs))
    survivors = [code for index, code in enumerate(codes) if index != victim]
    return set(survivors) == {75} and all(f"lost process {victim}" in log for log in logs)


if __name__ == "__main__":
    sys.exit(main())
