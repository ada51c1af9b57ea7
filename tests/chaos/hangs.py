"""Stop and kill processes, drop packets, and make disks and clocks fail, during real runs.

Each trial must end in time, with the documented exit code and a message that names the cause. The same command, started
again, must end with the same bits as an undisturbed run.
"""

from __future__ import annotations

import contextlib
import errno
import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import crash_points
from generated_corpus import write_corpus
from outcomes import Share, Table, require_known
from random_kills import FEW_STEPS, prepare_command, store_digests
from several_processes import Group, as_keys, child_environment, free_port
from tiny_runs import checkpoints, command, digests, finish, write_recipe

from bertjax.cli.advice import ADVICE
from bertjax.text.corpus import UNIT_BYTES

NOTICED = 75  # seconds from the fault to the end of every process
AGAIN = 75  # exit code: start the same command again
_USUAL = 120  # maximum seconds of a run on a loaded machine
READ_ONLY_FROM = 6  # in failing_calls.c
_JOINING = 30  # seconds to connect, in the trial with an absent process
_STARTED, _STEPPING, _EVALUATING = "token store", "pretraining  4 /", "pretraining  8 /"
_IS_ROOT = sys.platform == "linux" and os.geteuid() == 0


class Failure(Exception):
    """A trial failed."""


class Runs:
    """Starts the runs of the trials, with one recipe and one corpus, and caches undisturbed results."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.draw = folder, random.Random(0)
        self._recipe, self._source = write_recipe(folder), write_corpus(folder / "corpus.txt", 100)
        self._expected: dict[int, dict[str, str]] = {}
        self._number = 0
        self.library = None if crash_points.MISSING else crash_points.build_library(folder)

    def new_run_dir(self) -> Path:
        """The path of a run directory that does not exist yet."""
        self._number += 1
        return self.folder / f"run-{self._number}" / "run"

    def command(self, run_dir: Path, *more: str) -> list[str]:
        """The command line of a run."""
        return command(self._recipe, self._source, run_dir, *FEW_STEPS, *more)

    def group(self, run_dir: Path, count: int = 2, *more: str) -> Group:
        """Start the processes of a run."""
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        return Group(self.command(run_dir, *more), count, run_dir.with_suffix(f".{time.monotonic_ns()}.log"))

    def expected(self, count: int) -> dict[str, str]:
        """Digests of the arrays of an undisturbed run with `count` processes."""
        if count not in self._expected:
            undisturbed = self.new_run_dir()
            with self.group(undisturbed, count) as group:
                group.finish()
            self._expected[count] = digests(undisturbed)
        return self._expected[count]

    def prepare(self, root: Path, workers: int) -> list[str]:
        """The command line that prepares a store from files that are each a unit of work."""
        files = self.folder / "files"
        if not files.exists():
            files.mkdir()
            for number in range(4):
                written = write_corpus(files / f"{number}.txt", 1000, seed=number)
                text = written.read_text() + "\n"
                written.write_text(text * (1 + UNIT_BYTES // len(text)))
        return prepare_command(self._recipe, f"{files}/*.txt", root, "--data.workers", str(workers))

    @functools.cached_property
    def stores(self) -> Any:
        """Digests of the stores that a single undisturbed process prepares."""
        root = self.new_run_dir()
        finish(self.prepare(root, 1), _log_path(root))
        return store_digests(root)

    def alone(self, run_dir: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start a run in a new interpreter, with the library that makes calls fail."""
        run_dir.parent.mkdir(parents=True, exist_ok=True)
        variables = os.environ | child_environment(devices=1) | {"LD_PRELOAD": str(self.library)} | environment
        with run_dir.with_suffix(".log").open("ab") as log:
            return subprocess.Popen(self.command(run_dir), stdout=log, stderr=log, env=variables)

    def resume(self, run_dir: Path, count: int) -> None:
        """Run to the end, and compare with an undisturbed run."""
        if count == 1:
            finish(self.command(run_dir), run_dir.with_suffix(".resumed.log"))
        else:
            with self.group(run_dir, count) as group:
                group.finish()
        if digests(run_dir) != self.expected(count):
            raise Failure("the resumed run has different bits")


