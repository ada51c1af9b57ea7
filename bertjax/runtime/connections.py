"""Connections between the processes of a job: messages, the rendezvous before JAX starts, and a relay for JAX.

In the rendezvous all processes connect to process 0, so that missing processes can be named. Process 0 listens on the
coordinator's port, answers once all have connected, and then frees the port for JAX's service. The connections stay
open for the heartbeat (`bertjax.runtime.heartbeat`).
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import selectors
import signal
import socket
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field, fields
from typing import get_args

import bertjax
from bertjax.runtime.clusters import ProcessInfo, split_address
from bertjax.storage.terminal import first_names

# 75 is EX_TEMPFAIL in sysexits.h: run the same command again. 130 is what a shell reports for Ctrl-C.
EXIT_CODES = {signal.SIGTERM: 75, signal.SIGINT: 130}

_MOST_BYTES = 64 << 20  # of a message; a connection that sends more is not a process of the job
_RETRY_SECONDS = 0.2
_LOOPBACK = ("localhost", "127.0.0.1", "::1")
_RELAY_HOST = "127.0.0.1"
_NO_PROXY = "no_grpc_proxy"  # overrides no_proxy for gRPC
_RELAY_BYTES = 1 << 16


# 1. Messages, documented as "sender -> receiver: meaning"; "others" are all processes but 0.


@dataclass(frozen=True)
class Greeting:
    """Rendezvous, others -> 0: the first message of a process."""

    process: int
    processes: int
    host: str
    version: str = bertjax.__version__


@dataclass(frozen=True)
class Welcome:
    """Rendezvous, 0 -> others: the greeting is accepted; wait for the remaining processes."""


@dataclass(frozen=True)
class Complete:
    """Rendezvous, 0 -> others: all processes are connected."""

    hosts: list[str]


@dataclass(frozen=True)
class Refused:
    """Rendezvous, 0 -> others: the rendezvous failed."""

    reason: str
    timed_out: bool


@dataclass(frozen=True)
class Signalled:
    """Others -> 0, and 0 -> others in the rendezvous: a process received a signal. `leaving`: it is exiting."""

    signal: int
    leaving: bool = False


@dataclass(frozen=True)
class Progress:
    """Others -> 0 and 0 -> others, every second: the progress of a process."""

    units: int
    resting: bool  # no unsaved work would be lost
    activity: str  # "unit", "input", "evaluation", or "" for work without a time limit
    idle: float  # seconds since the activity began
    limit: float  # seconds after which the activity counts as a hang
    holding: bool  # begins no further unit until the Decision


@dataclass(frozen=True)
class Hold:
    """0 -> others: a process received a signal. Begin no further unit, and send Progress."""

    signal: int


@dataclass(frozen=True)
class Decision:
    """0 -> others: the last unit for all processes. `at_once`: no work would be lost, so end now."""

    last: int
    at_once: bool


@dataclass(frozen=True)
class Contribution:
    """Others -> 0: the value of one process for gather number `turn`."""

    turn: int
    what: str
    value: str


@dataclass(frozen=True)
class Gathered:
    """0 -> others: the values of all processes for gather number `turn`.

    Usually all processes, or all but process 0, have the same value. The values are run-length encoded, so that the
    message does not grow with the number of processes.
    """

    turn: int
    values: list[str]  # distinct values
    runs: list[list[int]]  # (index of a value, number of consecutive processes with it)

    @classmethod
    def pack(cls, turn: int, values: Sequence[str]) -> Gathered:
        """Encode the values, ordered by process."""
        index = {value: number for number, value in enumerate(dict.fromkeys(values))}
        return cls(turn, [*index], [[index[value], len([*run])] for value, run in itertools.groupby(values)])

    def unpack(self) -> list[str]:
        """Return the values, ordered by process."""
        return [self.values[index] for index, count in self.runs for _ in range(count)]


@dataclass(frozen=True)
class Goodbye:
    """Others -> 0 and 0 -> others: the sender exits without an error."""


@dataclass(frozen=True)
class Failed:
    """Others -> 0, which relays it: a process exits with an error."""

    process: int
    reason: str
    exit_code: int


@dataclass(frozen=True)
class Lost:
    """0 -> others: a process is dead, silent or hangs."""

    process: int
    reason: str


Message = (
    Greeting
    | Welcome
    | Complete
    | Refused
    | Signalled
    | Progress
    | Hold
    | Decision
    | Contribution
    | Gathered
    | Goodbye
    | Failed
    | Lost
)
_MESSAGES: dict[str, type[Message]] = {kind.__name__: kind for kind in get_args(Message)}


def encode(message: Message) -> bytes:
    """Encode a message as a line of JSON."""
    return json.dumps({"is": type(message).__name__} | asdict(message)).encode() + b"\n"


def decode(line: bytes | bytearray) -> Message:
    """Decode a line. Raises ValueError if it is not a message of bertjax."""
    try:
        message = json.loads(line)
        kind = _MESSAGES[message["is"]]
        # Ignore fields of other versions: their Greeting must be readable, to compare versions.
        return kind(**{field.name: message[field.name] for field in fields(kind) if field.name in message})
    except (ValueError, RecursionError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"not a message of bertjax: {line[:80]!r}") from error


class Line:
    """A connection that carries one message per line. Several threads may send."""

    def __init__(self, connection: socket.socket) -> None:
        self.socket = connection
        self._pending = bytearray()
        self._sending = threading.Lock()

    def send(self, message: Message) -> None:
        """Send a message; do nothing if the connection is closed, which the reading thread notices.

        Raises ValueError for a message that the receiver would reject as too long.
        """
        line = encode(message)
        if len(line) > _MOST_BYTES:
            what = message.what if isinstance(message, Contribution) else type(message).__name__
            raise ValueError(
                f"a message to another process ({what}) has {len(line):,} bytes; at most {_MOST_BYTES:,} are allowed"
            )
        with contextlib.suppress(OSError), self._sending:
            self.socket.sendall(line)

    def receive(self) -> list[Message] | None:
        """Wait for data and return the messages that it completes; None if the line is closed or not a process's."""
        try:
            data = self.socket.recv(1 << 16)
        except OSError:
            data = b""
        if not data or len(self._pending) > _MOST_BYTES:
            return None
        self._pending += data
        if b"\n" not in data:
            return []
        *lines, self._pending = self._pending.split(b"\n")
        try:
            return [decode(line) for line in lines]
        except ValueError:
            return None

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
        """Shut down the connection, for all copies of the socket, and close it."""
        with contextlib.suppress(OSError):
            self.socket.shutdown(socket.SHUT_RDWR)
        self.socket.close()


