"""Runs a command until it is done: restarts it after a preemption, and a few times after a failure.

    python launch/keep_running.py [--hand-back] [--pause SECONDS] [--] bertjax pretrain CONFIG ...

The exit codes of `bertjax pretrain` decide: 0 it is done; 75 it was preempted or lost another process, and resumes if
it is run again; 130 the user stopped it; 2 its arguments are wrong, or another job has taken its directory; 76 a device
computes wrongly, and would do so again, so the run waits until a person has taken it out; other codes are failures.
Signals are passed on. A run without progress is given up: see MOST_FAILURES and MOST_RESUMES. With --hand-back the
caller resumes the run, on any hosts; the number of resumes is counted in a file of the run, so that the limit holds
there too.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

DONE, MISUNDERSTOOD, RESUME, WRONG_BITS, INTERRUPTED = 0, 2, 75, 76, 130
GIVEN_UP = 1  # in place of 75 for a run without progress, since the caller would resume it again
TERMINATED = 143  # by a SIGTERM before there was anything to save
MOST_FAILURES = 3  # in a row without a new checkpoint: a permanent error
MOST_RESUMES = 10  # in a row without a new checkpoint: a job that never reaches its next one
LONGEST_PAUSE = 300.0  # seconds
LAST_WRITTEN = "metadata/metadata"  # of a checkpoint; in object storage its folder is there from the first file on
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def say(line: str) -> None:
    """Print a line of the launcher, marked to distinguish it from the run's output."""
    print(f"==> {line}", flush=True)


@dataclass
class Told:
    """The signal that this process received, if any; it is passed on to the processes that it started."""

    number: int | None = None
    processes: Sequence[subprocess.Popen] = ()

    def listen(self) -> None:
        """Handle SIGTERM, SIGINT and SIGHUP from now on."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._take)

    def pass_on(self) -> None:
        """Send the processes the signal; SIGHUP becomes SIGTERM, at which they save."""
        number = signal.SIGINT if self.number == signal.SIGINT else signal.SIGTERM
        for process in self.processes:
            if process.returncode is None:
                process.send_signal(number)

    def wait(self, seconds: float) -> None:
        """Sleep until the time is over or a signal comes."""
        end = time.monotonic() + seconds
        while self.number is None and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.number = number
        self.pass_on()


@dataclass
class Restarts:
    """Decides whether an ended command is started again, and after how many seconds."""

    newest: Callable[[], int | None]  # the step of the newest checkpoint
    first_pause: float = 10.0  # seconds; doubled with every end without a new checkpoint
    _step: int | None = None
    _ends: dict[int, int] = field(default_factory=dict)  # without a new checkpoint: how many, by exit code

    def __post_init__(self) -> None:
        self._step = self._look()

    def pause_after(self, code: int) -> float | None:
        """Seconds to wait before the next start; None if there is none, after printing the reason."""
        if code in (DONE, INTERRUPTED, MISUNDERSTOOD, WRONG_BITS):
            return None
        step = self._look()
        if step != self._step:
            self._step, self._ends = step, {}
        self._ends[code] = self._ends.get(code, 0) + 1
        resumes = self._ends.get(RESUME, 0)
        failures = sum(self._ends.values()) - resumes
        saved = f"the checkpoint of step {step}" if step is not None else "the beginning: there is no checkpoint yet"
        if failures >= MOST_FAILURES or resumes >= MOST_RESUMES:
            say(f"exit code {code}; ended {failures + resumes} times without a new checkpoint, so not started again")
            return None
        behind = failures + resumes - (code == RESUME)
        pause = min(self.first_pause * 2 ** (behind - 1), LONGEST_PAUSE) if behind else 0.0
        say(f"exit code {code}; in {pause:.0f} s it resumes from {saved}")
        return pause

    def _look(self) -> int | None:
        # A short failure of the storage must not end the run.
        try:
            return self.newest()
        except Exception as error:
            say(f"cannot look for a new checkpoint ({type(error).__name__}: {error}); assuming that there is none")
            return self._step


class HandedBack:
    """The number of times in a row that a run was handed back at one step, in a file of the run, since hosts change.

    Every process decides by the content of the file when it began, so that all decide the same; only process 0 writes.
    """

    def __init__(self, pretrain: Sequence[str], is_first: bool) -> None:
        self._pretrain, self._is_first = pretrain, is_first
        self._before = self._read()

    def is_too_often(self) -> bool:
        """Count an end with exit code 75; returns whether the run is given up."""
        try:
            step = newest_checkpoint(self._pretrain)
            count = 1 + (self._before["resumes"] if self._before["step"] == step else 0)
            files, path = self._place()
            if self._is_first:
                files.makedirs(path.rpartition("/")[0], exist_ok=True)
                files.pipe_file(path, json.dumps({"step": step, "resumes": count}).encode())
        except Exception as error:
            say(f"cannot count the resumes ({type(error).__name__}: {error})")
            return False
        if count < MOST_RESUMES:
            return False
        say(f"handed back {count} times in a row without a new checkpoint: given up; to resume anyway, rm {path}")
        return True

    def _read(self) -> dict[str, int | None]:
        try:
            files, path = self._place()
            files.invalidate_cache()
            if files.exists(path):
                found = json.loads(files.cat_file(path))
                return {"step": found["step"], "resumes": int(found["resumes"])}
        except Exception as error:
            say(f"cannot read the number of resumes ({type(error).__name__}: {error}); counting from 0")
        return {"step": None, "resumes": 0}

    def _place(self) -> tuple[Any, str]:
        files, run = run_folder(self._pretrain)
        return files, f"{run}/resumes.json"


def is_first_process(pretrain: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether this host has process 0 of a run, by the cluster's variables and the run's keys."""
    numbers = ("JOB_COMPLETION_INDEX", "MEGASCALE_SLICE_ID", "TPU_WORKER_ID", "SLURM_PROCID")
    return configured(pretrain).hosts.process < 1 and all(environment.get(name, "0") == "0" for name in numbers)


