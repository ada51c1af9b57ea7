"""A process that has imported everything and forks one for each command line: what a start costs is paid once.

Started and spoken to by `several_processes.Zygote`, over a socket that all processes of a test session share: from each
come JSON objects, a line each, and `pid` and later `pid code` go back. It ends with the last of them.
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
    import bertjax.storage.lean_import as own

    own.import_tensorflow()
    # What verbs import when they run, which would take every child seconds.
    import tensorboardX  # noqa: F401

    import bertjax.convert.folder
    import bertjax.pipeline.finetuning
    import bertjax.pipeline.preparation
    import bertjax.run.pretrain
    import bertjax.run.train_job  # noqa: F401
    from bertjax.config import Config
    from bertjax.config.recipes import override

    with contextlib.suppress(ImportError):  # exports are compared with them, where they are installed
        import torch  # noqa: F401
        from transformers import AutoTokenizer, BertForPreTraining  # noqa: F401

    override(Config(), [], "zygote")  # tyro imports more when it is used
    measure_speed_in_a_moment()
    keep_the_programs_of_every_process()
    require_nothing_started()
    gc.freeze()  # children share these pages until a collector writes to them
    serve(address)


def serve(address: str) -> None:
    """Run what comes from anyone who connects, until the last of them has gone."""
    server, customers, children = socket.socket(socket.AF_UNIX), {}, {}
    server.bind(address)
    server.listen()
    woken = wake_at_ends()
    selector = selectors.DefaultSelector()
    for one in (server, woken):
        selector.register(one, selectors.EVENT_READ)
    print("ready", flush=True)
    while ready := selector.select(None if customers else 60):
        for key, _ in ready:
            if key.fileobj is server:
                customer, _ = server.accept()
                customers[customer] = customer.makefile("r")
                selector.register(customer, selectors.EVENT_READ)
            elif key.fileobj is woken:
                woken.recv(4096)
            elif line := customers[key.fileobj].readline():  # a whole one: each waits for its answer
                child = fork(json.loads(line), [server, woken, *customers])
                children[child] = key.fileobj
                tell(key.fileobj, f"{child}")
            else:
                selector.unregister(key.fileobj)
                del customers[key.fileobj]
                if not customers:
                    return
        # After starts were told, for a child may live as short as it likes.
        for child, code in ended():
            tell(children.pop(child), f"{child} {code}")


def wake_at_ends() -> socket.socket:
    """What can be read from when a child has ended."""
    woken, waker = socket.socketpair()
    waker.setblocking(False)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    signal.set_wakeup_fd(waker.detach())
    return woken


def fork(job: dict, own: list[socket.socket]) -> int:
    """The number of a new process that does a job, without our sockets."""
    child = os.fork()
    if child == 0:
        os.close(signal.set_wakeup_fd(-1))
        for one in own:
            os.close(one.detach())
        become(job)
    return child


def ended() -> Iterator[tuple[int, int]]:
    """Children that have ended, with their exit codes."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            yield found[0], os.waitstatus_to_exitcode(found[1])


def tell(customer: socket.socket, line: str) -> None:
    """Send a line to who may have gone."""
    with contextlib.suppress(OSError):
        customer.sendall(f"{line}\n".encode())


def require_nothing_started() -> None:
    """A fork survives neither threads nor devices, and importing starts none."""
    from jax._src import xla_bridge

    assert threading.active_count() == 1 and not xla_bridge.backends_are_initialized()


def measure_speed_in_a_moment() -> None:
    """A run's MFU is of the fastest product that it measures; what tests train does not depend on it."""
    from bertjax.training import flops

    assert flops.measured_peak_flops.__defaults__ == (1024, 0.3, "float32")
    flops.measured_peak_flops.__defaults__ = (256, 0.02, "float32")


def keep_the_programs_of_every_process() -> None:
    """What processes on CPUs compile has a key of its own in each, but JAX lets the first alone keep its programs."""
    from jax._src import compiler, distributed

    keep, state = compiler._cache_write, distributed.global_state

    def keep_as_the_first(*arguments: object) -> None:
        number, state.process_id = state.process_id, 0
        try:
            keep(*arguments)
        finally:
            state.process_id = number

    compiler._cache_write = keep_as_the_first


def become(job: dict) -> None:
    """Run a command line of bertjax, or a script's `main`, as if it had just been started."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    log = os.open(job["log"], os.O_WRONLY | os.O_CREAT | (os.O_APPEND if job["append"] else os.O_TRUNC))
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(job["environment"])
    if "HF_ENDPOINT" in job["environment"]:  # read when it is imported, never again
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
