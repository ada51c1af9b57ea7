"""Runs `bertjax pretrain` as several processes of this machine, each with its share of the devices.

    python launch/local.py --processes 2 --fake-devices 4 CONFIG ...      # simulated CPU devices
    python launch/local.py --processes 2 --gpus 4 CONFIG ...              # GPUs 0-3 and 4-7

Each output line is printed after the number of its process. If a process fails, the others are ended too, and all are
started again and resume, by the rules of `launch/keep_running.py`; SIGTERM and Ctrl-C are sent to all of them.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import re
import selectors
import shlex
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from keep_running import (
    DONE,
    INTERRUPTED,
    RESUME,
    TERMINATED,
    Restarts,
    Told,
    exit_code,
    keep_running,
    newest_checkpoint,
    say,
    start,
)

FOR_A_SAVE = 120.0  # seconds for the others to end after one exited with 75, or after a signal to all
FOR_THE_REST = 10.0  # seconds for the others to end after one has failed: without it they cannot save
_FAKE = "--xla_force_host_platform_device_count"


@dataclass(frozen=True)
class Layout:
    """The processes and their devices."""

    processes: int
    devices: int  # of each process
    fake: bool  # simulated CPU devices
    port: str  # of process 0
    pretrain: Sequence[str]  # CONFIG OVERRIDES...

    def command(self, number: int) -> list[str]:
        """The command line of a process."""
        where = ["--hosts.cluster", "address", "--hosts.coordinator", f"127.0.0.1:{self.port}"]
        who = ["--hosts.processes", str(self.processes), "--hosts.process", str(number)]
        return [
            *("bertjax", "pretrain", *self.pretrain),
            *(*where, *who, "--hosts.devices", str(self.processes * self.devices)),
        ]

    def environment(self, number: int) -> dict[str, str]:
        """The variables that are added to, or replaced in, the environment of a process."""
        if self.fake:
            others = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(_FAKE)]
            return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join([*others, f"{_FAKE}={self.devices}"])}
        return {"CUDA_VISIBLE_DEVICES": ",".join(self._gpus()[number * self.devices :][: self.devices])}

    def _gpus(self) -> list[str]:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        wanted = self.processes * self.devices
        gpus = re.findall(r"[^,\s]+", visible) if visible is not None else [str(gpu) for gpu in range(wanted)]
        if len(gpus) < wanted:
            sys.exit(f"error: {self.processes} processes with {self.devices} GPUs each need {wanted}, but "
                     f"CUDA_VISIBLE_DEVICES={visible!r} has {len(gpus)}")  # fmt: skip
        return gpus


@dataclass
class Job:
    """The processes of one attempt, while they run."""

    processes: list[subprocess.Popen]
    told: Told
    ended_by_us: set[int] = field(default_factory=set)  # processes that this one has sent a signal
    deadline: float | None = None  # time at which processes that still run are killed

    def finish(self) -> int:
        """Pass output on until all have ended; the exit code of the job."""
        with selectors.DefaultSelector() as selector:
            for number, process in enumerate(self.processes):
                os.set_blocking(process.stdout.fileno(), False)
                selector.register(process.stdout, selectors.EVENT_READ, _Lines(f"[{number}] "))
            while self._running():
                for key, _ in selector.select(0.1):
                    if not key.data.pass_on(key.fileobj):
                        selector.unregister(key.fileobj)
                self._look_after_the_rest()
            for key in list(selector.get_map().values()):
                key.data.pass_on(key.fileobj, last=True)
        if len(self.processes) > 1 and (failed := self._failed()) and not self.ended_by_us:
            self._tell_of(failed[0])  # all processes have ended since the last poll
        for process in self.processes:
            process.stdout.close()
            self._kill(process)  # its children, if any
        return self._exit_code()

    def _running(self) -> list[int]:
        return [number for number, process in enumerate(self.processes) if process.poll() is None]

    def _look_after_the_rest(self) -> None:
        running, failed = self._running(), self._failed()
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.ended_by_us.update(running)
            for number in running:
                self._kill(self.processes[number])
        elif self.told.number is not None and not self.ended_by_us:
            self._leave(running, FOR_A_SAVE)
        elif running and failed and not self.ended_by_us:
            self._tell_of(failed[0])
            for number in running:
                self.processes[number].send_signal(signal.SIGTERM)
            self._leave(running, FOR_THE_REST)
        elif self.deadline is None and any(self._codes().values()):
            self.deadline = time.monotonic() + FOR_A_SAVE

    def _leave(self, running: list[int], seconds: float) -> None:
        self.ended_by_us.update(running)
        self.deadline = time.monotonic() + seconds

    def _tell_of(self, failed: int) -> None:
        say(f"process {failed} ended with exit code {self._codes()[failed]}; ending the others")

    def _kill(self, process: subprocess.Popen) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def _codes(self) -> dict[int, int]:
        return {n: exit_code(p.returncode) for n, p in enumerate(self.processes) if p.returncode is not None}

    def _failed(self) -> list[int]:
        fine = {DONE, RESUME, INTERRUPTED} | ({TERMINATED} if self.told.number is not None else set())
        return [number for number, code in self._codes().items() if code not in fine and number not in self.ended_by_us]

    def _exit_code(self) -> int:
        codes = self._codes()
        if failed := self._failed():
            return codes[failed[0]]
        if self.told.number == signal.SIGINT or INTERRUPTED in codes.values():
            return INTERRUPTED
        return RESUME if any(codes.values()) else DONE


@dataclass
class _Lines:
    """Prints the output of a process with a prefix before each line."""

    prefix: str
    rest: bytes = b""

    def pass_on(self, pipe: object, last: bool = False) -> bool:
        """Print the complete lines that are available; False at the end of the output."""
        end = last
        with contextlib.suppress(BlockingIOError):
            while chunk := os.read(pipe.fileno(), 65536):
                self.rest += chunk
            end = True
        *lines, self.rest = self.rest.split(b"\n")
        if end and self.rest:
            lines, self.rest = [*lines, self.rest], b""
        for line in lines:
            print(f"{self.prefix}{line.decode(errors='replace')}", flush=True)
        return not end


def run(layout: Layout, told: Told) -> int:
    """Start all processes and wait until they have ended."""
    processes: list[subprocess.Popen] = []
    told.processes = processes
    for number in range(layout.processes):
        environment = os.environ | layout.environment(number)
        output = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        processes.append(start(layout.command(number), env=environment, **output))
    if told.number is not None:
        told.pass_on()
    return Job(processes, told).finish()


def free_port() -> str:
    """A free port."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def dry_run(layout: Layout) -> Iterator[str]:
    """The command of each process, as lines for a shell."""
    for number in range(layout.processes):
        variables = " ".join(f"{key}={shlex.quote(value)}" for key, value in layout.environment(number).items())
        yield f"# process {number}"
        yield f"{variables} {shlex.join(layout.command(number))}"


