"""Messages, the rendezvous and the relay, with threads as processes and real connections."""

from __future__ import annotations

import contextlib
import itertools
import os
import select
import socket
import threading
import time
from collections.abc import Callable, Iterator

import pytest
from threads import Clock, run_in_threads

import bertjax
from bertjax.runtime import connections
from bertjax.runtime.clusters import ProcessInfo, split_address
from bertjax.runtime.connections import (
    Contribution,
    Gathered,
    Greeting,
    Line,
    Meeting,
    Signalled,
    Stopped,
    Welcome,
    avoid_proxies,
    decode,
    encode,
    open_relay,
    rendezvous,
)

SECONDS = 60
HOSTS = ["host-0", "host-1", "host-2", "host-3"]


def free_address() -> str:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return f"127.0.0.1:{listener.getsockname()[1]}"


def process_info(address: str, processes: int, number: int) -> ProcessInfo:
    return ProcessInfo("address", address, processes, number)


def join_all(address: str, processes: int, numbers: list[int], seconds: float = 30, clock=time.monotonic) -> list:
    """Run the rendezvous in a thread for each process; returns the outcomes."""
    infos = [process_info(address, processes, number) for number in numbers]
    return run_in_threads(
        [lambda info=info: rendezvous(info, f"host-{info.process}", seconds, clock) for info in infos]
    )


def ticking_clock() -> Callable[[], float]:
    """A clock that advances by a second at each reading."""
    return itertools.count().__next__


@pytest.fixture
def admitted(monkeypatch: pytest.MonkeyPatch) -> dict[int, threading.Event]:
    """An event for each process number, set when process 0 has admitted that process."""
    events, admit = {number: threading.Event() for number in range(1, 5)}, connections._admit

    def admit_and_notify(meeting: Meeting, line: Line, info: ProcessInfo) -> bool:
        is_member = admit(meeting, line, info)
        for number in meeting.lines:
            events[number].set()
        return is_member

    monkeypatch.setattr(connections, "_admit", admit_and_notify)
    return events


def join_in_background(address: str, processes: int) -> tuple[threading.Thread, list[object]]:
    """Join processes 0 and 2 in a background thread, which fills the list with their outcomes."""
    outcomes: list[object] = []
    thread = threading.Thread(target=lambda: outcomes.extend(join_all(address, processes, [0, 2])))
    thread.start()
    return thread, outcomes


def test_messages_survive_encoding() -> None:
    for message in (Greeting(1, 3, "host-1"), Welcome(), Signalled(15, leaving=True), Contribution(0, "loss", "ü\n")):
        assert decode(encode(message).rstrip(b"\n")) == message


@pytest.mark.parametrize(
    "line", [b"", b"GET / HTTP/1.1", b"[]", b"{}", b'{"is": "nonsense"}', b'{"is": "Goodbye"', b"[" * 100_000]
)
def test_decode_refuses_other_programs(line: bytes) -> None:
    with pytest.raises(ValueError, match="not a message of bertjax"):
        decode(line)


def test_line_sends_long_messages_and_refuses_too_long_ones() -> None:
    here, there = map(Line, socket.socketpair())
    message = Contribution(0, "the log", "x" * (5 << 20))
    threading.Thread(target=here.send, args=(message,), daemon=True).start()
    received: list[object] = []
    while not received:
        messages = there.receive()
        assert messages is not None, "mistaken for a closed connection"
        received += messages
    assert received == [message]
    with pytest.raises(ValueError, match=r"a message to another process \(the log\) has 67,1\d\d,\d\d\d bytes"):
        here.send(Contribution(0, "the log", "x" * (64 << 20)))
    here.close(), there.close()


def test_rendezvous_connects_all() -> None:
    meetings = join_all(free_address(), 4, [3, 1, 0, 2])
    assert all(isinstance(meeting, Meeting) for meeting in meetings), meetings
    assert [meeting.hosts for meeting in meetings] == [HOSTS] * 4
    for meeting in meetings:
        for line in meeting.lines.values():
            line.close()


def test_missing_processes_are_named_to_all(admitted: dict[int, threading.Event]) -> None:
    address, clock = free_address(), Clock()

    def wait_and_time_out() -> None:
        assert admitted[1].wait(SECONDS) and admitted[4].wait(SECONDS)
        clock.now = 50.0

    threading.Thread(target=wait_and_time_out, daemon=True).start()
    for error in join_all(address, 5, [0, 1, 4], 40, clock):
        assert isinstance(error, TimeoutError)
        assert f"of 5 processes, 2, 3 did not connect to {address} within 40 s" in str(error)
        assert "0 (host-0), 1 (host-1), 4 (host-4)" in str(error)


