"""A relay passes bytes both ways, and does not pass on that the service has ended."""

import os
import select
import socket
import threading
import time

import pytest

from bertjax.runtime.clusters import split_address
from bertjax.runtime.relay import avoid_proxies, open_relay

SECONDS = 60
NO_PROXY = "no_grpc_proxy"
PROXIES = ("http_proxy", "https_proxy", "grpc_proxy", NO_PROXY, "no_proxy")


def connect(address: str) -> socket.socket:
    return socket.create_connection(split_address(address), timeout=SECONDS)


def received(connection: socket.socket, count: int) -> bytes:
    got = b""
    while len(got) < count and (more := connection.recv(1 << 16)):
        got += more
    return got


@pytest.fixture
def service():
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        yield listener


@pytest.fixture
def ends(service):
    """A client's end of a relayed connection, and the service's."""
    with connect(open_relay(f"127.0.0.1:{service.getsockname()[1]}", SECONDS)) as client:
        upstream, _ = service.accept()
        upstream.settimeout(SECONDS)
        with upstream:
            yield client, upstream


def test_bytes_arrive_in_order_and_both_ways_at_once(ends):
    payloads = [bytes(range(256)) * 20_000, bytes(range(255, -1, -1)) * 20_000]
    senders = [threading.Thread(target=end.sendall, args=(sent,)) for end, sent in zip(ends, payloads, strict=True)]
    for sender in senders:
        sender.start()
    # Each reads only after both began to send more than the buffers of a connection hold.
    assert received(ends[1], len(payloads[0])) == payloads[0]
    assert received(ends[0], len(payloads[1])) == payloads[1]
    for sender in senders:
        sender.join()


def test_the_client_does_not_see_that_the_service_ended(ends):
    client, upstream = ends
    upstream.sendall(b"last words")
    assert received(client, 10) == b"last words"
    upstream.close()
    client.sendall(b"one to a closed socket, ")
    client.sendall(b"and one after its reset")
    assert select.select([client], [], [], 2)[0] == []  # neither an end nor an error


def test_the_service_sees_that_the_client_left(ends):
    client, upstream = ends
    client.close()
    assert upstream.recv(1) == b""


def test_a_service_may_start_later(service):
    port = service.getsockname()[1]
    service.close()
    with connect(open_relay(f"127.0.0.1:{port}", SECONDS)) as client:
        client.sendall(b"early")
        time.sleep(0.5)  # the relay is refused meanwhile
        with socket.create_server(("127.0.0.1", port)) as late:
            late.settimeout(SECONDS)
            upstream, _ = late.accept()
            with upstream:
                assert received(upstream, 5) == b"early"


def test_a_service_that_never_starts_is_given_up(service):
    port = service.getsockname()[1]
    service.close()
    with connect(open_relay(f"127.0.0.1:{port}", 0.5)) as client:
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
def test_a_proxy_is_not_used_for_processes_of_the_job(monkeypatch, environment, expected):
    for name in PROXIES:
        monkeypatch.setenv(name, "")  # so that it is restored
        monkeypatch.delenv(name)
        monkeypatch.delenv(name.upper(), raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    avoid_proxies("host-0:8476")
    assert os.environ.get(NO_PROXY) == expected
