"""Behave like `bertjax pretrain` towards a launcher, in a tenth of a second and without a model.

Takes the arguments of a run and writes `RUN/checkpoints/<step>`, with `metadata/metadata` last. The variable STAND_IN
lists faults of the form PROCESS:STEP:FAULT. Each happens once, or in every attempt if STEP is `always`. FAULT is `kill`
(kill itself), an exit code, or `wait` (write RUN/waiting-PID and continue when RUN/go exists). On a signal it saves and
ends, unless another process had a fault meanwhile.
"""

import os
import signal
import sys
import time
from pathlib import Path

SECONDS_A_STEP = 0.03


def main() -> int:
    keys = dict(zip(sys.argv[3::2], sys.argv[4::2], strict=True))
    run, me, several = (
        Path(keys["--run-dir"].removeprefix("file://")),
        int(keys.get("--hosts.process", 0)),
        "--hosts.processes" in keys,
    )
    signals: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: signals.append(number))
    if "MY_KEY" in os.environ:
        run.mkdir(parents=True, exist_ok=True)
        (run / "environment").write_text(os.environ["MY_KEY"])
    first, marks = newest(run), faults(run)
    where = f" of {keys['--hosts.processes']} at {keys.get('--hosts.coordinator')}" if several else ""
    say(f"process {me}{where} begins at step {first}")
    for step in range(first + 1, int(keys["--training.steps"]) + 1):
        wait_for_others(run, keys, step, signals)
        time.sleep(SECONDS_A_STEP)
        apply_faults(run, me, step, signals)
        lost = several and faults(run) != marks
        if signals and lost:
            return 75
        if signals:
            save(run, step)
            say(f"saved step {step}")
            return 130 if signals[0] == signal.SIGINT else 75
        if step % int(keys["--training.checkpoint-every"]) == 0 and not lost:
            save(run, step)
    say("done")
    return 0


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # in one piece, because several processes share the output


def newest(run: Path) -> int:
    return max((int(entry.name) for entry in (run / "checkpoints").glob("*")), default=0)


def faults(run: Path) -> list[tuple[str, float]]:
    return sorted((mark.name, mark.stat().st_mtime) for mark in run.glob("happened-*"))


def save(run: Path, step: int) -> None:
    metadata = run / "checkpoints" / str(step) / "metadata"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "metadata").touch()


def wait_for_others(run: Path, keys: dict[str, str], step: int, signals: list[int]) -> None:
    """Wait for the other processes of this machine before a step, like a real run; they may be slow or dead.

    Hosts of a simulated cluster may run one after the other, and do not wait.
    """
    host, _, port = keys.get("--hosts.coordinator", "").partition(":")
    if host != "127.0.0.1":
        return
    folder = run / f"met-{port}"  # the launcher takes another port for each attempt
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{step}-{keys['--hosts.process']}").touch()
    marks = [folder / f"{step}-{number}" for number in range(int(keys["--hosts.processes"]))]
    while not signals and not all(one.exists() for one in marks):
        time.sleep(0.002)


def apply_faults(run: Path, me: int, step: int, signals: list[int]) -> None:
    for word in os.environ.get("STAND_IN", "").split():
        process, at, fault = word.split(":")
        if fault == "wait":
            if (process, at) == (str(me), str(step)):
                (run / f"waiting-{os.getpid()}").touch()
                while not signals and not (run / "go").exists():
                    time.sleep(0.01)
            continue
        mark = run / f"happened-{word.replace(':', '-')}"
        if int(process) != me or (at != "always" and (int(at) > step or mark.exists())):
            continue
        run.mkdir(parents=True, exist_ok=True)
        mark.touch()
        if fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(int(fault))


if __name__ == "__main__":
    sys.exit(main())