def keep_running(
    attempt: Callable[[], int], told: Told, restarts: Restarts, handed_back: HandedBack | None = None
) -> int:
    """Run attempts until one is done or must not be repeated; returns the exit code.

    With `handed_back` nothing is resumed here: the caller gets 75 and resumes elsewhere.
    """
    while True:
        code = attempt()
        if told.number is not None or (handed_back is not None and code == RESUME):
            code = RESUME if code == TERMINATED else code
            too_often = code == RESUME and handed_back is not None and handed_back.is_too_often()
            return GIVEN_UP if too_often else code
        pause = restarts.pause_after(code)
        if pause is None:
            return GIVEN_UP if code == RESUME else code
        told.wait(pause)
        if told.number is not None:
            return INTERRUPTED if told.number == signal.SIGINT else RESUME


def start(command: Sequence[str], **options: object) -> subprocess.Popen:
    """Start a command that does not receive the terminal's Ctrl-C, and that gets SIGTERM if this process ends."""
    try:
        return subprocess.Popen(command, start_new_session=True, preexec_fn=_die_with_parent, **options)  # noqa: S603
    except FileNotFoundError:
        sys.exit(f"error: there is no {command[0]} on the PATH; ./launch/run.sh '' COMMAND... installs bertjax first")


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_DIE_WITH_PARENT, signal.SIGTERM)


def exit_code(returncode: int) -> int:
    """The exit code that a shell reports: 137 for a process that was killed with signal 9."""
    return 128 - returncode if returncode < 0 else returncode


def configured(pretrain: Sequence[str]) -> Any:
    """The config that `CONFIG OVERRIDES...` describes.

    Raises SystemExit for an unknown key, as the run itself does.
    """
    from bertjax.__main__ import make_parser
    from bertjax.config import load_recipe, override

    asked, keys = make_parser("pretrain").parse_known_args(list(pretrain))
    return override(load_recipe(asked.config), keys, "bertjax pretrain")


def run_folder(pretrain: Sequence[str]) -> tuple[Any, str]:
    """The file system that a run is on, and its path there."""
    import fsspec

    config = configured(pretrain)
    return fsspec.core.url_to_fs(config.run_dir or str(config.directory))


def newest_checkpoint(pretrain: Sequence[str]) -> int | None:
    """The step of the newest whole checkpoint of a run; None if there is none. Raises SystemExit like `configured`."""
    files, path = run_folder(pretrain)
    files.invalidate_cache()
    try:
        names = [entry.rstrip("/").rpartition("/")[2] for entry in files.ls(f"{path}/checkpoints", detail=False)]
    except FileNotFoundError:
        return None
    for step in sorted((int(name) for name in names if name.isdecimal()), reverse=True):
        # Not `isfile`, which is False after any error of the storage.
        with contextlib.suppress(FileNotFoundError):
            files.info(f"{path}/checkpoints/{step}/{LAST_WRITTEN}")
            return step
    return None


def main(arguments: Sequence[str]) -> int:
    """Keep the command of the command line running; returns its last exit code."""
    parser = argparse.ArgumentParser(prog="keep_running.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--hand-back", action="store_true", help="do not resume here: hand exit code 75 back")
    parser.add_argument("--pause", type=float, default=10.0, help="seconds, after the first failure (%(default)s)")
    parser.add_argument("command", nargs=argparse.REMAINDER, help="... bertjax pretrain CONFIG OVERRIDES...")
    parsed = parser.parse_args(arguments)
    command = parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command
    if "pretrain" not in command[:-1]:
        parser.error("COMMAND must end in: bertjax pretrain CONFIG OVERRIDES...")
    pretrain = command[command.index("pretrain") + 1 :]
    told = Told()
    told.listen()

    def attempt() -> int:
        told.processes = [process := start(command)]
        if told.number is not None:
            told.pass_on()
        return exit_code(process.wait())

    restarts = Restarts(lambda: newest_checkpoint(pretrain), parsed.pause)
    handed_back = HandedBack(pretrain, is_first_process(pretrain, os.environ)) if parsed.hand_back else None
    return keep_running(attempt, told, restarts, handed_back)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