def require(condition: object, message: str) -> None:
    """Raise Failure unless the condition holds."""
    if not condition:
        raise Failure(message)


def wait_for(text: str, log: Path, process: subprocess.Popen[bytes], seconds: float = 900) -> None:
    """Wait until a process has printed the text."""
    deadline = time.monotonic() + seconds
    while text not in log.read_text(errors="replace"):
        require(process.poll() is None and time.monotonic() < deadline, f"{text!r} was not printed: {_tail(log)}")
        time.sleep(0.05)


def _tail(log: Path) -> str:
    return log.read_text(errors="replace")[-1500:]


def wait_for_save(group: Group, run_dir: Path) -> None:
    """Wait until the files of a checkpoint are being written."""
    deadline = time.monotonic() + 300
    while not any(run_dir.glob("checkpoints/*.orbax-checkpoint-tmp*")):
        require(group.ended() == [None, None] and time.monotonic() < deadline, f"no save was seen: {group.output()}")
        time.sleep(0.002)


def lost_process(
    number: signal.Signals, victim: int, moment: str | Callable[[Group, Path], None]
) -> Callable[[Runs], str]:
    """Make a trial: send a signal to one of two processes; a stopped one continues once the other has ended.

    `moment` is a text that process 0 prints, or a function that waits.
    """

    def trial(runs: Runs) -> str:
        run_dir = runs.new_run_dir()
        with runs.group(run_dir) as group:
            if isinstance(moment, str):
                group.wait_for(moment)
            else:
                moment(group, run_dir)
            sent = time.monotonic()
            group.send(victim, number)
            while group.ended()[1 - victim] is None and time.monotonic() < sent + NOTICED:
                time.sleep(0.05)
            took = time.monotonic() - sent
            code, output = group.ended()[1 - victim], group.logs[1 - victim]
            require(code == AGAIN, f"the other process: exit code {code} after {took:.0f} s: {output[-1500:]}")
            require(f"lost process {victim}" in output, f"the lost process is not named: {output[-1500:]}")
            if number == signal.SIGSTOP:
                group.send(victim, signal.SIGCONT)
                codes = group.wait(NOTICED)
                require(codes[victim] not in (0, None), f"continued, it ended with {codes[victim]}")
        runs.resume(run_dir, 2)
        return f"named after {_about(took)}"

    return trial


def absent_process(runs: Runs) -> str:
    """Stop one of two processes before it connects; the other must name it and end."""
    run_dir = runs.new_run_dir()
    with runs.group(run_dir, 2, "--hosts.join-seconds", str(_JOINING)) as group:
        group.send(1, signal.SIGSTOP)
        sent = time.monotonic()
        while group.ended()[0] is None and time.monotonic() < sent + NOTICED:
            time.sleep(0.05)
        took, code, output = time.monotonic() - sent, group.ended()[0], group.logs[0]
        require(code == 1, f"process 0: exit code {code} after {took:.0f} s: {output[-1500:]}")
        require("of 2 processes, 1 did not connect" in output, f"process 1 is not named: {output[-1500:]}")
        group.send(1, signal.SIGCONT)
    runs.resume(run_dir, 2)
    return f"named after {_about(took)}"


def stopped_worker(runs: Runs) -> str:
    """Stop a worker of `prepare` at a random moment; the final store must equal a single process's."""
    root, expected = runs.new_run_dir(), runs.stores
    log = _log_path(root)
    with log.open("wb") as output:
        process = subprocess.Popen(runs.prepare(root, 2), stdout=output, stderr=output, start_new_session=True)
    try:
        worker, sent = _stop_a_worker(process, log, runs.draw.uniform(0, 2)), time.monotonic()  # a start takes a second
        code = process.wait(NOTICED)
        took = time.monotonic() - sent
    except subprocess.TimeoutExpired:
        raise Failure(f"still running after {NOTICED} s: {_tail(log)}") from None
    finally:
        process.kill()
        process.wait()
    if code == 0:
        require(took < NOTICED / 3, f"an idle worker delayed the end by {took:.0f} s")
    else:
        require(code == AGAIN, f"exit code {code} after {took:.0f} s: {_tail(log)}")
        require(f"worker process {worker} is stopped" in _tail(log), f"the worker is not named: {_tail(log)}")
    finish(runs.prepare(root, 2), log)
    require(store_digests(root) == expected, f"different stores: {store_digests(root)}")
    return f"named after {_about(took)}" if code else "it had no work left"


