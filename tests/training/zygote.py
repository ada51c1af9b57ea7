"""A process that has imported everything and forks one for each command line: what a start costs is paid once.

Started and spoken to by `several_processes.Zygote`: a JSON object a line comes in, `pid` and later `pid code` go out.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import signal
import sys
import threading
from pathlib import Path


def main() -> None:
    import bertjax.storage.lean_import as own

    own.import_tensorflow()
    # What verbs import when they run, which would take every child seconds.
    import tensorboardX  # noqa: F401

    import bertjax.convert.folder
    import bertjax.pipeline.finetuning
    import bertjax.pipeline.preparation
    import bertjax.pipeline.pretraining
    import bertjax.training.trainer  # noqa: F401
    from bertjax.config import Config
    from bertjax.config.recipes import override

    with contextlib.suppress(ImportError):  # exports are compared with them, where they are installed
        import torch  # noqa: F401
        from transformers import AutoTokenizer, BertForPreTraining  # noqa: F401

    override(Config(), [], "zygote")  # tyro imports more when it is used
    measure_speed_in_a_moment()
    keep_the_programs_of_every_process()
    require_nothing_started()
    signal.signal(signal.SIGCHLD, reap)
    gc.freeze()  # children share these pages until a collector writes to them
    os.write(1, b"ready\n")
    while line := sys.stdin.readline():
        job = json.loads(line)
        # Its start must be reported before its end, however short it lives.
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD})
        child = os.fork()
        if child == 0:
            become(job)
        os.write(1, f"{child}\n".encode())
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})


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


def reap(*_: object) -> None:
    """Tell how children ended."""
    while True:
        try:
            child, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if not child:
            return
        os.write(1, f"{child} {os.waitstatus_to_exitcode(status)}\n".encode())


def become(job: dict) -> None:
    """Run a command line of bertjax, or a script's `main`, as if it had just been started."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGCHLD})
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
    main()
