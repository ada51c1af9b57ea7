"""Run a command until it is done: restart it after a preemption, and a few times after a failure.

    python launch/keep_running.py [--hand-back] [--pause SECONDS] [--] bertjax pretrain CONFIG ...

The exit code of `bertjax pretrain` decides:
  0    it is done
  75   it was preempted or lost another process, and resumes when it runs again
  130  the user stopped it
  2    its arguments are wrong, or another job has taken its directory
  76   a device computes wrong results, and would do so again until somebody removes it
Other codes are failures. Signals are forwarded. A run without progress is given up after MOST_FAILURES or MOST_RESUMES.
With --hand-back the caller resumes the run, on any hosts; a file of the run counts the resumes, so that the limit holds
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
GIVEN_UP = 1  # instead of 75 for a run without progress, which the caller would resume again
TERMINATED = 143  # by SIGTERM, before the run could handle it
MOST_FAILURES = 3  # in a row without a new checkpoint: a permanent error
MOST_RESUMES = 10  # in a row without a new checkpoint: the job never reaches its next one
LONGEST_PAUSE = 300.0  # seconds
LAST_WRITTEN = "metadata/metadata"  # of a checkpoint; in object storage its folder is there from the first file on
_DIE_WITH_PARENT = 1  # PR_SET_PDEATHSIG of <linux/prctl.h>
_LIBC = ctypes.CDLL(None) if sys.platform == "linux" else None


def say(line: str) -> None:
    """Print a line with a prefix that distinguishes it from the run's output."""
    print(f"==> {line}", flush=True)


@dataclass
class SignalForwarder:
    """Forwards the signal that this process received to the processes that it started."""

    received: int | None = None
    processes: Sequence[subprocess.Popen] = ()

    def listen(self) -> None:
        """Handle SIGTERM, SIGINT and SIGHUP from now on."""
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, self._take)

    def pass_on(self) -> None:
        """Send the signal to the processes; SIGHUP becomes SIGTERM, at which they save."""
        number = signal.SIGINT if self.received == signal.SIGINT else signal.SIGTERM
        for process in self.processes:
            if process.returncode is None:
                process.send_signal(number)

    def wait(self, seconds: float) -> None:
        """Sleep, at most until a signal arrives."""
        end = time.monotonic() + seconds
        while self.received is None and (left := end - time.monotonic()) > 0:
            time.sleep(min(left, 0.2))

    def _take(self, number: int, frame: FrameType | None) -> None:
        self.received = number
        self.pass_on()


@dataclass
class Restarts:
    """Decides whether a command that ended is started again, and after how many seconds."""

    newest: Callable[[], int | None]  # the step of the newest checkpoint
    first_pause: float = 10.0  # seconds; doubled with every end without a new checkpoint
    _step: int | None = None
    _ends: dict[int, int] = field(default_factory=dict)  # without a new checkpoint: how many, by exit code

    def __post_init__(self) -> None:
        self._step = self._look()

    def pause_after(self, code: int) -> float | None:
        """Seconds to wait before the next start; None for no other start. Prints the reason."""
        if code in (DONE, INTERRUPTED, MISUNDERSTOOD, WRONG_BITS):
            return None
        step = self._look()
        if step != self._step:
            self._step, self._ends = step, {}
        self._ends[code] = self._ends.get(code, 0) + 1
        resumes = self._ends.get(RESUME, 0)
        failures = sum(self._ends.values()) - resumes
        origin = f"the checkpoint of step {step}" if step is not None else "the beginning: there is no checkpoint yet"
        if failures >= MOST_FAILURES or resumes >= MOST_RESUMES:
            say(f"exit code {code}; ended {failures + resumes} times without a new checkpoint: not started again")
            return None
        retries = failures + resumes - (code == RESUME)
        pause = min(self.first_pause * 2 ** (retries - 1), LONGEST_PAUSE) if retries else 0.0
        say(f"exit code {code}; in {pause:.0f} s it resumes from {origin}")
        return pause

    def _look(self) -> int | None:
        # A short failure of the storage must not end the run.
        try:
            return self.newest()
        except Exception as error:
            say(f"cannot look for a new checkpoint ({type(error).__name__}: {error}); assuming that there is none")
            return self._step


class HandedBack:
    """Counts how often in a row a run was handed back at one step, in a file of the run, since hosts change.

    Every process decides by the content of the file at its start, so that all decide the same. Only process 0 writes.
    """

    def __init__(self, pretrain: Sequence[str], is_first: bool) -> None:
        self._pretrain, self._is_first = pretrain, is_first
        self._before = self._read()

    def is_too_often(self) -> bool:
        """Count an end with exit code 75; True if the run is given up."""
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
                counts = json.loads(files.cat_file(path))
                return {"step": counts["step"], "resumes": int(counts["resumes"])}
        except Exception as error:
            say(f"cannot read the number of resumes ({type(error).__name__}: {error}); counting from 0")
        return {"step": None, "resumes": 0}

    def _place(self) -> tuple[Any, str]:
        files, run = run_folder(self._pretrain)
        return files, f"{run}/resumes.json"