def _stop_a_worker(process: subprocess.Popen[bytes], log: Path, delay: float) -> int:
    """Stop a multiprocessing worker of a process, `delay` seconds after the first one starts; returns its pid."""
    children, until = Path(f"/proc/{process.pid}/task/{process.pid}/children"), None
    while True:
        require(process.poll() is None, f"the process ended before a worker could be stopped: {_tail(log)}")
        for child in children.read_text().split():
            with contextlib.suppress(OSError):  # the worker has ended
                if b"spawn_main" not in Path(f"/proc/{child}/cmdline").read_bytes():
                    continue
                until = until or time.monotonic() + delay
                if time.monotonic() >= until:
                    os.kill(int(child), signal.SIGSTOP)
                    return int(child)
        time.sleep(0.005)


def dropped_packets(runs: Runs) -> str:
    """Cut the bridge between two hosts, each in its own network namespace."""
    run_dir, port = runs.new_run_dir(), free_port()
    run_dir.parent.mkdir(parents=True)
    with hosts(run_dir.parent) as (enter, cut):
        logs = [run_dir.with_suffix(f".{number}.log") for number in (0, 1)]
        processes = []
        for number, log in enumerate(logs):
            words = runs.command(run_dir, *as_keys(number, 2, f"10.77.0.1:{port}"))
            with log.open("wb") as output:
                variables = os.environ | child_environment(devices=1)
                processes.append(
                    subprocess.Popen([*enter(number), *words], stdout=output, stderr=output, env=variables)
                )
        try:
            wait_for(_STEPPING, logs[0], processes[0])
            cut()
            begun = time.monotonic()
            codes = [process.wait(max(1, begun + NOTICED - time.monotonic())) for process in processes]
            took = time.monotonic() - begun
        except subprocess.TimeoutExpired:
            raise Failure(f"still running after {NOTICED} s: {[_tail(log) for log in logs]}") from None
        finally:
            for process in processes:
                process.kill()
                process.wait()
        for number, log in enumerate(logs):
            text = log.read_text(errors="replace")
            require(codes[number] == AGAIN, f"process {number}: exit code {codes[number]}: {text[-1500:]}")
            require(f"lost process {1 - number}" in text, f"process {number} does not name the other: {text[-1500:]}")
    runs.resume(run_dir, 2)
    return f"named after {_about(took)}"


@contextlib.contextmanager
def hosts(folder: Path) -> Iterator[tuple[Callable[[int], list[str]], Callable[[], None]]]:
    """Create two network namespaces and a bridge. Yields (make the command prefix of a host, cut the network)."""
    mark = f"bj{os.getpid() % 10_000}"
    bridge, names = f"{mark}b", [f"{mark}h0", f"{mark}h1"]

    def ip(*words: str, within: str = bridge) -> None:
        subprocess.run(["ip", "-n", within, *words], check=True, capture_output=True)

    host_table = folder / "hosts"
    host_table.write_text("127.0.0.1 localhost\n10.77.0.1 host-0\n10.77.0.2 host-1\n")
    for name in (bridge, *names):
        subprocess.run(["ip", "netns", "add", name], check=True)
    try:
        ip("link", "add", "br0", "type", "bridge")
        ip("link", "set", "br0", "up")
        for number, name in enumerate(names):
            ip("link", "add", f"port{number}", "type", "veth", "peer", "name", "eth0", "netns", name)
            ip("link", "set", f"port{number}", "master", "br0", "up")
            ip("address", "add", f"10.77.0.{number + 1}/24", "dev", "eth0", within=name)
            for link in ("lo", "eth0"):
                ip("link", "set", link, "up", within=name)

        def enter(number: int) -> list[str]:
            script = f'hostname host-{number}; mount --bind {host_table} /etc/hosts; exec "$@"'
            return ["ip", "netns", "exec", names[number], "unshare", "-m", "-u", "sh", "-c", script, "host"]

        # The links stay up, so that no process gets an error.
        yield enter, lambda: ip("link", "set", "port1", "nomaster")
    finally:
        for name in (bridge, *names):
            subprocess.run(["ip", "netns", "del", name], check=False)


