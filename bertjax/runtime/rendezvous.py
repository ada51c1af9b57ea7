"""The rendezvous: the processes of a job connect to process 0 before JAX starts, so that missing ones are named.

Process 0 listens on the coordinator's port, answers once all processes have connected, and then frees the port for
JAX's service. The connections stay open; the processes of a run use them to communicate (`bertjax.runtime.heartbeat`).
"""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import threading
import time
from dataclasses import dataclass, field
from typing import Any

import bertjax
from bertjax.runtime.clusters import ProcessInfo, split_address

Message = dict[str, Any]

_GREETING = "bertjax"
_LONGEST = 64 << 20  # bytes of a message; a sender of more is not a process of the job
_RETRY_SECONDS = 0.2
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


class Line:
    """A connection that carries one JSON object per line. Several threads may send."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self.heard = time.monotonic()
        self._pending = bytearray()
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message; do nothing if the connection is closed, which the reading thread notices.

        Raises ValueError for a message so long that the receiver would take the sender for another program.
        """
        line = json.dumps(message).encode() + b"\n"
        if len(line) > _LONGEST:
            what = message.get("what", message["is"])
            raise ValueError(f"a message to another process ({what}) has {len(line):,} bytes, at most {_LONGEST:,}")
        with contextlib.suppress(OSError), self._sending:
            self.socket.sendall(line)

    def receive(self) -> list[Message] | None:
        """Wait for messages and return those received since the last call; None once the connection is closed."""
        try:
            got = self.socket.recv(1 << 16)
        except OSError:
            got = b""
        if not got or len(self._pending) > _LONGEST:
            return None
        self.heard = time.monotonic()
        self._pending += got
        if b"\n" not in got:
            return []
        *lines, self._pending = self._pending.split(b"\n")
        try:
            return [message for line in lines if isinstance(message := json.loads(line), dict)]
        except (ValueError, RecursionError):
            return None  # the sender is another program

    @property
    def ended(self) -> bool:
        """Whether the other end has closed the connection and nothing is left to read."""
        try:
            return not self.socket.recv(1, socket.MSG_PEEK | socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        except OSError:
            return True

    def close(self) -> None:
        """Shut the connection down, for all copies of the socket, and close it."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


@dataclass
class Meeting:
    """The connected processes: host names by process number, and connections (process 0: to all, others: to 0)."""

    names: list[str]
    lines: dict[int, Line] = field(default_factory=dict)


class StoppedElsewhere(Exception):
    """A signal stopped another process before all had connected; the argument is the signal's number."""


def rendezvous(info: ProcessInfo, name: str, seconds: float) -> Meeting:
    """Connect to the other processes within `seconds`; `name` is the name of this process's host.

    Raises TimeoutError naming the coordinator's address if it does not answer, or the processes that did not connect;
    ValueError if the processes were not started as one job; StoppedElsewhere.
    """
    return _receive(info, name, seconds) if info.process == 0 else _report(info, name, seconds)


def _report(info: ProcessInfo, name: str, seconds: float) -> Meeting:
    """The side of every process but 0."""
    deadline = time.monotonic() + seconds
    while True:
        line = _reach(info, seconds, deadline)
        line.send(_greeting(info, name))
        try:
            meeting = _wait_for_all(line, info, seconds, deadline)
        except BaseException as error:
            _forward_stop([line], error)
            line.close()
            raise
        if meeting is not None:
            return meeting
        line.close()
        if time.monotonic() > deadline:
            raise TimeoutError(
                f"process {info.process} of {info.processes}: what answers at {info.coordinator} is not process 0 "
                f"of this job, after {seconds:.0f} s; end the processes of earlier jobs there, or choose another port "
                "(hosts.coordinator)"
            )
        time.sleep(_RETRY_SECONDS)


def _wait_for_all(line: Line, info: ProcessInfo, seconds: float, deadline: float) -> Meeting | None:
    """The answer of process 0 once all have connected; None if something else answers.

    That may be an earlier job: JAX's service holds the port as long as that job's process 0 lives.
    """
    known = False
    while True:
        # If process 0 gives up, it says so first; the timeout is for a machine that fails.
        line.socket.settimeout(max(deadline - time.monotonic(), 0) + 10 if known else _patience(deadline))
        messages = line.receive()
        if messages is None and not known:
            return None
        if messages is None:
            raise TimeoutError(
                f"process 0 at {info.coordinator} accepted this one, {info.process} of {info.processes}, and ended "
                f"before all had connected, within {seconds:.0f} s; see its output"
            )
        for message in messages:
            kind = message.get("is")
            if kind == "welcome":
                known = True
            if kind == "refused":
                raise {"ValueError": ValueError}.get(message["error"], TimeoutError)(message["why"])
            if kind == "stopped":
                raise StoppedElsewhere(message["signal"])
            if kind == "complete":
                line.socket.settimeout(None)
                return Meeting(message["names"], {0: line})


def _greeting(info: ProcessInfo, name: str) -> Message:
    me = {"process": info.process, "of": info.processes, "name": name}
    return {"is": _GREETING, "version": bertjax.__version__} | me


def reach(address: str, deadline: float) -> socket.socket:
    """Connect to HOST:PORT, trying again until `deadline` (time.monotonic). Raises the last OSError after it."""
    while True:
        try:
            return socket.create_connection(split_address(address), timeout=_patience(deadline))
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(_RETRY_SECONDS)


def _reach(info: ProcessInfo, seconds: float, deadline: float) -> Line:
    try:
        return Line(reach(info.coordinator, deadline))
    except OSError as error:
        raise TimeoutError(
            f"process {info.process} of {info.processes}: nothing answers at {info.coordinator}, where "
            f"process 0 should listen, after {seconds:.0f} s ({error}); start process 0, open the port in the "
            "network, or correct hosts.coordinator (hosts.join_seconds is the time to wait)"
        ) from error


def _patience(deadline: float) -> float:
    return min(max(deadline - time.monotonic(), 0.1), 10.0)


def _receive(info: ProcessInfo, name: str, seconds: float) -> Meeting:
    """The side of process 0."""
    meeting, callers = Meeting([name, *[""] * (info.processes - 1)]), []
    deadline = time.monotonic() + seconds
    with _listen(info) as listener, selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        try:
            while len(meeting.lines) < info.processes - 1:
                for key, _ in selector.select(_RETRY_SECONDS):
                    if key.data is None:
                        line = Line(listener.accept()[0])
                        selector.register(line.socket, selectors.EVENT_READ, line)
                        callers.append(line)
                    elif not _handle(meeting, key.data, info):
                        selector.unregister(key.data.socket)
                        key.data.close()
                if time.monotonic() > deadline and len(meeting.lines) < info.processes - 1:
                    raise TimeoutError(_who_is_missing(meeting, info, seconds))
        except BaseException as error:
            _forward_stop(callers, error)
            for line in callers:
                if isinstance(error, TimeoutError | ValueError):
                    line.send({"is": "refused", "error": type(error).__name__, "why": str(error)})
                line.close()
            raise
    for line in meeting.lines.values():
        line.send({"is": "complete", "names": meeting.names})
    return meeting


def _listen(info: ProcessInfo) -> socket.socket:
    host, port = split_address(info.coordinator)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Other names may be those of a proxy or NAT, to which this machine cannot bind.
    own = host if host in _LOOPBACK else ""
    try:
        return socket.create_server((own, port), family=family, backlog=1024)
    except OSError as error:
        raise OSError(
            error.errno,
            f"process 0 cannot listen at {info.coordinator} ({error.strerror}); another job may use the port: "
            "choose another one (hosts.coordinator)",
        ) from error


def _handle(meeting: Meeting, line: Line, info: ProcessInfo) -> bool:
    """Handle the messages of a connection; False if it is to be closed."""
    number = next((number for number, known in meeting.lines.items() if known is line), None)
    messages = line.receive()
    if messages is None:
        if number is not None:  # the process may be started again and reconnect
            del meeting.lines[number]
            meeting.names[number] = ""
        return False
    for message in messages:
        if message.get("is") == "stopped":
            raise StoppedElsewhere(message["signal"])
        if message.get("is") != _GREETING:
            return False  # the sender is another program
        number, of, name = message["process"], message["of"], message["name"]
        if (version := message.get("version", "of an older kind")) != bertjax.__version__:
            raise ValueError(
                f"process {number} on {name} is bertjax {version}, process 0 on {meeting.names[0]} "
                f"{bertjax.__version__}; install the same on all hosts"
            )
        if of != info.processes or not 0 < number < of:
            why = f"process {number} of {of} on {name} connected to a job of {info.processes} processes"
            raise ValueError(f"{why}; start all with the same hosts.processes, each with its own hosts.process")
        if number in meeting.lines and not meeting.lines[number].ended:
            why = f"process {number} connected twice, from {meeting.names[number]} and from {name}"
            raise ValueError(f"{why}; give each its own hosts.process")
        meeting.lines[number], meeting.names[number] = line, name
        line.send({"is": "welcome"})
    return True


def _who_is_missing(meeting: Meeting, info: ProcessInfo, seconds: float) -> str:
    missing = [str(number) for number, name in enumerate(meeting.names) if not name]
    some = ", ".join(missing[:20]) + (f" and {len(missing) - 20} more" if len(missing) > 20 else "")
    there = ", ".join(f"{number} ({name})" for number, name in enumerate(meeting.names) if name)
    return (
        f"of {info.processes} processes, {some} did not connect to {info.coordinator} within {seconds:.0f} s; "
        f"connected are {there[:1000]}. See the output of the missing ones, and start all again "
        "(hosts.join_seconds is the time to wait)"
    )


def _forward_stop(lines: list[Line], error: BaseException) -> None:
    number = getattr(error, "signal", None) or (error.args[0] if isinstance(error, StoppedElsewhere) else None)
    if number is not None:
        for line in lines:
            line.send({"is": "stopped", "signal": int(number)})
