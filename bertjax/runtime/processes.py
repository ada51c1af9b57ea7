"""The processes of a run: connect, communicate, stop together and exit together."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import sys
import threading
import time
import traceback
from collections.abc import Callable
from types import FrameType, TracebackType

import jax

from bertjax.config import HostsConfig
from bertjax.runtime.clusters import ProcessInfo, find_process, split_address
from bertjax.runtime.connections import EXIT_CODES, Meeting, Stopped, avoid_proxies, open_relay, rendezvous
from bertjax.runtime.heartbeat import FAILED, PATIENCE_AT_REST, Agreement, Heartbeat
from bertjax.runtime.host_memory import keep_freed_memory
from bertjax.storage.open_files import raise_open_file_limit
from bertjax.storage.terminal import first_names

_EXPECTED = (ValueError, OSError, RuntimeError, ModuleNotFoundError)
_CLOSED_STREAM = (OSError, ValueError)
_JAX_HEARTBEATS = 5  # JAX's timeout as a multiple of ours, which must notice first because it names the lost process
_SHUTDOWN_SECONDS = 60
_HEAR_SECONDS = 2  # for the listening thread to notice a lost process

_Handler = Callable[[int, FrameType | None], object] | int | None


class Processes(Agreement):
    """The processes of a run as seen from one of them; a context manager around all collective work.

    Inside, SIGTERM or SIGINT to any process stops all processes: if no work would be lost, at once by raising
    `Stopped`; otherwise at the unit where `begin_unit` returns False. An error in one of several processes ends all.
    """

    _has_joined = False  # whether this Python process has joined others, which JAX can do once

    def __init__(self, info: ProcessInfo, hosts: HostsConfig, *, ends_process: bool = True) -> None:
        """If this process is the only one, a signal may end it with `ends_process`, and raises Stopped without."""
        super().__init__()
        self.number, self.count = info.process, info.processes
        self._info, self._hosts = info, hosts
        self._ends_process = ends_process or self.count > 1
        self._interrupts = 0
        self._heartbeat: Heartbeat | None = None
        self._handlers: dict[signal.Signals, _Handler] = {}
        self._previous_wakeup = -1

    @property
    def first(self) -> bool:
        """Whether this is process 0, which prints, reports and exports."""
        return self.number == 0

    def __enter__(self) -> Processes:
        if self.count > 1 and Processes._has_joined:
            raise ValueError(
                "this Python process has already joined the processes of a run, which JAX supports once; start a new "
                "process for the next run (`bertjax compare --seeds` continues if you run the same command again)"
            )
        raise_open_file_limit()
        keep_freed_memory()  # before the first computation
        # Only the main thread can handle signals; tests use other threads.
        if threading.current_thread() is threading.main_thread():
            self._handlers = {number: signal.signal(number, self._receive) for number in EXIT_CODES}
        try:
            meeting = Meeting([host := socket.gethostname()])
            if self.count > 1:
                if self.first:
                    print(f"waiting for {self.count - 1} other processes at {self._info.coordinator}", flush=True)
                meeting = rendezvous(self._info, host, self._hosts.join_seconds)
        except BaseException:
            self._restore_signals()
            raise
        seconds = float(self._hosts.heartbeat_seconds)
        heartbeat = Heartbeat(self.number, meeting, seconds, self, self._end, self._wake_main_thread)
        if self._handlers:
            # The listening thread receives a signal at once, even while the main thread is in a compiler.
            heartbeat.wake.setblocking(False)
            self._previous_wakeup = signal.set_wakeup_fd(heartbeat.wake.fileno(), warn_on_full_buffer=False)
        self._heartbeat = heartbeat
        self._heartbeat.start()
        try:
            if self.count > 1:
                Processes._has_joined = True
                self._start_jax()
            self._require_devices()
        except BaseException as error:
            self.__exit__(type(error), error, error.__traceback__)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._heartbeat is not None
        if self.count > 1 and error is not None:
            self._leave_with(error)
        if self.count > 1:
            self.gather("the end")
            jax.distributed.shutdown()
        self._restore_signals()
        self._heartbeat.close()

    def gather(self, what: str, value: str = "") -> list[str]:
        """Gather the values of all processes, ordered by number; `what` names the value. Waits for all of them."""
        assert self._heartbeat is not None
        return self._heartbeat.gather(what, value)

    def broadcast(self, what: str, value: str = "") -> str:
        """Return the value of process 0 in every process; waits like `gather`."""
        return self.gather(what, value if self.first else "")[0]

    def require_same(self, what: str, value: str, advice: str) -> None:
        """Raise ValueError, in every process, naming the processes whose value differs from process 0's."""
        first, *_ = values = self.gather(what, value)
        if others := [number for number, other in enumerate(values) if other != first]:
            raise ValueError(f"{self.describe(others)} and process 0 do not have the same {what}; {advice}")

    def rest(self, message: str) -> None:
        """Record that no unsaved work is in progress; `message` is printed if a signal stops the run now.

        Raises Stopped if a signal was received.
        """
        assert self._heartbeat is not None
        self._heartbeat.at_rest = message
        self.mark_resting()
        self._raise_if_unwinding()

    @property
    def exit_code(self) -> int:
        """Exit code of this process: 0 unless `begin_unit` has returned False."""
        assert self._heartbeat is not None
        return self._heartbeat.exit_code if self.stopped else 0

    def finish(self, message: str) -> None:
        """Record that all collective work is done. Raises Stopped in all processes if one received a signal."""
        self.rest(message)
        received = self._heartbeat.stop_signal if self._heartbeat is not None else None
        signals = [number for number in self.gather("finished", str(int(received or 0))) if number != "0"]
        if signals:
            raise Stopped(int(signals[0]), message)

    def describe(self, numbers: list[int]) -> str:
        """Describe processes by number and host, at most five, for messages."""
        assert self._heartbeat is not None
        names = [f"{number} ({self._heartbeat.hosts[number]})" for number in numbers]
        return f"process{'es' if len(numbers) > 1 else ''} {first_names(names, 5)}"

    def _start_jax(self) -> None:
        # Otherwise JAX installs its own SIGTERM handler.
        jax.config.update("jax_enable_preemption_service", False)
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        host, port = split_address(self._info.coordinator)
        seconds = self._hosts.join_seconds
        avoid_proxies(self._info.coordinator)
        jax.distributed.initialize(
            self._info.coordinator if self.first else open_relay(self._info.coordinator, seconds),
            self.count,
            self.number,
            local_device_ids=self._info.local_devices,
            cluster_detection_method="deactivate",
            initialization_timeout=seconds,
            heartbeat_timeout_seconds=max(100, _JAX_HEARTBEATS * self._hosts.heartbeat_seconds),
            shutdown_timeout_seconds=_SHUTDOWN_SECONDS,
            coordinator_bind_address=f"{host}:{port}" if host in ("localhost", "127.0.0.1") else None,
        )

    def _require_devices(self) -> None:
        expected = self._hosts.devices
        if not expected or jax.device_count() == expected:
            return
        counts = [sum(d.process_index == number for d in jax.devices()) for number in range(self.count)]
        usual = max(set(counts), key=counts.count)
        others = [number for number, count in enumerate(counts) if count != usual]
        detail = f"; most have {usual}, but not {self.describe(others)}" if others else ""
        raise ValueError(
            f"hosts.devices={expected}, but the {self.count} processes have {jax.device_count()} "
            f"{jax.devices()[0].platform} devices{detail}; check those hosts, or correct the key"
        )

    def _receive(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal in the main thread; the listening thread has already received it."""
        if self._heartbeat is None:
            raise Stopped(number)
        self._raise_if_unwinding()
        self._interrupts += number == signal.SIGINT
        if self._interrupts > 1 and not self._ends_process:
            raise Stopped(number, "interrupted twice: exited without saving")

    def _wake_main_thread(self) -> None:
        """Make the main thread call `_receive`, as soon as it executes Python code."""
        main = threading.main_thread().ident
        if self._handlers and main is not None:
            signal.pthread_kill(main, signal.SIGTERM)

    def _raise_if_unwinding(self) -> None:
        assert self._heartbeat is not None
        if self._heartbeat.unwinding and self._heartbeat.stop_signal is not None:
            self._heartbeat.unwinding = False
            raise Stopped(self._heartbeat.stop_signal, self._heartbeat.at_rest)

    def _leave_with(self, error: BaseException) -> None:
        """End this process, one of several, after an error; skips JAX's cleanup, which waits for the others."""
        assert self._heartbeat is not None
        if isinstance(error, Stopped):
            self._end(str(error), error.exit_code)
        if isinstance(error, _EXPECTED) and not os.environ.get("BERTJAX_TRACEBACK"):
            message = str(error)
        else:
            message = f"{type(error).__name__}: {error}"
            with contextlib.suppress(*_CLOSED_STREAM):
                traceback.print_exception(error)
        code = getattr(error, "exit_code", FAILED)
        try:
            # The loss of another process may have caused this error, whatever its class. Wait for the listening thread
            # to report it: a closed connection at once, a silent process after its patience (gloo may fail earlier).
            is_jax_error = isinstance(error, jax.errors.JaxRuntimeError)
            time.sleep(_HEAR_SECONDS + (PATIENCE_AT_REST * self._hosts.heartbeat_seconds if is_jax_error else 0))
            self._heartbeat.fail(message, code)
            self._print(message)
        finally:
            os._exit(code)

    def _end(self, message: str, code: int) -> None:
        """End this process, from any thread, even if an error occurs on the way."""
        if not self._ends_process:
            return  # `_receive` raises once the main thread executes Python code
        try:
            if self._heartbeat is not None and self.count > 1:
                self._heartbeat.say_goodbye()
            self._print(message)
        finally:
            os._exit(code)

    def _print(self, message: str) -> None:
        """Print a message unless the stream is closed."""
        prefix = f"bertjax: process {self.number}/{self.count}: " if self.count > 1 else ""
        with contextlib.suppress(*_CLOSED_STREAM):
            print(f"\n{prefix}{message}", file=sys.stderr, flush=True)
        with contextlib.suppress(*_CLOSED_STREAM):
            sys.stdout.flush()

    def _restore_signals(self) -> None:
        if not self._handlers:
            return
        if self._heartbeat is not None:
            signal.set_wakeup_fd(self._previous_wakeup)
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}


def join(hosts: HostsConfig, *, ends_process: bool = True) -> Processes:
    """Return the processes of this run, to enter before JAX uses a device; `ends_process` as in `Processes`.

    Entering raises TimeoutError for a coordinator that does not answer or processes that do not connect, and ValueError
    for a job that differs from `hosts`.
    """
    return Processes(find_process(hosts), hosts, ends_process=ends_process)


def alone() -> Processes:
    """Return a run with only this process."""
    return Processes(find_process(HostsConfig(cluster="one")), HostsConfig())