def full_disk(runs: Runs) -> str:
    """Put the run directory on a disk that is too small for its files."""
    run_dir = runs.new_run_dir()
    undisturbed = runs.new_run_dir()
    finish(runs.command(undisturbed), _log_path(undisturbed))
    needed = sum(path.stat().st_size for path in undisturbed.rglob("*") if path.is_file())
    with mounted(run_dir, runs.draw.randint(100_000, needed)) as grow:
        with runs.group(run_dir, 1) as group:
            begun = time.monotonic()
            (code,) = group.wait(_USUAL + NOTICED)
            took, output = time.monotonic() - begun, group.logs[0]
        if code == 0:
            return "it fitted"
        last = next((line for line in reversed(output.splitlines()) if line.strip()), "")
        require(code == 1, f"exit code {code}: {output[-1500:]}")
        names_it = any(
            text in output for text in (*_messages(errno.ENOSPC), "bytes and the disk has", "free on the disk")
        )
        require(names_it and "Traceback" not in output, f"the full disk is not reported: {output[-1500:]}")
        require(took < _USUAL + NOTICED, f"the run ended after {took:.0f} s: {last}")
        has_checkpoint = any(name.isdecimal() for name in checkpoints(run_dir))
        grow()
        runs.resume(run_dir, 1)
    return "resumed from a checkpoint" if has_checkpoint else "started anew"


def _messages(number: int) -> tuple[str, str]:
    """The texts that report a system error: the system's message in Orbax's errors, and ours."""
    return os.strerror(number), ADVICE[number][0]


def _log_path(run_dir: Path) -> Path:
    run_dir.parent.mkdir(parents=True, exist_ok=True)
    return run_dir.with_suffix(".log")