def test_absent_coordinator_is_named() -> None:
    address = free_address()
    with pytest.raises(TimeoutError, match=rf"process 2 of 3: nothing answers at {address}.* after 4 s"):
        rendezvous(process_info(address, 3, 2), "host", 4, ticking_clock())


@pytest.mark.parametrize(("numbers", "message"), [([0, 1, 1], "process 1 connected twice"), ([0, 7], "process 7 of 3")])
def test_impossible_process_numbers_are_refused(numbers: list[int], message: str) -> None:
    outcomes = join_all(free_address(), 3, numbers)
    assert any(isinstance(error, ValueError) and message in str(error) for error in outcomes), outcomes


@pytest.mark.parametrize("answer", [b"", b"\x00\x00\x12\x04\x00\x00", b"HTTP/1.1 400 Bad Request\r\n\r\n"])
def test_rendezvous_waits_until_an_earlier_job_ends(answer: bytes) -> None:
    address = free_address()

    def earlier_job() -> None:
        with socket.create_server(split_address(address)) as listener:
            for _ in range(2):
                with listener.accept()[0] as connection:
                    connection.recv(1 << 16)
                    connection.sendall(answer)

    def process_0() -> object:
        earlier.join(5)
        return rendezvous(process_info(address, 2, 0), "host-0", 10)

    earlier = threading.Thread(target=earlier_job, daemon=True)
    earlier.start()
    meetings = run_in_threads([process_0, lambda: rendezvous(process_info(address, 2, 1), "host-1", 10)])
    assert all(isinstance(meeting, Meeting) and meeting.hosts == HOSTS[:2] for meeting in meetings), meetings


def test_another_program_at_the_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        address = f"127.0.0.1:{listener.getsockname()[1]}"

        def hang_up() -> None:
            with contextlib.suppress(OSError):
                while True:
                    listener.accept()[0].close()

        threading.Thread(target=hang_up, daemon=True).start()
        with pytest.raises(TimeoutError, match=f"the program at {address} is not process 0 of this job"):
            rendezvous(process_info(address, 2, 1), "host", 4, ticking_clock())


def test_other_version_of_bertjax_is_refused(admitted: dict[int, threading.Event]) -> None:
    address = free_address()
    thread, outcomes = join_in_background(address, 3)
    assert admitted[2].wait(SECONDS)
    line = Line(socket.create_connection(split_address(address)))
    greeting = encode(Greeting(1, 3, "old-host", "0.0.7"))
    line.socket.sendall(greeting.replace(b"{", b'{"field_of_that_version": 1, ', 1))
    thread.join()
    line.close()
    assert len(outcomes) == 2
    for error in outcomes:
        assert isinstance(error, ValueError)
        message = f"process 1 on old-host is bertjax 0.0.7, process 0 on host-0 {bertjax.__version__}; install the same"
        assert message in str(error)


def test_occupied_port_is_named() -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        with pytest.raises(OSError, match=f"cannot listen at {address}"):
            rendezvous(process_info(address, 2, 0), "host", 1)


def test_rendezvous_survives_strangers_and_restarts(admitted: dict[int, threading.Event]) -> None:
    address = free_address()

    def disturb() -> None:
        for data in (b"GET / HTTP/1.1\r\n\r\n", b'{"is": "nonsense"}\n', encode(Greeting(1, 3, "early"))):
            with connections.connect(address, connections.Deadline(SECONDS)) as stranger:
                stranger.sendall(data)
                if b"early" in data:
                    assert admitted[1].wait(SECONDS)
                else:
                    stranger.recv(1)  # process 0 hangs up

    strangers = threading.Thread(target=disturb)
    strangers.start()
    infos = [process_info(address, 3, number) for number in range(3)]
    meetings = run_in_threads(
        [
            lambda: rendezvous(infos[0], "host-0", 30),
            *(lambda info=info: (strangers.join(), rendezvous(info, "late", 30))[1] for info in infos[1:]),
        ]
    )
    assert all(isinstance(one, Meeting) and one.hosts == ["host-0", "late", "late"] for one in meetings), meetings


