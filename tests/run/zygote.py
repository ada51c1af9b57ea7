"""A process that has imported everything and forks for each command line, so that tests pay for start-up once.

`several_processes.Zygote` starts it and talks to it over a socket that all processes of a test session share. Requests
are JSON objects, one per line; the answers are `pid`, and later `pid code`. It exits with its last client.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import selectors
import signal
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path


def main(address: str) -> None:
    from bertjax.storage.lean_import import import_tensorflow

    import_tensorflow()
    # Modules that verbs import lazily, which would take every child seconds.
    import tensorboardX  # noqa: F401

    import bertjax.convert.folder
    import bertjax.pipeline.finetuning
    import bertjax.pipeline.preparation
    import bertjax.run.pretrain
    import bertjax.run.train_job  # noqa: F401
    from bertjax.config import Config
    from bertjax.config.recipes import override

    with contextlib.suppress(ImportError):  # optional; exports are compared with them
        import torch  # noqa: F401
        from transformers import AutoTokenizer, BertForPreTraining  # noqa: F401

    override(Config(), [], "zygote")  # tyro imports more on its first use
    measure_speed_in_a_moment()
    cache_programs_of_every_process()
    require_nothing_started()
    gc.freeze()  # so that collections do not copy pages that children share
    serve(address)


def serve(address: str) -> None:
    """Run commands for all clients until the last one disconnects."""
    server, clients, children = socket.socket(socket.AF_UNIX), {}, {}
    server.bind(address)
    server.listen()
    woken, waker = wake_on_child_exit()
    selector = selectors.DefaultSelector()
    for one in (server, woken):
        selector.register(one, selectors.EVENT_READ)
    print("ready", flush=True)
    while ready := selector.select(None if clients else 60):
        for key, _ in ready:
            if key.fileobj is server:
                client, _ = server.accept()
                clients[client] = client.makefile("r")
                selector.register(client, selectors.EVENT_READ)
            elif key.fileobj is woken:
                woken.recv(4096)
            elif line := clients[key.fileobj].readline():  # complete, because clients wait for the answer
                child = fork(json.loads(line), [server, woken, waker, *clients])
                children[child] = key.fileobj
                send(key.fileobj, f"{child}")
            else:
                selector.unregister(key.fileobj)
                del clients[key.fileobj]
                if not clients:
                    return
        # After the answers to starts, because a child may exit immediately.
        for child, code in exited_children():
            send(children.pop(child), f"{child} {code}")


def wake_on_child_exit() -> tuple[socket.socket, socket.socket]:
    """A socket that becomes readable when a child exits, and its other end."""
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.fileno())
    return woken, waker


def fork(job: dict, sockets: list[socket.socket]) -> int:
    """Fork a process for a job, with `sockets` closed; returns its process id."""
    child = os.fork()
    if child == 0:
        signal.set_wakeup_fd(-1)
        for one in sockets:
            os.close(one.detach())
        run_job(job)
    return child


def exited_children() -> Iterator[tuple[int, int]]:
    """Process ids and exit codes of children that have exited."""
    with contextlib.suppress(ChildProcessError):
        while (status := os.waitpid(-1, os.WNOHANG))[0]:
            yield status[0], os.waitstatus_to_exitcode(status[1])


def send(client: socket.socket, line: str) -> None:
    """Send a line to a client, unless it has disconnected."""
    with contextlib.suppress(OSError):
        client.sendall(f"{line}\n".encode())


def require_nothing_started() -> None:
    """Assert that imports started neither threads nor devices, which do not survive a fork."""
    from jax._src import xla_bridge

    assert threading.active_count() == 1 and not xla_bridge.backends_are_initialized()


def measure_speed_in_a_moment() -> None:
    """Measure the peak rate with a small matrix; only the MFU of a run depends on it, not what it trains."""
    from bertjax.training import flops

    assert flops.measured_peak_flops.__defaults__ == (1024, 0.3, "float32")
    flops.measured_peak_flops.__defaults__ = (256, 0.02, "float32")


def cache_programs_of_every_process() -> None:
    """Cache compiled programs in all processes; their keys differ on CPUs, but JAX writes only process 0's."""
    from jax._src import compiler, distributed

    write, state = compiler._cache_write, distributed.global_state

    def write_as_process_0(*arguments: object) -> None:
        number, state.process_id = state.process_id, 0
        try:
            write(*arguments)
        finally:
            state.process_id = number

    compiler._cache_write = write_as_process_0


def run_job(job: dict) -> None:
    """Run a bertjax command line or a script as if this process had just been started."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | (os.O_APPEND if job["append"] else os.O_TRUNC))
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(job["environment"])
    if "HF_ENDPOINT" in job["environment"]:  # read only on import
        for name in [name for name in sys.modules if name.startswith(("huggingface_hub", "transformers"))]:
            del sys.modules[name]
    os.chdir(job["folder"])
    _, *arguments = job["command"]
    code = 1
    try:
        if arguments[:2] == ["-m", "bertjax"]:
            from bertjax.__main__ import main as verb

            sys.argv = ["bertjax", *arguments[2:]]
            code = verb()
        else:
            import runpy

            sys.argv = arguments
            sys.path.insert(0, str(Path(arguments[0]).parent))
            runpy.run_path(arguments[0], run_name="__main__")
            code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(bool(end.code))
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code or 0)


if __name__ == "__main__":
    main(sys.argv[1])