@contextlib.contextmanager
def mounted(folder: Path, size: int) -> Iterator[Callable[[], None]]:
    """Mount a small in-memory disk at a folder; yields a function that enlarges it."""
    folder.mkdir(parents=True, exist_ok=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", folder], check=True)
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=256m", folder], check=True)
    finally:
        subprocess.run(["umount", folder], check=True)


def read_only(runs: Runs) -> str:
    """Make the run directory read-only from a random system call on, as a disk with errors does."""
    counted, run_dir = runs.folder / "counted", runs.new_run_dir()
    if not counted.exists():
        first = runs.new_run_dir()
        keys = {"FAILING_BELOW": str(first), "FAILING_CALL": "-1", "FAILING_HOW": "0", "FAILING_COUNTED": str(counted)}
        code = runs.alone(first, **keys).wait(300)
        require(code == 0, f"undisturbed: exit code {code}: {_tail(first.with_suffix('.log'))}")
    call = runs.draw.randrange(int(counted.read_text()))
    keys = {"FAILING_BELOW": str(run_dir), "FAILING_CALL": str(call), "FAILING_HOW": str(READ_ONLY_FROM)}
    process = runs.alone(run_dir, **keys)
    try:
        code = process.wait(_USUAL + NOTICED)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
        raise Failure(f"call {call}: still running: {_tail(run_dir.with_suffix('.log'))}") from None
    output = _tail(run_dir.with_suffix(".log"))
    require(code == 1, f"call {call}: exit code {code}: {output}")
    is_named = any(text in output for text in _messages(errno.EROFS)) and str(run_dir) in output
    require(is_named, f"call {call}: the read-only disk and its path are not reported: {output}")
    require("Traceback" not in output, f"call {call}: {output}")
    has_checkpoint = any(name.isdecimal() for name in checkpoints(run_dir))
    runs.resume(run_dir, 1)
    return "resumed from a checkpoint" if has_checkpoint else "started anew"


def clock_jump(runs: Runs) -> str:
    """Make the wall clock jump during a run, and again before it is resumed."""
    run_dir, offset = runs.new_run_dir(), runs.folder / "offset"
    run_dir.parent.mkdir(parents=True)
    day = 86_400
    jumps = runs.draw.sample([-3650 * day, -day, -3600, 3600, day, 3650 * day], 2)
    offset.write_text("0")
    process = runs.alone(run_dir, CLOCK_OFFSET=str(offset))
    log = run_dir.with_suffix(".log")
    wait_for(_STEPPING, log, process)
    offset.write_text(str(jumps[0]))
    wait_for("pretraining  12 /", log, process)
    process.kill()
    process.wait()
    offset.write_text(str(jumps[1]))
    again = runs.alone(run_dir, CLOCK_OFFSET=str(offset))
    require(again.wait(300) == 0, f"jumps of {jumps} s: {_tail(log)}")
    require(digests(run_dir) == runs.expected(1), f"jumps of {jumps} s: other bits")
    return "the same bits"


def _about(seconds: float) -> str:
    return next(f"{limit} s or less" for limit in (10, 30, 45, 60, NOTICED, 10_000) if seconds <= limit)


@dataclass(frozen=True)
class Fault:
    """A kind of trial; `missing` is why it cannot run here, or ""."""

    name: str
    trial: Callable[[Runs], str]
    missing: str = ""


_NO_ROOT = "" if _IS_ROOT else "needs Linux and root"
_NO_NETWORKS = _NO_ROOT or ("" if shutil.which("ip") and shutil.which("unshare") else "needs ip and unshare")
FAULTS = (
    Fault("process 1 stopped, stepping", lost_process(signal.SIGSTOP, 1, _STEPPING)),
    Fault("process 0 stopped, stepping", lost_process(signal.SIGSTOP, 0, _STEPPING)),
    Fault("process 1 stopped, compiling", lost_process(signal.SIGSTOP, 1, "data pipeline: ")),
    Fault("process 1 stopped, evaluating", lost_process(signal.SIGSTOP, 1, _EVALUATING)),
    Fault("process 1 stopped, saving", lost_process(signal.SIGSTOP, 1, wait_for_save)),
    Fault("process 0 stopped, saving", lost_process(signal.SIGSTOP, 0, wait_for_save)),
    Fault("process 1 stopped, starting", lost_process(signal.SIGSTOP, 1, _STARTED)),
    Fault("process 1 stopped before it connects", absent_process),
    Fault("coordinator killed, stepping", lost_process(signal.SIGKILL, 0, _STEPPING)),
    Fault("coordinator killed, compiling", lost_process(signal.SIGKILL, 0, "data pipeline: ")),
    Fault("process 1 killed, stepping", lost_process(signal.SIGKILL, 1, _STEPPING)),
    Fault("worker of prepare stopped", stopped_worker, "" if sys.platform == "linux" else "needs Linux"),
    Fault("packets dropped between two hosts", dropped_packets, _NO_NETWORKS),
    Fault("disk full", full_disk, _NO_ROOT),
    Fault("disk turns read-only", read_only, crash_points.MISSING),
    Fault("clock jumps", clock_jump, crash_points.MISSING),
)


def try_hangs(table: Table, folder: Path, tries: int, share: Share, names: Collection[str] = ()) -> None:
    """Try all or the named faults in turn; adds a row for each. Raises ValueError for an unknown name."""
    require_known("faults of hangs", names, (fault.name for fault in FAULTS))
    runs = Runs(folder)
    chosen = [fault for fault in FAULTS if fault.name in names or not names]
    for fault in chosen:
        if fault.missing:
            print(f"{fault.name}: not tried, {fault.missing}", file=sys.stderr)
    supported = [fault for fault in chosen if not fault.missing]
    for number in share.take(range(tries)):
        runs.draw = random.Random(f"{share.seed} {number}")
        fault = supported[number % len(supported)]
        with table.failing(fault.name, f"trial {number}"):
            table.add(fault.name, fault.trial(runs), True, "")