def is_first_process(pretrain: Sequence[str], environment: Mapping[str, str]) -> bool:
    """Whether this host has process 0 of a run, by the cluster's variables and the config."""
    numbers = ("JOB_COMPLETION_INDEX", "MEGASCALE_SLICE_ID", "TPU_WORKER_ID", "SLURM_PROCID")
    return read_config(pretrain).hosts.process < 1 and all(environment.get(name, "0") == "0" for name in numbers)


def keep_running(
    attempt: Callable[[], int], signals: SignalForwarder, restarts: Restarts, handed_back: HandedBack | None = None
) -> int:
    """Call `attempt` until the run is done or must not be repeated; returns the exit code.

    With `handed_back` the caller gets exit code 75 and resumes the run elsewhere.
    """
    while True:
        code = attempt()
        if signals.received is not None or (handed_back is not None and code == RESUME):
            code = RESUME if code == TERMINATED else code
            too_often = code == RESUME and handed_back is not None and handed_back.is_too_often()
            return GIVEN_UP if too_often else code
        pause = restarts.pause_after(code)
        if pause is None:
            return GIVEN_UP if code == RESUME else code
        signals.wait(pause)
        if signals.received is not None:
            return INTERRUPTED if signals.received == signal.SIGINT else RESUME


def start(command: Sequence[str], **options: object) -> subprocess.Popen:
    """Start a command that does not receive the terminal's Ctrl-C, and receives SIGTERM if this process ends."""
    try:
        return subprocess.Popen(command, start_new_session=True, preexec_fn=_die_with_parent, **options)  # noqa: S603
    except FileNotFoundError:
        sys.exit(f"error: {command[0]} is not on the PATH; ./launch/run.sh '' COMMAND... installs bertjax first")


def _die_with_parent() -> None:
    if _LIBC is not None:
        _LIBC.prctl(_DIE_WITH_PARENT, signal.SIGTERM)


def exit_code(returncode: int) -> int:
    """The exit code that a shell reports: 137 for a process killed by signal 9."""
    return 128 - returncode if returncode < 0 else returncode


def read_config(pretrain: Sequence[str]) -> Any:
    """The config of `CONFIG OVERRIDES...`.

    Raises SystemExit for an unknown key, as the run itself does.
    """
    from bertjax.__main__ import make_parser
    from bertjax.config import load_recipe, override

    options, overrides = make_parser("pretrain").parse_known_args(list(pretrain))
    return override(load_recipe(options.config), overrides, "bertjax pretrain")


def run_folder(pretrain: Sequence[str]) -> tuple[Any, str]:
    """The file system of a run directory, and the path there."""
    import fsspec

    config = read_config(pretrain)
    return fsspec.core.url_to_fs(config.run_dir or str(config.directory))


def newest_checkpoint(pretrain: Sequence[str]) -> int | None:
    """The step of the newest complete checkpoint of a run, or None. Raises SystemExit like `read_config`."""
    files, path = run_folder(pretrain)
    files.invalidate_cache()
    try:
        names = [entry.rstrip("/").rpartition("/")[2] for entry in files.ls(f"{path}/checkpoints", detail=False)]
    except FileNotFoundError:
        return None
    for step in sorted((int(name) for name in names if name.isdecimal()), reverse=True):
        # `isfile` would be False after any error of the storage.
        with contextlib.suppress(FileNotFoundError):
            files.info(f"{path}/checkpoints/{step}/{LAST_WRITTEN}")
            return step
    return None


def main(arguments: Sequence[str]) -> int:
    """Keep the command running; returns its last exit code."""
    parser = argparse.ArgumentParser(prog="keep_running.py", description=__doc__.partition("\n")[0])
    parser.add_argument("--hand-back", action="store_true", help="do not resume here: return exit code 75")
    parser.add_argument(
        "--pause", type=float, default=10.0, help="seconds to wait after the first failure (%(default)s)"
    )
    parser.add_argument("command", nargs=argparse.REMAINDER, help="... bertjax pretrain CONFIG OVERRIDES...")
    parsed = parser.parse_args(arguments)
    command = parsed.command[1:] if parsed.command[:1] == ["--"] else parsed.command
    if "pretrain" not in command[:-1]:
        parser.error("COMMAND must end in: bertjax pretrain CONFIG OVERRIDES...")
    pretrain = command[command.index("pretrain") + 1 :]
    signals = SignalForwarder()
    signals.listen()

    def attempt() -> int:
        signals.processes = [process := start(command)]
        if signals.received is not None:
            signals.pass_on()
        return exit_code(process.wait())

    restarts = Restarts(lambda: newest_checkpoint(pretrain), parsed.pause)
    handed_back = HandedBack(pretrain, is_first_process(pretrain, os.environ)) if parsed.hand_back else None
    return keep_running(attempt, signals, restarts, handed_back)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