# 2. The rendezvous.


@dataclass
class Meeting:
    """The connected processes: host names by process number, and lines (process 0: to all, others: to 0)."""

    hosts: list[str]
    lines: dict[int, Line] = field(default_factory=dict)


STOPPED_EARLY = "stopped before the first step; prepared text is kept. To continue, run the same command again."


class Stopped(KeyboardInterrupt):
    """A signal stopped a process while no unsaved work was in progress."""

    def __init__(self, number: int, message: str = STOPPED_EARLY) -> None:
        super().__init__(message)
        self.signal = signal.Signals(number)

    @property
    def exit_code(self) -> int:
        """Exit code for the signal."""
        return EXIT_CODES[self.signal]


class Deadline:
    """A point in time, `seconds` from now."""

    def __init__(self, seconds: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.seconds, self._clock, self._end = seconds, clock, clock() + seconds

    @property
    def left(self) -> float:
        """Seconds until the deadline; 0 after it."""
        return max(self._end - self._clock(), 0.0)

    @property
    def attempt(self) -> float:
        """Timeout in seconds for one attempt to connect or read."""
        return min(max(self.left, 0.1), 10.0)


def rendezvous(info: ProcessInfo, host: str, seconds: float, clock: Callable[[], float] = time.monotonic) -> Meeting:
    """Connect to the other processes within `seconds`; `host` is this process's host name.

    Raises TimeoutError naming the coordinator's address if it does not answer, or the processes that did not connect;
    ValueError if the processes were not started as one job; Stopped if one of them received a signal.
    """
    deadline = Deadline(seconds, clock)
    return _accept_all(info, host, deadline) if info.process == 0 else _join(info, host, deadline)


def _join(info: ProcessInfo, host: str, deadline: Deadline) -> Meeting:
    """The rendezvous in every process but 0."""
    me = f"process {info.process} of {info.processes}"
    while True:
        try:
            line = Line(connect(info.coordinator, deadline))
        except OSError as error:
            raise TimeoutError(
                f"{me}: nothing answers at {info.coordinator}, where process 0 should listen, after "
                f"{deadline.seconds:.0f} s ({error}); start process 0, open the port in the network, or correct "
                "hosts.coordinator (hosts.join_seconds is the time to wait)"
            ) from error
        line.send(Greeting(info.process, info.processes, host))
        try:
            meeting = _wait_for_all(line, info, deadline)
        except BaseException as error:
            _forward_stop([line], error)
            line.close()
            raise
        if meeting is not None:
            return meeting
        line.close()
        if not deadline.left:
            raise TimeoutError(
                f"{me}: the program at {info.coordinator} is not process 0 of this job, after {deadline.seconds:.0f} "
                "s; end the processes of earlier jobs there, or choose another port (hosts.coordinator)"
            )
        time.sleep(_RETRY_SECONDS)


def connect(address: str, deadline: Deadline) -> socket.socket:
    """Connect to HOST:PORT, retrying until the deadline; then raises the last OSError."""
    while True:
        try:
            return socket.create_connection(split_address(address), timeout=deadline.attempt)
        except OSError:
            if not deadline.left:
                raise
        time.sleep(_RETRY_SECONDS)


def _wait_for_all(line: Line, info: ProcessInfo, deadline: Deadline) -> Meeting | None:
    """Wait for process 0's answer once all have connected; None if another program answers.

    That may be an earlier job: JAX's service occupies the port as long as that job's process 0 is alive.
    """
    is_welcome = False
    while True:
        # Process 0 sends Refused before it gives up; the timeout is for a machine failure.
        line.socket.settimeout(deadline.left + 10 if is_welcome else deadline.attempt)
        messages = line.receive()
        if messages is None and not is_welcome:
            return None
        if messages is None:
            raise TimeoutError(
                f"process 0 at {info.coordinator} accepted this process, {info.process} of {info.processes}, but ended "
                f"before all had connected, within {deadline.seconds:.0f} s; see its output"
            )
        for message in messages:
            match message:
                case Welcome():
                    is_welcome = True
                case Refused(reason, timed_out):
                    raise (TimeoutError if timed_out else ValueError)(reason)
                case Signalled(number):
                    raise Stopped(number)
                case Complete(hosts):
                    line.socket.settimeout(None)
                    return Meeting(hosts, {0: line})
                case _:
                    return None


def _accept_all(info: ProcessInfo, host: str, deadline: Deadline) -> Meeting:
    """The rendezvous in process 0."""
    meeting, callers = Meeting([host, *[""] * (info.processes - 1)]), []
    with _listen(info) as listener, selectors.DefaultSelector() as selector:
        selector.register(listener, selectors.EVENT_READ)
        try:
            while len(meeting.lines) < info.processes - 1:
                for key, _ in selector.select(_RETRY_SECONDS):
                    if key.data is None:
                        line = Line(listener.accept()[0])
                        selector.register(line.socket, selectors.EVENT_READ, line)
                        callers.append(line)
                    elif not _admit(meeting, key.data, info):
                        selector.unregister(key.data.socket)
                        key.data.close()
                if not deadline.left and len(meeting.lines) < info.processes - 1:
                    raise TimeoutError(_describe_missing(meeting, info, deadline.seconds))
        except BaseException as error:
            _forward_stop(callers, error)
            for line in callers:
                if isinstance(error, TimeoutError | ValueError):
                    line.send(Refused(str(error), isinstance(error, TimeoutError)))
                line.close()
            raise
    for line in meeting.lines.values():
        line.send(Complete(meeting.hosts))
    return meeting


def _listen(info: ProcessInfo) -> socket.socket:
    host, port = split_address(info.coordinator)
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # Another name may belong to a proxy or NAT, to which this machine cannot bind.
    own = host if host in _LOOPBACK else ""
    try:
        return socket.create_server((own, port), family=family, backlog=1024)
    except OSError as error:
        raise OSError(
            error.errno,
            f"process 0 cannot listen at {info.coordinator} ({error.strerror}); another job may use the port; "
            "choose another one (hosts.coordinator)",
        ) from error


def _admit(meeting: Meeting, line: Line, info: ProcessInfo) -> bool:
    """Handle the messages of a caller; returns False if its connection should be closed."""
    messages = line.receive()
    if messages is None:
        for number in [number for number, other in meeting.lines.items() if other is line]:
            del meeting.lines[number]  # the process may restart and reconnect
            meeting.hosts[number] = ""
        return False
    for message in messages:
        match message:
            case Signalled(number):
                raise Stopped(number)
            case Greeting():
                _require_member(message, meeting, info)
                meeting.lines[message.process], meeting.hosts[message.process] = line, message.host
                line.send(Welcome())
            case _:
                return False
    return True


def _require_member(caller: Greeting, meeting: Meeting, info: ProcessInfo) -> None:
    """Raise ValueError unless the caller is a missing process of this job."""
    number, host = caller.process, caller.host
    if caller.version != bertjax.__version__:
        raise ValueError(
            f"process {number} on {host} is bertjax {caller.version}, process 0 on {meeting.hosts[0]} "
            f"{bertjax.__version__}; install the same on all hosts"
        )
    if caller.processes != info.processes or not 0 < number < info.processes:
        raise ValueError(
            f"process {number} of {caller.processes} on {host} connected to a job of {info.processes} processes; "
            "start all with the same hosts.processes, each with its own hosts.process"
        )
    if number in meeting.lines and not meeting.lines[number].ended:
        raise ValueError(
            f"process {number} connected twice, from {meeting.hosts[number]} and from {host}; give each its own "
            "hosts.process"
        )


def _describe_missing(meeting: Meeting, info: ProcessInfo, seconds: float) -> str:
    missing = [str(number) for number, host in enumerate(meeting.hosts) if not host]
    connected = ", ".join(f"{number} ({host})" for number, host in enumerate(meeting.hosts) if host)
    return (
        f"of {info.processes} processes, {first_names(missing, 20)} did not connect to {info.coordinator} within "
        f"{seconds:.0f} s; connected are {connected[:1000]}. See the output of the missing ones, and start all again "
        "(hosts.join_seconds is the time to wait)"
    )


def _forward_stop(lines: list[Line], error: BaseException) -> None:
    if isinstance(error, Stopped):
        for line in lines:
            line.send(Signalled(int(error.signal), leaving=True))


# 3. The relay. JAX's client aborts its process as soon as the connection to process 0's service closes, and no setting
# prevents this. It often happened before the heartbeat had named the lost process and ended this one with the exit code
# for resuming. Behind a relay, the connection stays open until this process ends. JAX's own, slower heartbeat still
# notices when the service is gone.


def open_relay(service: str, seconds: float) -> str:
    """Relay connections to `service` (HOST:PORT), which must answer within `seconds`; returns the relay's address.

    The threads are daemons, which end with the process.
    """
    listener = socket.create_server((_RELAY_HOST, 0))

    def accept_all() -> None:
        while True:
            _start_thread(_relay, listener.accept()[0], service, seconds)

    _start_thread(accept_all)
    return f"{_RELAY_HOST}:{listener.getsockname()[1]}"


def avoid_proxies(service: str) -> None:
    """Keep gRPC from using a proxy from the environment for `service` or a relay to it."""
    lower = {name.lower(): value for name, value in os.environ.items() if value}
    if any(name in lower for name in ("grpc_proxy", "https_proxy", "http_proxy")):
        hosts = lower.get(_NO_PROXY) or lower.get("no_proxy")
        os.environ[_NO_PROXY] = ",".join(filter(None, [hosts, split_address(service)[0], _RELAY_HOST]))


def _start_thread(target: Callable[..., None], *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, name="relay", daemon=True).start()


def _relay(client: socket.socket, service: str, seconds: float) -> None:
    try:
        upstream = connect(service, Deadline(seconds))
    except OSError:
        client.close()  # JAX reports it
        return
    for end in (client, upstream):
        end.settimeout(None)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _start_thread(_copy, upstream, client)
    _copy(client, upstream)
    with contextlib.suppress(OSError):
        while client.recv(_RELAY_BYTES):  # the service has ended; keep the client's connection open until it leaves
            pass
    with contextlib.suppress(OSError):
        upstream.shutdown(socket.SHUT_RDWR)


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until one end closes; the other stays open."""
    with contextlib.suppress(OSError):
        while data := source.recv(_RELAY_BYTES):
            target.sendall(data)
