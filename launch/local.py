"""Run `bertjax pretrain` as several processes of this machine, each with its share of the devices.

    python launch/local.py --processes 2 --fake-devices 4 CONFIG ...      # simulated CPU devices
    python launch/local.py --processes 2 --gpus 4 CONFIG ...              # GPUs 0-3 and 4-7

Each output line begins with the number of its process. If a process fails, the others are ended too, and all are
started again and resume, by the rules of `launch/keep_running.py`. SIGTERM and Ctrl-C are forwarded to all.
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
    SignalForwarder,
    exit_code,
    keep_running,
    newest_checkpoint,
    say,
    start,
)

SAVE_SECONDS = 120.0  # for the others to end after one exited with 75, or after a signal to all
FAILURE_SECONDS = 10.0  # for the others to end after one has failed: without it they cannot save
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
        address = ["--hosts.cluster", "address", "--hosts.coordinator", f"127.0.0.1:{self.port}"]
        number_keys = ["--hosts.processes", str(self.processes), "--hosts.process", str(number)]
        return [
            *("bertjax", "pretrain", *self.pretrain),
            *(*address, *number_keys, "--hosts.devices", str(self.processes * self.devices)),
        ]

    def environment(self, number: int) -> dict[str, str]:
        """The environment variables to set for a process."""
        if self.fake:
            others = [flag for flag in os.environ.get("XLA_FLAGS", "").split() if not flag.startswith(_FAKE)]
            return {"JAX_PLATFORMS": "cpu", "XLA_FLAGS": " ".join([*others, f"{_FAKE}={self.devices}"])}
        return {"CUDA_VISIBLE_DEVICES": ",".join(self._gpus()[number * self.devices :][: self.devices])}

    def _gpus(self) -> list[str]:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        count = self.processes * self.devices
        gpus = re.findall(r"[^,\s]+", visible) if visible is not None else [str(gpu) for gpu in range(count)]
        if len(gpus) < count:
            sys.exit(f"error: {self.processes} processes with {self.devices} GPUs each need {count}, but "
                     f"CUDA_VISIBLE_DEVICES={visible!r} has {len(gpus)}")  # fmt: skip
        return gpus


@dataclass
class Job:
    """The processes of one attempt, while they run."""

    processes: list[subprocess.Popen]
    signals: SignalForwarder
    signalled: set[int] = field(default_factory=set)  # processes that got a signal from here
    deadline: float | None = None  # time at which the processes that still run are killed

    def finish(self) -> int:
        """Print the output until all have ended; returns the exit code of the job."""
        with selectors.DefaultSelector() as selector:
            for number, process in enumerate(self.processes):
                os.set_blocking(process.stdout.fileno(), False)
                selector.register(process.stdout, selectors.EVENT_READ, _PrefixedOutput(f"[{number}] "))
            while self._running():
                for key, _ in selector.select(0.1):
                    if not key.data.pass_on(key.fileobj):
                        selector.unregister(key.fileobj)
                self._end_the_rest()
            for key in list(selector.get_map().values()):
                key.data.pass_on(key.fileobj, last=True)
        if len(self.processes) > 1 and (failed := self._failed()) and not self.signalled:
            self._report(failed[0])  # all processes have ended since the last poll
        for process in self.processes:
            process.stdout.close()
            self._kill(process)  # its children, if any
        return self._exit_code()

    def _running(self) -> list[int]:
        return [number for number, process in enumerate(self.processes) if process.poll() is None]

    def _end_the_rest(self) -> None:
        running, failed = self._running(), self._failed()
        if self.deadline is not None and time.monotonic() > self.deadline:
            self.signalled.update(running)
            for number in running:
                self._kill(self.processes[number])
        elif self.signals.received is not None and not self.signalled:
            self._set_deadline(running, SAVE_SECONDS)
        elif running and failed and not self.signalled:
            self._report(failed[0])
            for number in running:
                self.processes[number].send_signal(signal.SIGTERM)
            self._set_deadline(running, FAILURE_SECONDS)
        elif self.deadline is None and any(self._codes().values()):
            self.deadline = time.monotonic() + SAVE_SECONDS

    def _set_deadline(self, running: list[int], seconds: float) -> None:
        self.signalled.update(running)
        self.deadline = time.monotonic() + seconds

    def _report(self, failed: int) -> None:
        say(f"process {failed} ended with exit code {self._codes()[failed]}; ending the others")

    def _kill(self, process: subprocess.Popen) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)

    def _codes(self) -> dict[int, int]:
        return {n: exit_code(p.returncode) for n, p in enumerate(self.processes) if p.returncode is not None}

    def _failed(self) -> list[int]:
        expected = {DONE, RESUME, INTERRUPTED} | ({TERMINATED} if self.signals.received is not None else set())
        return [
            number for number, code in self._codes().items() if code not in expected and number not in self.signalled
        ]

    def _exit_code(self) -> int:
        codes = self._codes()
        if failed := self._failed():
            return codes[failed[0]]
        if self.signals.received == signal.SIGINT or INTERRUPTED in codes.values():
            return INTERRUPTED
        return RESUME if any(codes.values()) else DONE


@dataclass
class _PrefixedOutput:
    """Prints the lines of a process with a prefix."""

    prefix: str
    rest: bytes = b""  # an incomplete line

    def pass_on(self, pipe: object, last: bool = False) -> bool:
        """Print the available complete lines; False at the end of the output."""
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


def run(layout: Layout, signals: SignalForwarder) -> int:
    """Start all processes and wait until they have ended."""
    processes: list[subprocess.Popen] = []
    signals.processes = processes
    for number in range(layout.processes):
        environment = os.environ | layout.environment(number)
        output = {"stdin": subprocess.DEVNULL, "stdout": subprocess.PIPE, "stderr": subprocess.STDOUT}
        processes.append(start(layout.command(number), env=environment, **output))
    if signals.received is not None:
        signals.pass_on()
    return Job(processes, signals).finish()


def free_port() -> str:
    """A port that is free now."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return str(listener.getsockname()[1])