def test_signal_in_the_rendezvous_stops_all(admitted: dict[int, threading.Event]) -> None:
    address = free_address()
    thread, outcomes = join_in_background(address, 4)
    assert admitted[2].wait(SECONDS)
    line = Line(socket.create_connection(split_address(address)))
    line.send(Greeting(1, 4, "host-1"))
    line.send(Signalled(15, leaving=True))
    thread.join()
    line.close()
    assert [type(error) for error in outcomes] == [Stopped] * 2


def receive(connection: socket.socket, count: int) -> bytes:
    data = b""
    while len(data) < count and (more := connection.recv(1 << 16)):
        data += more
    return data


@pytest.fixture
def service() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        yield listener


@pytest.fixture
def ends(service: socket.socket) -> Iterator[tuple[socket.socket, socket.socket]]:
    """A client's end of a relayed connection, and the service's."""
    relay = open_relay(f"127.0.0.1:{service.getsockname()[1]}", SECONDS)
    with socket.create_connection(split_address(relay), timeout=SECONDS) as client:
        upstream, _ = service.accept()
        upstream.settimeout(SECONDS)
        with upstream:
            yield client, upstream


def test_relay_passes_bytes_both_ways_at_once(ends: tuple[socket.socket, socket.socket]) -> None:
    payloads = [bytes(range(256)) * 20_000, bytes(range(255, -1, -1)) * 20_000]
    senders = [
        threading.Thread(target=end.sendall, args=(payload,)) for end, payload in zip(ends, payloads, strict=True)
    ]
    for sender in senders:
        sender.start()
    # Each payload is larger than the buffers of a connection.
    assert receive(ends[1], len(payloads[0])) == payloads[0]
    assert receive(ends[0], len(payloads[1])) == payloads[1]
    for sender in senders:
        sender.join()


def test_relay_hides_the_end_of_the_service(ends: tuple[socket.socket, socket.socket]) -> None:
    client, upstream = ends
    upstream.sendall(b"last words")
    assert receive(client, 10) == b"last words"
    upstream.close()
    for data in (b"one to a closed socket", b"one after its reset", b"and one more"):
        client.sendall(data)
        time.sleep(0.05)  # so that the relay reads each separately
    assert select.select([client], [], [], 0.5)[0] == []  # neither an end nor an error


def test_relay_forwards_the_end_of_the_client(ends: tuple[socket.socket, socket.socket]) -> None:
    client, upstream = ends
    client.close()
    assert upstream.recv(1) == b""


def test_relay_waits_for_the_service(service: socket.socket) -> None:
    port = service.getsockname()[1]
    service.close()
    with socket.create_connection(split_address(open_relay(f"127.0.0.1:{port}", SECONDS)), timeout=SECONDS) as client:
        client.sendall(b"early")
        time.sleep(0.5)  # the relay is refused meanwhile
        with socket.create_server(("127.0.0.1", port)) as late:
            late.settimeout(SECONDS)
            upstream, _ = late.accept()
            with upstream:
                assert receive(upstream, 5) == b"early"


def test_relay_gives_up_an_absent_service(service: socket.socket) -> None:
    port = service.getsockname()[1]
    service.close()
    with socket.create_connection(split_address(open_relay(f"127.0.0.1:{port}", 0.1)), timeout=SECONDS) as client:
        assert client.recv(1) == b""


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, None),
        ({"no_proxy": "example.org"}, None),
        ({"http_proxy": ""}, None),
        ({"http_proxy": "http://proxy:1"}, "host-0,127.0.0.1"),
        ({"HTTPS_PROXY": "http://proxy:1", "NO_PROXY": "example.org"}, "example.org,host-0,127.0.0.1"),
        ({"grpc_proxy": "http://proxy:1", "no_grpc_proxy": "a", "no_proxy": "b"}, "a,host-0,127.0.0.1"),
    ],
)
def test_avoid_proxies_lists_hosts_of_the_job(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], expected: str | None
) -> None:
    for name in ("http_proxy", "https_proxy", "grpc_proxy", "no_grpc_proxy", "no_proxy"):
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    avoid_proxies("host-0:8476")
    assert os.environ.get(connections._NO_PROXY) == expected


def test_equal_values_are_sent_once():
    """The message of process 0 to each of a thousand processes does not grow with their number."""
    for values in (["a" * 64] * 1024, ["first", *[""] * 1023], ["a"] * 500 + ["b"] + ["a"] * 523):
        message = decode(encode(Gathered.pack(7, values)))
        assert message.unpack() == values and message.turn == 7
        assert len(encode(message)) < 200
    assert Gathered.pack(0, list("abca")).unpack() == list("abca")
