"""Start a command several times on this machine, as the processes of one run, on fake CPU devices."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import json
import os
import re
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path

SHARED = "BERTJAX_TESTS_ZYGOTE"  # variable with the path of the session's socket
ENVIRONMENT = dict(os.environ)  # before any test changes it


def free_port() -> int:
    """A port that no program listens on."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Zygote:
    """Client of the zygote, which forks processes with everything imported; a test session shares one zygote."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory()  # for the socket outside of a session
        self._socket = connect_or_start(Path(os.environ.get(SHARED, Path(self._folder.name, "zygote"))))
        self._changed = threading.Condition()
        self._started: list[int] = []
        self.codes: dict[int, int] = {}
        threading.Thread(target=self._read, daemon=True).start()

    def start(
        self, command: Sequence[str], log: Path, environment: dict[str, str], folder: Path, append: bool = False
    ) -> int:
        """Start a process in `folder` that prints to `log`; returns its process id."""
        with self._changed:
            before = len(self._started)
            words = [str(word) for word in command]
            job = {"command": words, "log": str(log), "environment": environment, "folder": str(folder)}
            job["append"] = append
            self._socket.sendall(f"{json.dumps(job)}\n".encode())
            assert self._changed.wait_for(lambda: len(self._started) > before, 60)
            return self._started[before]

    def wait(self, process: int, seconds: float) -> int | None:
        """Wait for a process; returns its exit code, None after `seconds`."""
        with self._changed:
            self._changed.wait_for(lambda: process in self.codes, seconds)
            return self.codes.get(process)

    def _read(self) -> None:
        for line in self._socket.makefile():
            child, _, code = line.partition(" ")
            with self._changed:
                if code:
                    self.codes[int(child)] = int(code)
                else:
                    self.codes.pop(int(child), None)  # of an earlier process with the same id
                    self._started.append(int(child))
                self._changed.notify_all()


def connect_or_start(address: Path) -> socket.socket:
    """Connect to the zygote at an address; start it if there is none."""
    with address.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with contextlib.suppress(FileNotFoundError, ConnectionRefusedError):
            return connect(address)
        address.unlink(missing_ok=True)
        command = [sys.executable, Path(__file__).with_name("zygote.py"), address]
        # In a new session, because the kernel continues stopped processes when the session of a shell ends.
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, env=ENVIRONMENT, start_new_session=True
        )
        assert process.stdout.readline() == b"ready\n"
        return connect(address)


def connect(address: Path) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(str(address))
    return connection


@functools.cache
def zygote() -> Zygote:
    """The zygote of this session."""
    return Zygote()


def child_environment(devices: int) -> dict[str, str]:
    """Environment variables for a process: those set by tests, fake devices, and a line for each log entry."""
    flags = re.sub(r"device_count=\d+", f"device_count={devices}", os.environ["XLA_FLAGS"])
    names = ("JAX_", "TF_", "OMP_", "AWS_")
    inherited = {key: value for key, value in os.environ.items() if key.startswith(names)}
    return inherited | {"XLA_FLAGS": flags, "BERTJAX_LINE_EVERY": "0"}


class Group:
    """The processes of one run; a context manager that kills the remaining ones. `logs` has what they print."""

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        log: Path,
        *,
        devices: int = 1,
        address: Callable[[int, int, str], list[str]] | None = None,
        numbers: Sequence[int] | None = None,
        folders: Sequence[Path] | None = None,
    ) -> None:
        """Start `count` processes, or only `numbers` of them, with `devices` fake devices each, in `folders`."""
        environment = child_environment(devices)
        self.coordinator = f"127.0.0.1:{free_port()}"
        address = address or as_keys
        self._zygote, self._paths, self.processes = zygote(), [], []
        for number in range(count) if numbers is None else numbers:
            self._paths.append(log.with_name(f"{log.name}.{number}"))
            words = address(number, count, self.coordinator) if count > 1 else []
            folder = folders[number] if folders else log.parent
            self.processes.append(self._zygote.start([*command, *words], self._paths[-1], environment, folder))

    @property
    def logs(self) -> list[str]:
        """The output of each process so far."""
        return [path.read_text(errors="replace") if path.exists() else "" for path in self._paths]

    def ended(self) -> list[int | None]:
        """The exit codes so far; None for running processes."""
        return [self._zygote.codes.get(process) for process in self.processes]

    def send(self, which: int, number: signal.Signals) -> None:
        """Send a signal to a process, unless it has exited."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.processes[which], number)

    def wait_for(self, text: str, which: int = 0, seconds: float = 300) -> None:
        """Wait until a process has printed a text."""
        deadline = time.monotonic() + seconds
        while text not in self.logs[which]:
            assert self.ended()[which] is None, f"{self.ended()} before it printed {text!r}:\n{self.output()}"
            assert time.monotonic() < deadline, f"{text!r} was not printed in {seconds} s:\n{self.output()}"
            time.sleep(0.02)

    def wait(self, seconds: float = 300) -> list[int]:
        """Wait for all processes; returns their exit codes."""
        deadline = time.monotonic() + seconds
        for process in self.processes:
            self._zygote.wait(process, max(deadline - time.monotonic(), 0.01))
        assert None not in self.ended(), f"still running after {seconds} s: {self.ended()}\n{self.output()}"
        return self.ended()

    def finish(self, seconds: float = 600) -> None:
        """Wait until all processes have succeeded."""
        codes = self.wait(seconds)
        assert not any(codes), f"{codes}\n{self.output()}"

    def output(self) -> str:
        """The end of each process's output."""
        return "\n".join(f"--- {path.name}\n{log[-2500:]}" for path, log in zip(self._paths, self.logs, strict=True))

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *error: object) -> None:
        for process, code in zip(self.processes, self.ended(), strict=True):
            if code is None:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
                self._zygote.wait(process, 60)


def as_words(number: int, count: int, coordinator: str) -> list[str]:
    """Arguments of a test script that identify a process: PROCESS PROCESSES COORDINATOR."""
    return [str(number), str(count), coordinator]


def as_keys(number: int, count: int, coordinator: str) -> list[str]:
    """Arguments of a verb that identify a process."""
    return [
        *("--hosts.coordinator", coordinator),
        *("--hosts.processes", str(count)),
        *("--hosts.process", str(number)),
    ]
