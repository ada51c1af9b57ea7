"""Commands started several times on this machine, as the processes of one run, on fake CPU devices."""

from __future__ import annotations

import os
import re
import socket
import subprocess
import time
from collections.abc import Callable, Sequence
from pathlib import Path


def free_port() -> int:
    """A port that nobody listens at."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


class Group:
    """The processes of one run; kills what is left of them in the end. What each prints is in `logs`."""

    def __init__(
        self,
        command: Sequence[str],
        count: int,
        log: Path,
        *,
        devices: int = 1,
        address: Callable[[int, int, str], list[str]] | None = None,
        numbers: Sequence[int] | None = None,
    ) -> None:
        """Start `count` processes with as many fake devices each; `numbers` leaves some out."""
        flags = re.sub(r"device_count=\d+", f"device_count={devices}", os.environ["XLA_FLAGS"])
        environment = os.environ | {"XLA_FLAGS": flags}
        coordinator = f"127.0.0.1:{free_port()}"
        address = address or as_keys
        self.processes: list[subprocess.Popen] = []
        self._paths: list[Path] = []
        for number in range(count) if numbers is None else numbers:
            path = log.with_name(f"{log.name}.{number}")
            arguments = [*command, *(address(number, count, coordinator) if count > 1 else [])]
            with path.open("w") as file:
                self.processes.append(
                    subprocess.Popen(arguments, stdout=file, stderr=subprocess.STDOUT, env=environment)
                )
            self._paths.append(path)

    @property
    def logs(self) -> list[str]:
        return [path.read_text(errors="replace") for path in self._paths]

    def wait_for(self, text: str, which: int = 0, seconds: float = 300) -> None:
        """Until one of them has printed something."""
        deadline = time.monotonic() + seconds
        while text not in self.logs[which]:
            ended = [process.poll() for process in self.processes]
            assert ended[which] is None, f"ended with {ended} before it printed {text!r}:\n{self.told()}"
            assert time.monotonic() < deadline, f"{text!r} was not printed in {seconds} s:\n{self.told()}"
            time.sleep(0.02)

    def wait(self, seconds: float = 300) -> list[int]:
        """The exit codes."""
        deadline = time.monotonic() + seconds
        try:
            return [process.wait(max(deadline - time.monotonic(), 0.01)) for process in self.processes]
        except subprocess.TimeoutExpired:
            raise AssertionError(
                f"still running after {seconds} s: {[process.poll() for process in self.processes]}\n{self.told()}"
            ) from None

    def finish(self, seconds: float = 600) -> None:
        codes = self.wait(seconds)
        assert not any(codes), f"{codes}\n{self.told()}"

    def told(self) -> str:
        return "\n".join(f"--- {path.name}\n{log[-2000:]}" for path, log in zip(self._paths, self.logs, strict=True))

    def __enter__(self) -> Group:
        return self

    def __exit__(self, *error: object) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.kill()
            process.wait()


def as_keys(number: int, count: int, coordinator: str) -> list[str]:
    """Who a process is, in keys of the config."""
    return [
        *("--hosts.coordinator", coordinator),
        *("--hosts.processes", str(count)),
        *("--hosts.process", str(number)),
    ]