def main(arguments: Sequence[str]) -> int:
    """Keep the processes running that the command line asks for; returns the exit code of the job."""
    parser = argparse.ArgumentParser(prog="local", description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--processes", type=int, required=True, metavar="N", help="how many")
    devices = parser.add_mutually_exclusive_group(required=True)
    devices.add_argument("--fake-devices", type=int, metavar="M", help="simulated CPU devices of each process")
    devices.add_argument("--gpus", type=int, metavar="M", help="GPUs of each process")
    parser.add_argument("--port", default="", help="port of process 0; by default a free one at every start")
    parser.add_argument("--pause", type=float, default=10.0, help="seconds, after the first failure (%(default)s)")
    parser.add_argument("--dry-run", action="store_true", help="print the command of each process, and do nothing")
    parser.add_argument("pretrain", nargs=argparse.REMAINDER, metavar="CONFIG ...", help="of bertjax pretrain")
    parsed = parser.parse_args(arguments)
    if not parsed.pretrain or parsed.processes < 1 or (parsed.gpus or parsed.fake_devices) < 1:
        parser.error("give a recipe, and one process and one device or more")

    def layout(port: str) -> Layout:
        share = parsed.gpus or parsed.fake_devices
        return Layout(parsed.processes, share, parsed.gpus is None, port, parsed.pretrain)

    if parsed.dry_run:
        print("\n".join(dry_run(layout(parsed.port or "PORT"))))
        return DONE
    told = Told()
    told.listen()
    restarts = Restarts(lambda: newest_checkpoint(parsed.pretrain), parsed.pause)
    return keep_running(lambda: run(layout(parsed.port or free_port()), told), told, restarts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
