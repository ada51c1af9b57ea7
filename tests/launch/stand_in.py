"""A program that behaves as `bertjax pretrain` does towards a launcher, in a tenth of a second and without a model.

It takes the run's own arguments and keeps `RUN/checkpoints/<step>`, whose `metadata/metadata` is written last.
What goes wrong stands in STAND_IN, words of
`PROCESS:STEP:WHAT`, each of which happens once, or in every attempt if STEP is `always`: `kill` it kills itself, a
number is the exit code it leaves with, `wait` it leaves RUN/waiting-PID and goes on when there is RUN/go. Told to end
it saves, unless another one has come to grief meanwhile.
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
    told: list[int] = []
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda number, frame: told.append(number))
    if "MY_KEY" in os.environ:
        run.mkdir(parents=True, exist_ok=True)
        (run / "environment").write_text(os.environ["MY_KEY"])
    first, marks = newest(run), misfortunes(run)
    where = f" of {keys['--hosts.processes']} at {keys.get('--hosts.coordinator')}" if several else ""
    say(f"process {me}{where} begins at step {first}")
    for step in range(first + 1, int(keys["--training.steps"]) + 1):
        meet_the_others(run, keys, step, told)
        time.sleep(SECONDS_A_STEP)
        come_to_grief(run, me, step, told)
        lost = several and misfortunes(run) != marks
        if told and lost:
            return 75
        if told:
            save(run, step)
            say(f"saved step {step}")
            return 130 if told[0] == signal.SIGINT else 75
        if step % int(keys["--training.checkpoint-every"]) == 0 and not lost:
            save(run, step)
    say("done")
    return 0


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # in one piece, for several write to the same place


def newest(run: Path) -> int:
    return max((int(entry.name) for entry in (run / "checkpoints").glob("*")), default=0)


def misfortunes(run: Path) -> list[tuple[str, float]]:
    return sorted((mark.name, mark.stat().st_mtime) for mark in run.glob("happened-*"))


def save(run: Path, step: int) -> None:
    metadata = run / "checkpoints" / str(step) / "metadata"
    metadata.mkdir(parents=True, exist_ok=True)
    (metadata / "metadata").touch()


def meet_the_others(run: Path, keys: dict[str, str], step: int, told: list[int]) -> None:
    """Wait for the other processes of this machine before a step, as a real one does: one of them may be slow, or dead.

    Stand-ins for clusters may run one host after the other, and those hosts do not wait.
    """
    host, _, port = keys.get("--hosts.coordinator", "").partition(":")
    if host != "127.0.0.1":
        return
    folder = run / f"met-{port}"  # the launcher takes another port for each attempt
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{step}-{keys['--hosts.process']}").touch()
    all_of_them = [folder / f"{step}-{number}" for number in range(int(keys["--hosts.processes"]))]
    while not told and not all(one.exists() for one in all_of_them):
        time.sleep(0.002)


def come_to_grief(run: Path, me: int, step: int, told: list[int]) -> None:
    for word in os.environ.get("STAND_IN", "").split():
        process, at, what = word.split(":")
        if what == "wait":
            if (process, at) == (str(me), str(step)):
                (run / f"waiting-{os.getpid()}").touch()
                while not told and not (run / "go").exists():
                    time.sleep(0.01)
            continue
        mark = run / f"happened-{word.replace(':', '-')}"
        if int(process) != me or (at != "always" and (int(at) > step or mark.exists())):
            continue
        run.mkdir(parents=True, exist_ok=True)
        mark.touch()
        if what == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        sys.exit(int(what))


if __name__ == "__main__":
    sys.exit(main())
