"""A relay between JAX's client and the service of process 0: JAX does not see that process 0 has ended.

JAX's client aborts its process as soon as the connection to the service closes, which no setting prevents. That was
often before the heartbeat had named the lost process and ended this one with the code to resume. Behind a relay the
connection stays open until this process ends; JAX's own, slower heartbeat still notices a service that is gone.
"""

from __future__ import annotations

import contextlib
import os
import socket
import threading
import time

from bertjax.runtime.clusters import split_address
from bertjax.runtime.rendezvous import reach

_HOST = "127.0.0.1"
_NO_PROXY = "no_grpc_proxy"  # hosts; it replaces no_proxy for gRPC alone
_BYTES = 1 << 16


def open_relay(service: str, seconds: float) -> str:
    """Start to relay connections to `service` (HOST:PORT), which must answer within `seconds`. Returns the own address.

    The threads are daemons: they end with the process.
    """
    listener = socket.create_server((_HOST, 0))
    _start(_accept, listener, service, seconds)
    return f"{_HOST}:{listener.getsockname()[1]}"


def avoid_proxies(service: str) -> None:
    """Keep gRPC from using a proxy of the environment, if there is one, for `service` or a relay to it."""
    lower = {name.lower(): value for name, value in os.environ.items() if value}
    if any(name in lower for name in ("grpc_proxy", "https_proxy", "http_proxy")):
        hosts = lower.get(_NO_PROXY) or lower.get("no_proxy")
        os.environ[_NO_PROXY] = ",".join(filter(None, [hosts, split_address(service)[0], _HOST]))


def _start(target: object, *arguments: object) -> None:
    threading.Thread(target=target, args=arguments, name="relay", daemon=True).start()


def _accept(listener: socket.socket, service: str, seconds: float) -> None:
    while True:
        client, _ = listener.accept()
        _start(_connect, client, service, seconds)


def _connect(client: socket.socket, service: str, seconds: float) -> None:
    try:
        upstream = reach(service, time.monotonic() + seconds)
    except OSError:
        client.close()  # JAX reports it
        return
    for end in (client, upstream):
        end.settimeout(None)
        end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    _start(_copy, upstream, client)
    _copy(client, upstream)
    with contextlib.suppress(OSError):
        upstream.shutdown(socket.SHUT_RDWR)  # the client has left


def _copy(source: socket.socket, target: socket.socket) -> None:
    """Copy until one end is closed. The other stays open."""
    with contextlib.suppress(OSError):
        while data := source.recv(_BYTES):
            target.sendall(data)