def dry_run(layout: Layout) -> Iterator[str]:
    """The commands of all processes, as lines for a shell."""
    for number in range(layout.processes):
        variables = " ".join(f"{key}={shlex.quote(value)}" for key, value in layout.environment(number).items())
        yield f"# process {number}"
        yield f"{variables} {shlex.join(layout.command(number))}"


def main(arguments: Sequence[str]) -> int:
    """Keep the processes of the command line running; returns the exit code of the job."""
    parser = argparse.ArgumentParser(prog="local", description=__doc__.partition("\n")[0], allow_abbrev=False)
    parser.add_argument("--processes", type=int, required=True, metavar="N", help="number of processes")
    devices = parser.add_mutually_exclusive_group(required=True)
    devices.add_argument("--fake-devices", type=int, metavar="M", help="simulated CPU devices of each process")
    devices.add_argument("--gpus", type=int, metavar="M", help="GPUs of each process")
    parser.add_argument("--port", default="", help="port of process 0 (default: a free one at every start)")
    parser.add_argument(
        "--pause", type=float, default=10.0, help="seconds to wait after the first failure (%(default)s)"
    )
    parser.add_argument("--dry-run", action="store_true", help="print the command of each process, and do nothing")
    parser.add_argument(
        "pretrain", nargs=argparse.REMAINDER, metavar="CONFIG ...", help="arguments of bertjax pretrain"
    )
    parsed = parser.parse_args(arguments)
    if not parsed.pretrain or parsed.processes < 1 or (parsed.gpus or parsed.fake_devices) < 1:
        parser.error("requires a recipe, at least one process and at least one device")

    def layout(port: str) -> Layout:
        share = parsed.gpus or parsed.fake_devices
        return Layout(parsed.processes, share, parsed.gpus is None, port, parsed.pretrain)

    if parsed.dry_run:
        print("\n".join(dry_run(layout(parsed.port or "PORT"))))
        return DONE
    signals = SignalForwarder()
    signals.listen()
    restarts = Restarts(lambda: newest_checkpoint(parsed.pretrain), parsed.pause)
    return keep_running(lambda: run(layout(parsed.port or free_port()), signals), signals, restarts)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
